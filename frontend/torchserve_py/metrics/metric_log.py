"""Metrics as lines of log files, for `metrics_mode` `log` and `legacy`; TorchServe's formats (specification 7.5).

An event only stores an entry; it is formatted and written later (`torchserve_py.logs.line_logs`).
"""

from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Final, TypeAlias

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

#: The lines of an event: text with places such as ``%(value)r`` for what differs; empty where there are none. The
#: places ``start`` and ``second`` are for the beginning of the lines and for their time in seconds.
LineForm: TypeAlias = str


def line_form(
    name: str,
    unit: str,
    dimensions: Iterable[tuple[str, str]],
    hostname: str,
    value: str = "%(value)r",
    request_ids: str = "",
) -> LineForm:
    """Return the form of a series' line, with a place for its value. ``dimensions`` are without the host's name."""
    pairs = ",".join(f"{fit(name)}:{fit(value)}" for name, value in dimensions)
    before, after = f"{fit(name)}.{fit(unit)}:", f"|#{pairs}|#hostname:{hostname}"
    before, after = before.replace("%", "%%"), after.replace("%", "%%")
    return f"%(start)s{before}{value}{after}{request_ids},timestamp:%(second)d"


class MetricLog(LineLog[tuple[LineForm, dict[str, object]]]):
    """Lines of metrics. An entry is a form, which must not be empty, and what goes into its places."""

    def __init__(self, logger_name: str) -> None:
        super().__init__(logger_name, _text_of)


def _text_of(entry: tuple[LineForm, dict[str, object]], start: str, second: int) -> str:
    form, values = entry
    return form % {"start": start, "second": second, **values}


class EventLines:
    """Makes the forms of lines for single events, and takes the events; only metrics in ``declared`` get lines."""

    def __init__(self, log: MetricLog, hostname: str, declared: Mapping[str, Declaration]) -> None:
        self._log = log
        #: Events that are not passed on yet: when (seconds since 1970), a form, not an empty one, and its values.
        self.events: list[tuple[float, tuple[LineForm, dict[str, object]]]] = []
        self._hostname = hostname
        self._declared = declared

    def write(self) -> None:
        """Pass the events on in the order of their moments."""
        events, self.events[:] = sorted(self.events, key=itemgetter(0)), ()
        for at, event in events:
            self._log.note(event, at)

    def form(self, labels: Iterable[str], **values: str) -> LineForm:
        """Return the form with a line for each metric that ``values`` names, with the place for its value.

        ``labels`` are the values of the metrics' dimensions, without the host's.
        """
        return "\n".join(
            [
                line_form(name, each.unit, zip(each.dimensions[:-1], labels, strict=True), self._hostname, value)
                for name, value in values.items()
                if (each := self._declared.get(name)) is not None
            ]
        )


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
