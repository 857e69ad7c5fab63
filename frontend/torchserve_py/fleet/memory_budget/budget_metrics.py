"""How the budget is used, and how models come and go, as metrics."""

import socket
from collections.abc import Callable
from typing import Final

from torchserve_py.base.metrics.catalog import SECONDS_BOUNDS
from torchserve_py.base.metrics.families import Family
from torchserve_py.base.metrics.instruments import Counter, Gauge, Histogram
from torchserve_py.base.metrics.server_metrics import ServerMetrics

_MODEL: Final = "model_name", "model_version"


class BudgetMetrics:
    """The series of one server; those of a model begin when something happens to it."""

    def __init__(self, metrics: ServerMetrics) -> None:
        self._hostname = socket.gethostname()
        add = metrics.add
        self._total = add(Family("ts_memory_budget_bytes", Gauge, "Bytes", "Memory that all workers may have together"))
        self._used = add(
            Family("ts_memory_budget_used_bytes", Gauge, "Bytes", "Memory that workers have, or get while they load")
        )
        self._loads = add(Family("ts_model_loads_total", Counter, "Count", "Workers that have loaded a model"))
        self._evictions = add(
            Family("ts_model_evictions_total", Counter, "Count", "Times that a model was unloaded to make room")
        )
        self._sleeps = add(
            Family("ts_model_sleeps_total", Counter, "Count", "Times that a model fell asleep to make room")
        )
        seconds: Callable[[], Histogram] = lambda: Histogram(SECONDS_BOUNDS)  # noqa: E731
        self._wakes = add(
            Family("ts_model_wake_seconds", seconds, "Seconds", "Seconds that the handler of a model took to wake")
        )
        self._misses = add(
            Family("ts_model_misses_total", Counter, "Count", "Requests that came while their model was not loaded")
        )
        self._room = add(
            Family(
                "ts_memory_room_seconds", seconds, "Seconds", "Seconds that a worker waited for room before it started"
            )
        ).child({"hostname": self._hostname})

    def resource(self, name: str, total: int, used: Callable[[], float]) -> None:
        """Show a resource of the budget."""
        labels = {"resource": name, "hostname": self._hostname}
        self._total.child(labels).set(total)
        self._used.child(labels).read_from(used)

    def loaded(self, name: str, version: str) -> None:
        """A worker has loaded the model."""
        self._loads.child(self._labels(name, version)).inc()

    def evicted(self, name: str, version: str) -> None:
        """The model makes room."""
        self._evictions.child(self._labels(name, version)).inc()

    def slept(self, name: str, version: str) -> None:
        """The model has fallen asleep."""
        self._sleeps.child(self._labels(name, version)).inc()

    def woken(self, name: str, version: str, seconds: float) -> None:
        """The model has woken, for which its handler took so long."""
        self._wakes.child(self._labels(name, version)).observe(seconds)

    def missed(self, name: str, version: str) -> None:
        """A request has come while the model was not loaded."""
        self._misses.child(self._labels(name, version)).inc()

    def waited(self, seconds: float) -> None:
        """A worker has got room after so long."""
        self._room.observe(seconds)

    def forget(self, name: str, version: str) -> None:
        """Take the series of a model version away."""
        for family in (self._loads, self._evictions, self._sleeps, self._wakes, self._misses):
            family.remove(self._labels(name, version))

    def _labels(self, name: str, version: str) -> dict[str, str]:
        return dict(zip((*_MODEL, "hostname"), (name, version, self._hostname), strict=True))
