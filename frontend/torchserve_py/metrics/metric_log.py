"""Metrics as lines of log files, for `metrics_mode` `log` and `legacy`; TorchServe's formats (specification 7.5).

An event only stores an entry; it is formatted and written later (`torchserve_py.logs.line_logs`).
"""

import time
from collections.abc import Iterable
from typing import NamedTuple

from torchserve_py.logs.line_logs import LineLog
from torchserve_py.metrics.families import Family
from torchserve_py.metrics.instruments import Gauge, Histogram, Instrument

SERVER_LOGGER = "TS_METRICS"
MODEL_LOGGER = "MODEL_METRICS"


class LineEnds(NamedTuple):
    """The fixed text of one series' lines: before the value, and between the value and the request ids."""

    before: str
    after: str


def line_ends(name: str, unit: str, dimensions: Iterable[tuple[str, str]], hostname: str) -> LineEnds:
    """The ends of a series' lines. `dimensions` are without the host's name."""
    pairs = ",".join(f"{one_line(name)}:{one_line(value)}" for name, value in dimensions)
    return LineEnds(f"{one_line(name)}.{one_line(unit)}:", f"|#{pairs}|#hostname:{hostname}")


class MetricLog:
    """Lines of metrics that wait to be written to a logger."""

    def __init__(self, logger_name: str) -> None:
        self._log: LineLog[tuple[int, LineEnds, float, str]] = LineLog(logger_name, _text_of)

    def note(self, ends: LineEnds, value: float, request_ids: str | None = None) -> None:
        """A series has a new value, now; `request_ids` are None for metrics of the server."""
        suffix = "" if request_ids is None else f",requestID:{request_ids}"
        self._log.note((int(time.time()), ends, value, suffix))

    def flush(self) -> None:
        """Have what was noted written."""
        self._log.flush()


def _text_of(entry: tuple[int, LineEnds, float, str]) -> str:
    second, (before, after), value, suffix = entry
    return f"{before}{float(value)!r}{after}{suffix},timestamp:{second}"


class Changes:
    """Turns the server's own instruments into lines: the change of each since the last call of `note`.

    A counter gives one line with its growth, so the sum of its lines is its value; a gauge gives its value if it was
    set. TorchServe writes a line for each request instead. Histograms give none: the format has no form for them.
    """

    def __init__(self, log: MetricLog, hostname: str) -> None:
        self._log = log
        self._hostname = hostname
        self._seen: dict[tuple[str, str], float] = {}

    def note(self, families: Iterable[Family[Instrument]]) -> None:
        """Compare `families` with the last call, and note the lines."""
        before, self._seen = self._seen, {}
        for family in families:
            if family.kind == Histogram.kind:
                continue
            for labels, text, instrument in family.series:
                key = (family.name, text)
                last, news = before.get(key, 0.0), None
                if isinstance(instrument, Gauge):
                    now = instrument.read()
                    if instrument.renewed or now != last:
                        news = now
                    instrument.renewed = False
                else:
                    now = sum(sample.value for sample in instrument.samples())
                    if now != last:
                        news = now - last if now > last else now  # smaller: a new instrument with these labels
                self._seen[key] = now
                if news is not None:
                    ends = line_ends(family.name, family.unit, list(labels.items())[:-1], self._hostname)
                    self._log.note(ends, news)


def one_line(text: str) -> str:
    """`text` with line breaks and other unprintable characters escaped."""
    return text if text.isprintable() else repr(text)[1:-1]
