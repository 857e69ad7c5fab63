"""Outcomes and durations of a model version's jobs, in more detail than the metrics at `/metrics` have.

Plain numbers, added to on the hot path: one event loop is their only writer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

#: Where these are in a result row, see `ts.protocol.messages.ResultRow`.
_MORE: Final = 1
_ERROR: Final = 6


class Outcomes:
    """Sums since the model was registered; times are seconds.

    Attributes:
        succeeded: Jobs that were answered.
        succeeded_seconds: What they took, from admission to the last part.
        running_seconds: What of that they spent in a worker.
        failed: Jobs that were refused, failed, or were given up by their client.
        failed_seconds: What they took.
        last_at: When the last one ended (monotonic), 0 if none has.
        executions: By how many jobs the handler answered at once without an error: how often, and what it took.
    """

    __slots__ = (
        "executions",
        "failed",
        "failed_seconds",
        "last_at",
        "running_seconds",
        "succeeded",
        "succeeded_seconds",
    )

    def __init__(self) -> None:
        self.succeeded = 0
        self.succeeded_seconds = 0.0
        self.running_seconds = 0.0
        self.failed = 0
        self.failed_seconds = 0.0
        self.last_at = 0.0
        self.executions: dict[int, tuple[int, float]] = {}

    def answered(self, submitted_at: float, sent_at: float, now: float) -> None:
        """A job has its last part."""
        self.succeeded += 1
        self.succeeded_seconds += now - submitted_at
        self.running_seconds += now - sent_at
        self.last_at = now

    def went_wrong(self, submitted_at: float, now: float) -> None:
        """A job has ended in any other way."""
        self.failed += 1
        self.failed_seconds += now - submitted_at
        self.last_at = now

    def executed(self, rows: Sequence[Sequence[Any]], seconds: float) -> None:
        """The handler has run for that long and given these rows; errors, and parts but the last, do not count."""
        answered = [row[_MORE] or row[_ERROR] is not None for row in rows].count(False)
        if answered:
            count, total = self.executions.get(answered, (0, 0.0))
            self.executions[answered] = count + 1, total + seconds
