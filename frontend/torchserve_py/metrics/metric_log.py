"""Metrics as lines of log files, for `metrics_mode` `log` and `legacy`; TorchServe's formats (specification 7.5).

An event only stores an entry; it is formatted and written later (`torchserve_py.logs.line_logs`).
"""

import re
from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from typing import Any, Final, NamedTuple

from torchserve_py.logs.line_logs import LineLog
from torchserve_py.logs.unfit_characters import fit
from torchserve_py.metrics.catalog import Declaration
from torchserve_py.metrics.families import Family
from torchserve_py.metrics.instruments import Gauge, Histogram, Instrument

SERVER_LOGGER: Final = "TS_METRICS"
MODEL_LOGGER: Final = "MODEL_METRICS"

#: The metrics of which TorchServe writes a line for each request, answer, batch or worker.
LINE_PER_EVENT: Final = frozenset(
    {
        *("Requests2XX", "Requests4XX", "Requests5XX", "ts_inference_requests_total"),
        *("ts_inference_latency_microseconds", "ts_queue_latency_microseconds", "QueueTime"),
        *("WorkerThreadTime", "WorkerLoadTime"),
    }
)

_PLACE: Final = re.compile(r"%%|%\((\w+)\)")


class LineForm(NamedTuple):
    """The lines of an event, with places for what differs.

    Values are put in by their order: `%` would look each name up, which takes ten times as long.

    Attributes:
        template: For the operator `%`, with a place for each of the values that ``values_of`` returns.
        values_of: Takes them from the values by their names.
    """

    template: str
    values_of: Callable[[Mapping[str, Any]], tuple[Any, ...]]


def line_form(
    name: str,
    unit: str,
    dimensions: Iterable[tuple[str, str]],
    hostname: str,
    value: str = "%(value)r",
    request_ids: str = "",
) -> LineForm:
    """Return the form of a series' line, with a place for its value. ``dimensions`` are without the host's name."""
    return _compiled(_line(name, unit, dimensions, hostname, value, request_ids))


def _line(
    name: str, unit: str, dimensions: Iterable[tuple[str, str]], hostname: str, value: str, request_ids: str = ""
) -> str:
    """Return a line with named places; ``start`` is for its beginning, ``second`` for its time."""
    pairs = ",".join(f"{fit(name)}:{fit(value)}" for name, value in dimensions)
    before, after = f"{fit(name)}.{fit(unit)}:", f"|#{pairs}|#hostname:{hostname}"
    before, after = before.replace("%", "%%"), after.replace("%", "%%")
    return f"%(start)s{before}{value}{after}{request_ids},timestamp:%(second)d"


def _compiled(text: str) -> LineForm:
    """Return the form of lines with named places, at least two."""
    names = [found[1] for found in _PLACE.finditer(text) if found[1]]
    return LineForm(_PLACE.sub(lambda found: "%" if found[1] else "%%", text), itemgetter(*names))


class MetricLog(LineLog[tuple[LineForm, dict[str, object]]]):
    """Lines of metrics. An entry is a form, and the values for its places, which it may add to."""

    def __init__(self, logger_name: str) -> None:
        super().__init__(logger_name, _text_of)


def _text_of(entry: tuple[LineForm, dict[str, object]], start: str, second: int) -> str:
    (template, values_of), values = entry
    values["start"], values["second"] = start, second
    return template % values_of(values)


class EventLines:
    """Makes the forms of lines for single events, and takes the events; only metrics in ``declared`` get lines."""

    def __init__(self, log: MetricLog, hostname: str, declared: Mapping[str, Declaration]) -> None:
        self._log = log
        #: Events that are not passed on yet: when (seconds since 1970), a form, and its values.
        self.events: list[tuple[float, tuple[LineForm, dict[str, object]]]] = []
        self._hostname = hostname
        self._declared = declared

    def write(self) -> None:
        """Pass the events on in the order of their moments."""
        if self.events:
            self._log.note_all(sorted(self.events, key=itemgetter(0)))
            self.events.clear()

    def form(self, *metrics: tuple[Iterable[str], Mapping[str, str]]) -> LineForm | None:
        """Return the form of the lines of metrics, None if none of them gets lines.

        Each argument is the values of some metrics' dimensions, without the host's, and the places for their values by
        the metrics' names.
        """
        lines = [
            _line(name, each.unit, zip(each.dimensions[:-1], labels, strict=True), self._hostname, value)
            for labels, values in metrics
            for name, value in values.items()
            if (each := self._declared.get(name)) is not None
        ]
        return _compiled("\n".join(lines)) if lines else None


class Changes:
    """Turns the server's own instruments into lines: the change of each since the last call of `note`.

    A counter gives one line with its growth, so the sum of its lines is its value; a gauge gives its value if it was
    set. Histograms give none: the format has no form for them.
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
                    form = line_form(family.name, family.unit, list(labels.items())[:-1], self._hostname)
                    self._log.note((form, {"value": float(news)}))
