"""How the jobs of a model version ended, and what they took: what the metrics at `/metrics` do not tell apart.

Plain numbers, added to on the hot path: one event loop is their only writer.
"""

from __future__ import annotations


class Outcomes:
    """Sums since the model was registered; times are seconds.

    Attributes:
        succeeded: Jobs that were answered.
        succeeded_seconds: What they took, from admission to the last part.
        running_seconds: What of that they spent in a worker.
        failed: Jobs that were refused, failed, or were given up by their client.
        failed_seconds: What they took.
        last_at: When the last one ended (monotonic), 0 if none has.
        executions: By how many rows the handler gave answers for at once: how often, and what it took.
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

    def executed(self, rows: int, seconds: float) -> None:
        """The handler has run for that long and given answers for so many rows."""
        count, total = self.executions.get(rows, (0, 0.0))
        self.executions[rows] = count + 1, total + seconds
