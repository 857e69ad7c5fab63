"""All metrics of one server: made once, passed to the code that counts, and shown at `/metrics`.

What happens for each request is only recorded; the records are added up soon after, and before any metric is read.
"""

import asyncio
import collections
import importlib
import logging
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, repeat
from operator import itemgetter
from typing import Any, Final, Protocol, TypeAlias

from torchserve_py.base.metrics.catalog import HOST_GAUGES, LEGACY_NAMES, SERVER_METRICS
from torchserve_py.base.metrics.families import Family, ServerFamilies, U, expose
from torchserve_py.base.metrics.handler_metrics import HandlerMetrics
from torchserve_py.base.metrics.instruments import Counter, Gauge, Instrument, Updatable
from torchserve_py.base.metrics.metric_lines import MetricLines
from torchserve_py.base.metrics.metrics_plan import MetricsPlan
from torchserve_py.base.metrics.model_metrics import FollowJobs, ModelMetrics, Outcomes

logger = logging.getLogger(__name__)

#: Is told the name and version of a model, and the entries of a message as `HandlerMetrics.record` takes them.
FollowValues: TypeAlias = Callable[[str, str, Sequence[Any]], None]

#: Makes what writes metrics to logs, of the hostname and of what is logged.
MakeLines: TypeAlias = Callable[[str, MetricsPlan], MetricLines]
#: Makes what shows metrics of handlers, of the hostname, the names that handlers cannot use, which metrics are listed,
#: and what gets each value.
MakeHandlerMetrics: TypeAlias = Callable[[str, Iterable[str], MetricsPlan, MetricLines], HandlerMetrics]

#: Seconds that a record waits for others that are added up with it.
FOLD_DELAY: Final = 0.02


class ModelFamilies(Protocol):
    """Families that show models under further names; they compute their samples when they are scraped."""

    @property
    def families(self) -> Sequence[Family[Instrument]]:
        """The families that have series."""
        ...

    def show(self, name: str, version: str, outcomes: Outcomes) -> None:
        """Add the series of a model version."""

    def forget(self, name: str, version: str) -> None:
        """Remove the series of a model version."""


