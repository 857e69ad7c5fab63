"""Where the states of sequences are: on the device, in the host's memory, in a store; and how often they move.

The model's metrics say it, once a second at most: `StateBytes` and `StateSequences` by tier, `StateMoves` from a tier
to another one, `StateHits` and `StateMisses` of a tier that was looked at.
"""

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from ts.metrics.dimension import Dimension
from ts.metrics.metric_type_enum import MetricTypes

DEVICE, HOST, STORE, LOST = "device", "host", "store", "lost"
#: The least time between two reports (seconds).
_INTERVAL: Final = 1.0


class TierContent(NamedTuple):
    """What is in a tier."""

    sequences: int
    size: int  # bytes


class Tiers:
    """Counts what happens between two reports."""

    def __init__(self) -> None:
        self._moves: Counter[tuple[str, str]] = Counter()
        self._found: Counter[tuple[str, str]] = Counter()
        self._next = 0.0

    def moved(self, source: str, target: str, count: int = 1) -> None:
        """Count states that have moved from a tier to another one."""
        self._moves[source, target] += count

    def looked(self, tier: str, hits: int, misses: int) -> None:
        """Count states that steps have needed, and that were in a tier or were not."""
        if hits:
            self._found["StateHits", tier] += hits
        if misses:
            self._found["StateMisses", tier] += misses

    @property
    def is_due(self) -> bool:
        """Whether it is time to report."""
        return time.monotonic() >= self._next

    def report(self, metrics: Any, held: Mapping[str, TierContent]) -> None:
        """Add what was counted to a `ts.metrics.metrics_cache.MetricsCache`, and what is held by tier."""
        self._next = time.monotonic() + _INTERVAL
        for tier, (sequences, size) in held.items():
            where = [Dimension("Tier", tier)]
            metrics.add_metric("StateSequences", sequences, "count", None, where, MetricTypes.GAUGE)
            metrics.add_size("StateBytes", size, unit="B", dimensions=where)
        for (source, target), count in self._moves.items():
            metrics.add_counter("StateMoves", count, dimensions=[Dimension("From", source), Dimension("To", target)])
        for (name, tier), count in self._found.items():
            metrics.add_counter(name, count, dimensions=[Dimension("Tier", tier)])
        self._moves.clear()
        self._found.clear()
