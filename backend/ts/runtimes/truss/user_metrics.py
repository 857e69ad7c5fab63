"""The Prometheus metrics that a model keeps in the default registry, as text."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Final

#: What the package itself puts into the registry.
_READY_MADE: Final = ("PROCESS_COLLECTOR", "PLATFORM_COLLECTOR", "GC_COLLECTOR")


def own_metrics() -> bytes:
    """Return the metrics of the model's own: nothing of the process, the platform and the garbage collector.

    Raises:
        Exception: A collector of the model has failed.
    """
    # The model has metrics only if it has imported the package.
    prometheus: Any = sys.modules.get("prometheus_client")
    text: bytes = b"" if prometheus is None else prometheus.generate_latest(_OwnMetrics(prometheus))
    return text


class _OwnMetrics:
    """The default registry without what the package itself has put there, and without times of creation."""

    def __init__(self, prometheus: Any) -> None:
        self._prometheus = prometheus

    def collect(self) -> Iterator[Any]:
        """Yield the families that are the model's."""
        ready_made = [getattr(self._prometheus, name) for name in _READY_MADE]
        names = {family.name for collector in ready_made for family in collector.collect()}
        for family in self._prometheus.REGISTRY.collect():
            if family.name not in names:
                family.samples = [sample for sample in family.samples if sample.name != f"{family.name}_created"]
                yield family
