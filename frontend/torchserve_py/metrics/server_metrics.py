"""Everything that this server measures, in one place: made once, handed to whoever counts, shown at `/metrics`."""

import socket
from collections.abc import Iterable, Iterator
from typing import Any

from torchserve_py.metrics.families import Family, expose, torchserve_description
from torchserve_py.metrics.handler_metrics import HandlerMetrics
from torchserve_py.metrics.instruments import Counter, Gauge, Instrument
from torchserve_py.metrics.model_metrics import ModelFamilies, ModelMetrics

HOST_GAUGES = {
    "CPUUtilization": "Percent",
    "MemoryUsed": "Megabytes",
    "MemoryAvailable": "Megabytes",
    "MemoryUtilization": "Percent",
    "DiskUsage": "Gigabytes",
    "DiskAvailable": "Gigabytes",
    "DiskUtilization": "Percent",
}
"""TorchServe's gauges of the host and their units."""
GPU_GAUGES = {"GPUMemoryUtilization": "Percent", "GPUMemoryUsed": "Megabytes", "GPUUtilization": "Percent"}
"""The same for each GPU."""


class ServerMetrics:
    """All series of the server; those without a model exist, at zero, from the start."""

    def __init__(self, hostname: str | None = None) -> None:
        self._hostname = hostname or socket.gethostname()
        self._host_labels = {"Level": "Host", "Hostname": self._hostname}
        self._host: dict[str, Family[Instrument]] = {}
        self.requests_2xx = self._counter("Requests2XX")
        self.requests_4xx = self._counter("Requests4XX")
        self.requests_5xx = self._counter("Requests5XX")
        self._queue_time = self._gauge("QueueTime", "Milliseconds")
        self._worker_thread_time = self._gauge("WorkerThreadTime", "Milliseconds")
        self._system = {name: self._gauge(name, unit) for name, unit in HOST_GAUGES.items()}
        self._gpus = {
            name: Family(name, Gauge, torchserve_description("gauge", unit)) for name, unit in GPU_GAUGES.items()
        }
        self._families = ModelFamilies()
        self._models: dict[tuple[str, str], ModelMetrics] = {}
        self._handlers = HandlerMetrics(
            self._hostname, [name for family in self._own_families() for name in family.taken_names]
        )

    def model(self, name: str, version: str) -> ModelMetrics:
        """The instruments of a model version, at zero when they are asked for the first time."""
        metrics = self._models.get((name, version))
        if metrics is None:
            metrics = self._models[name, version] = ModelMetrics(
                self._families,
                name,
                version,
                self._hostname,
                queue_time=self._queue_time,
                worker_thread_time=self._worker_thread_time,
                prediction_time=self._handlers.register(name),
            )
        return metrics

    def forget(self, name: str, version: str) -> None:
        """Takes the series of a model version away; with a model's last version also what its handlers recorded."""
        metrics = self._models.pop((name, version), None)
        if metrics is None:
            return
        last_version = all(other != name for other, _ in self._models)
        metrics.forget(last_version=last_version)
        if last_version:
            self._handlers.forget(name)

    def record_model_metrics(self, model_name: str, entries: Iterable[Any]) -> None:
        """Takes a `metrics` message of a worker of the model; entries that cannot be shown are logged and dropped."""
        self._handlers.record(model_name, entries)

    def set_host(self, name: str, value: float) -> None:
        """Sets one of HOST_GAUGES."""
        self._system[name].set(value)

    def set_gpu(self, name: str, device: int, value: float) -> None:
        """Sets one of GPU_GAUGES for the GPU with that number."""
        self._gpus[name].child({"Level": "Host", "DeviceId": str(device), "Hostname": self._hostname}).set(value)

    def expose(self, names: set[str] | None = None) -> bytes:
        """All series in Prometheus' text format 0.0.4; with `names` only the samples that are called so."""
        return expose([*self._own_families(), *self._handlers], names)

    def _own_families(self) -> Iterator[Family[Instrument]]:
        yield from self._host.values()
        yield from self._gpus.values()
        yield from self._families

    def _counter(self, name: str) -> Counter:
        family = Family(name, Counter, torchserve_description("counter", "Count"))
        self._host[name] = family
        return family.child(self._host_labels)

    def _gauge(self, name: str, unit: str) -> Gauge:
        family = Family(name, Gauge, torchserve_description("gauge", unit))
        self._host[name] = family
        return family.child(self._host_labels)
