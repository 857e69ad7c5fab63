"""All metrics of one server: made once, passed to the code that counts, and shown at `/metrics`."""

import logging
import socket
from collections.abc import Iterable, Sequence
from typing import Any

from torchserve_py.metrics.catalog import HOST_GAUGES, LEGACY_NAMES, SERVER_METRICS
from torchserve_py.metrics.families import ServerFamilies, expose
from torchserve_py.metrics.handler_metrics import HandlerMetrics
from torchserve_py.metrics.instruments import Counter, Gauge
from torchserve_py.metrics.metric_log import MODEL_LOGGER, SERVER_LOGGER, Changes, MetricLog
from torchserve_py.metrics.metrics_file import MetricsPlan
from torchserve_py.metrics.mlserver_metrics import MLServerMetrics
from torchserve_py.metrics.model_metrics import ModelMetrics

logger = logging.getLogger(__name__)


class ServerMetrics:
    """All series of the server; those without a model exist, at zero, from the start.

    `hostname`, the machine's if it is None, is the label of that name. `plan` says which metrics are shown and logged.
    """

    def __init__(self, hostname: str | None = None, plan: MetricsPlan = MetricsPlan()) -> None:  # noqa: B008 - it is frozen
        self._hostname = hostname or socket.gethostname()
        self._plan = plan
        self._families = ServerFamilies(self._plan.server)
        of_host = {"Level": "Host", "Hostname": self._hostname}
        self.requests_2xx = self._families.child(Counter, "Requests2XX", of_host)
        self.requests_4xx = self._families.child(Counter, "Requests4XX", of_host)
        self.requests_5xx = self._families.child(Counter, "Requests5XX", of_host)
        for name in ("QueueTime", "WorkerThreadTime", *(each.name for each in HOST_GAUGES)):
            self._families.child(Gauge, name, of_host)
        self._of_http: dict[tuple[str, str, int], Counter] = {}
        self._models: dict[tuple[str, str], ModelMetrics] = {}
        self._mlserver = MLServerMetrics()
        self._warned: set[str] = set()
        self._changes: Changes | None = None
        self._logs: list[MetricLog] = []
        if plan.mode != "prometheus":
            self._logs = [MetricLog(SERVER_LOGGER), MetricLog(MODEL_LOGGER)]
            self._changes = Changes(self._logs[0], self._hostname)
        self._handlers = HandlerMetrics(
            self._hostname,
            [name for family in self._families for name in family.taken_names],
            self._plan,
            self._logs[1] if self._logs else None,
        )

    def model(self, name: str, version: str, *, as_mlserver: bool = False) -> ModelMetrics:
        """The instruments of a model version; with `as_mlserver` MLServer's metrics show it, too."""
        metrics = self._models.get((name, version))
        if metrics is None:
            record_prediction = self._handlers.register(name)
            metrics = ModelMetrics(self._families, name, version, self._hostname, record_prediction)
            self._models[name, version] = metrics
        if as_mlserver:
            self._mlserver.show(name, version, metrics.outcomes)
        return metrics

    def forget(self, name: str, version: str) -> None:
        """Takes the series of a model version away; with a model's last version also what its handlers recorded."""
        metrics = self._models.pop((name, version), None)
        if metrics is None:
            return
        self._mlserver.forget(name, version)
        last_version = all(other != name for other, _ in self._models)
        metrics.forget(last_version=last_version)
        if last_version:
            self._handlers.forget(name)

    @property
    def declared_model_metrics(self) -> list[list[Any]]:
        """What workers find in their cache from the start: `[type, name, unit, [dimension, ..]]` of each."""
        return [[each.kind, each.name, each.unit, list(each.dimensions)] for each in self._plan.model.values()]

    def record_model_metrics(self, model_name: str, entries: Iterable[Any]) -> None:
        """Takes a `metrics` message of a worker of the model; entries that cannot be shown are logged and dropped."""
        self._handlers.record(model_name, entries)

    def count_http_request(self, method: str, route: str, status: int) -> None:
        """Count a request that was answered; `route` is the pattern of its path, empty for an unknown path."""
        counter = self._of_http.get((method, route, status))
        if counter is None:
            labels = {"method": method, "route": route, "status": str(status), "hostname": self._hostname}
            counter = self._families.child(Counter, "ts_http_requests_total", labels)
            self._of_http[method, route, status] = counter
        counter.value += 1

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

    def expose(self, names: set[str] | None = None) -> bytes:
        """All series (in the mode `legacy` three) in Prometheus' text format 0.0.4; with `names` only these samples."""
        if self._plan.mode == "legacy":
            return expose([family for family in self._families if family.name in LEGACY_NAMES], names)
        return expose([*self._families, *self._mlserver.families, *self._handlers], names)

    def flush_logs(self) -> None:
        """Has what has happened since the last call written to the metric logs, where the mode asks for logs."""
        if self._changes is not None:
            shown = LEGACY_NAMES if self._plan.mode == "legacy" else frozenset[str]()
            self._changes.note(family for family in self._families if family.name not in shown)
        for log in self._logs:
            log.flush()
