"""Metrics as lines of log files, for `metrics_mode` `log` and `legacy`; TorchServe's formats (specification 7.5).

An event only stores an entry; it is formatted and written later (`torchserve_py.base.logs.line_logs`).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from torchserve_py.base.logs import HANDLER_METRICS_LOGGER, METRICS_LOGGER
from torchserve_py.base.logs.line_logs import LineLog, tick_of
from torchserve_py.base.logs.unfit_characters import fit
from torchserve_py.base.metrics.catalog import LEGACY_NAMES, Declaration
from torchserve_py.base.metrics.families import Family
from torchserve_py.base.metrics.instruments import Gauge, Histogram, Instrument
from torchserve_py.base.metrics.metric_lines import SECOND, START, Filled, LineForm, MetricLines, Values, texts_of
from torchserve_py.base.metrics.metrics_plan import MetricsPlan

#: The metrics of which TorchServe writes a line for each request, answer, batch or worker.
LINE_PER_EVENT: Final = frozenset(
    {
        *("Requests2XX", "Requests4XX", "Requests5XX", "ts_inference_requests_total"),
        *("ts_inference_latency_microseconds", "ts_queue_latency_microseconds", "QueueTime"),
        *("WorkerThreadTime", "WorkerLoadTime"),
    }
)

_PLACE: Final = re.compile(r"%%|%\((\w+)\)")


class MetricLog(MetricLines):
    """Writes a line for each event of some metrics, and one for each change of the server's other ones."""

    def __init__(self, hostname: str, plan: MetricsPlan) -> None:
        super().__init__()
        self._hostname = hostname
        self._of_server = LineLog[Filled](METRICS_LOGGER, texts_of)
        self._of_handlers = LineLog[Filled](HANDLER_METRICS_LOGGER, texts_of)
        #: The metrics with a line for each event.
        self._declared = _with_lines(plan)
        self._changes = _Changes(self._of_server, hostname)
        self._without_changes = self._declared.keys() | (LEGACY_NAMES if plan.mode == "legacy" else set())

    def form(self, *metrics: tuple[Iterable[str], Mapping[str, str]], values: Sequence[str] = ()) -> LineForm | None:
        lines = [
            _line(name, each.unit, zip(each.dimensions[:-1], labels, strict=True), self._hostname, value)
            for labels, places in metrics
            for name, value in places.items()
            if (each := self._declared.get(name)) is not None
        ]
        return _compiled("\n".join(lines), values) if lines else None

    def handlers_form(self, name: str, unit: str, dimensions: Iterable[tuple[str, str]]) -> LineForm:
        line = _line(name, unit, dimensions, self._hostname, "%(value)r", ",requestID:%(ids)s")
        return _compiled(line, ("value", "ids"))

    def note_of_handler(self, form: LineForm, values: Values, at: float | None = None) -> None:
        self._of_handlers.note((form, values), at)

    def note_changes(self, families: Iterable[Family[Instrument]]) -> None:
        self._changes.note(family for family in families if family.name not in self._without_changes)

    def flush(self) -> None:
        # Within a millisecond events of one form stay together: their lines are made together.
        events, self.events = sorted(self.events, key=tick_of), []
        self._of_server.write(events)
        self._of_handlers.flush()


class _Changes:
    """Turns the server's own instruments into lines: the change of each since the last call of `note`.

    A counter gives one line with its growth, so the sum of its lines is its value; a gauge gives its value if it was
    set. Histograms give none: the format has no form for them.
    """

    def __init__(self, log: LineLog[Filled], hostname: str) -> None:
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
                    line = _line(family.name, family.unit, list(labels.items())[:-1], self._hostname, "%(value)r")
                    self._log.note((_compiled(line, ("value",)), (float(news),)))


def metric_lines(hostname: str, plan: MetricsPlan) -> MetricLines:
    """Return what writes the lines that the plan's mode asks for."""
    return MetricLines() if plan.mode == "prometheus" else MetricLog(hostname, plan)


def _with_lines(plan: MetricsPlan) -> dict[str, Declaration]:
    """Return the metrics of the server that have a line for each event."""
    if plan.summary:
        return {}
    names = LINE_PER_EVENT - LEGACY_NAMES if plan.mode == "legacy" else LINE_PER_EVENT
    return {name: each for name, each in plan.server.items() if name in names}


def _line(
    name: str, unit: str, dimensions: Iterable[tuple[str, str]], hostname: str, value: str, request_ids: str = ""
) -> str:
    """Return a line for `LineForm`, whose places have names."""
    pairs = ",".join(f"{fit(name)}:{fit(value)}" for name, value in dimensions)
    before, after = f"{fit(name)}.{fit(unit)}:", f"|#{pairs}|#hostname:{hostname}"
    before, after = before.replace("%", "%%"), after.replace("%", "%%")
    return f"{START}{before}{value}{after}{request_ids},timestamp:{SECOND}"


def _compiled(text: str, values: Sequence[str]) -> LineForm:
    """Return the form of lines whose places have names, those of ``values``."""
    places = [values.index(found[1]) for found in _PLACE.finditer(text) if found[1]]
    return LineForm(_PLACE.sub(lambda found: "%" if found[1] else "%%", text), places, len(values))