class ServerMetrics:
    """All series of the server; those without a model exist, at zero, from the start.

    `hostname`, the machine's if it is None, is the label of that name. `plan` says which metrics are shown and logged.
    `lines` and `handlers` make what writes lines and what shows metrics of handlers; without one there are none.
    """

    def __init__(
        self,
        hostname: str | None = None,
        plan: MetricsPlan = MetricsPlan(),  # noqa: B008 - it is frozen
        lines: MakeLines | None = None,
        handlers: MakeHandlerMetrics | None = None,
    ) -> None:
        self._hostname = hostname or socket.gethostname()
        self._plan = plan
        self._families = ServerFamilies(self._plan.server)
        of_host = {"Level": "Host", "Hostname": self._hostname}
        self._lines = MetricLines() if lines is None else lines(self._hostname, plan)
        #: By the first digit of the status.
        self._counted = {
            digit: (self._families.child(Counter, name, of_host), self._lines.form((["Host"], {name: "1.0"})))
            for digit, name in ((2, "Requests2XX"), (4, "Requests4XX"), (5, "Requests5XX"))
        }
        for name in ("QueueTime", "WorkerThreadTime", *(each.name for each in HOST_GAUGES)):
            self._families.child(Gauge, name, of_host)
        #: Heads of HTTP answers that were written and are not folded yet: when (seconds since 1970), and their status.
        self._answers: list[tuple[float, int]] = []
        #: What adds up records, of those that have some.
        self._due: list[Callable[[], None]] = []
        #: How often a request with this method, route (the pattern of its path, empty for an unknown path) and status
        #: was answered.
        self.http_requests = collections.Counter[tuple[str, str, int]]()
        self._of_http: dict[tuple[str, str, int], Counter] = {}
        self._models: dict[tuple[str, str], ModelMetrics] = {}
        #: Are told of the jobs that have ended, when these are added up.
        self.followers: list[FollowJobs] = []
        #: Are told of what handlers report.
        self.value_followers: list[FollowValues] = []
        #: By the name of the module that has made them.
        self._further: dict[str, ModelFamilies] = {}
        self._of_plugins: list[Family[Updatable]] = []
        self._warned: set[str] = set()
        #: What handlers report.
        self.handlers = HandlerMetrics()
        if handlers is not None:
            taken = [name for family in self._families for name in family.taken_names]
            self.handlers = handlers(self._hostname, taken, plan, self._lines)

    def model(self, name: str, version: str, further: str = "") -> ModelMetrics:
        """The instruments of a model version; `further` is the `ContractOffer.metrics` of its contract."""
        metrics = self._models.get((name, version))
        if metrics is None:
            about = (name, version, self._hostname, self.handlers.register(name), self.followers, self.soon)
            metrics = ModelMetrics(self._families, self._lines, *about)
            self._models[name, version] = metrics
        if further:
            if further not in self._further:
                self._further[further] = importlib.import_module(further).model_families()
            self._further[further].show(name, version, metrics.outcomes)
        return metrics

    def forget(self, name: str, version: str) -> None:
        """Takes the series of a model version away; with a model's last version also what its handlers recorded."""
        metrics = self._models.pop((name, version), None)
        if metrics is None:
            return
        for each in self._further.values():
            each.forget(name, version)
        last_version = all(other != name for other, _ in self._models)
        metrics.forget(last_version=last_version)
        if last_version:
            self.handlers.forget(name)

    def add(self, family: Family[U]) -> Family[U]:
        """Show the instruments of a plugin at `/metrics`, but not in the mode `legacy`; return them.

        Raises ValueError: the server has a metric of that name.
        """
        taken = {name for each in (*self._families, *self._of_plugins) for name in each.taken_names}
        if both := taken & family.taken_names:
            raise ValueError(f"There is a metric {min(both)} already; give that of the plugin another name.")
        self._of_plugins.append(family)
        return family

    @property
    def declared_model_metrics(self) -> list[list[Any]]:
        """What workers find in their cache from the start: `[type, name, unit, [dimension, ..]]` of each."""
        return [[each.kind, each.name, each.unit, list(each.dimensions)] for each in self._plan.model.values()]

    def record_model_metrics(self, model_name: str, entries: Sequence[Any], version: str = "") -> None:
        """Takes a `metrics` message of a worker of the model; entries that cannot be shown are logged and dropped."""
        for (name, _), metrics in self._models.items():
            if name == model_name:
                metrics.fold()  # lines of earlier calls of the handler come first
        self.handlers.record(model_name, entries)
        for follow in self.value_followers:
            follow(model_name, version, entries)

    def answered(self, at: float, status: int) -> None:
        """The head of an HTTP answer was written at that moment (seconds since 1970)."""
        self._answers.append((at, status))
        if len(self._answers) == 1:
            self.soon(self._fold_answers)

    def count_answers(self, status: int, moments: Sequence[float]) -> None:
        """Count HTTP answers whose heads were written at these moments; like TorchServe, no redirections."""
        if (counted := self._counted.get(status // 100)) is not None:
            counter, line = counted
            counter.value += len(moments)
            if line:
                self._lines.events += zip(moments, repeat((line, ())))

    def fold(self) -> None:
        """Add up what was recorded so far."""
        for fold in self._due:
            fold()
        for model in self._models.values():
            model.fold()
        self._fold_answers()
        for asked, count in self.http_requests.items():
            if asked not in self._of_http:
                method, route, status = asked
                labels = {"method": method, "route": route, "status": str(status), "hostname": self._hostname}
                self._of_http[asked] = self._families.child(Counter, "ts_http_requests_total", labels)
            self._of_http[asked].value = count

    def _fold_answers(self) -> None:
        answers, self._answers = self._answers, []
        for status, alike in groupby(answers, itemgetter(1)):
            self.count_answers(status, [at for at, _ in alike])

    def soon(self, fold: Callable[[], None]) -> None:
        """Have records added up within `FOLD_DELAY` seconds. Outside an event loop they wait for `fold`."""
        self._due.append(fold)
        if len(self._due) == 1:
            try:
                asyncio.get_running_loop().call_later(FOLD_DELAY, self._fold_due)
            except RuntimeError:
                self._due.clear()

    def _fold_due(self) -> None:
        due, self._due = self._due, []
        for fold in due:
            fold()
        self._lines.flush()

    def record(self, name: str, dimensions: Sequence[str], value: float, hostname: str | None = None) -> None:
        """Record a value of a metric of the host. `dimensions` are values, in order, without the host's.

        Like TorchServe it ignores names that are not listed. A script of the operator may report anything.
        """
        family = self._families.shown(name)
        if family is None:
            return
        names = (SERVER_METRICS.get(name) or self._families.declared[name]).dimensions
        values = (*dimensions, hostname or self._hostname)
        if len(values) == len(names) and (family.kind != Counter.kind or value >= 0):
            family.child(dict(zip(names, values, strict=True))).update(value)
        elif name not in self._warned:
            self._warned.add(name)
            logger.warning(
                "The metric %s of system_metrics_cmd is not recorded: it has the dimensions %s and the value %g; the"
                " dimensions must be values for %s, and a counter cannot shrink",
                *(name, list(dimensions), value, list(names[:-1])),
            )

    def expose(self, names: set[str] | None = None) -> Iterator[str]:
        """Lines of all series (in the mode `legacy` three) in Prometheus' text format 0.0.4.

        With `names` only these samples. There may be 100,000 series: an event loop takes some lines in each turn.
        """
        self.fold()
        if self._plan.mode == "legacy":
            return expose([family for family in self._families if family.name in LEGACY_NAMES], names)
        further = (family for each in self._further.values() for family in each.families)
        return expose([*self._families, *self._of_plugins, *further, *self.handlers], names)

    def flush_logs(self) -> None:
        """Have all that has happened written to the metric logs, where the mode asks for logs.

        What has no lines for single events gets a line for what has changed since the last call.
        """
        self.fold()
        self._lines.flush()  # before what has changed by now
        self._lines.note_changes(self._families)
        self._lines.flush()
