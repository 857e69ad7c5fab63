"""Outcomes and durations of a model version's jobs, in more detail than the metrics at `/metrics` have.

Plain numbers, added to on the hot path: one event loop is their only writer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from torchserve_py.scheduling.effects import Cause

#: The cause of an answer that is an error of the handler, or of the worker on its behalf.
HANDLER_ERROR: Final = "handler_error"

#: Positions in a result row, see `ts.protocol.messages.ResultRow`.
_MORE: Final = 1
_ERROR: Final = 6


@dataclass(slots=True)
class Outcomes:
    """Sums since the model was registered; times are seconds.

    succeeded          jobs that were answered
    succeeded_seconds  how long they took, from admission to the last part
    running_seconds    how much of that time they spent in a worker
    failed             jobs that were refused, failed, or were given up by their client
    failures           the same by cause
    failed_seconds     how long they took
    last_at            when the last job ended (monotonic); 0 if none has
    executions         how often the handler answered so many jobs at once without an error, and how long that took
    """

    succeeded: int = 0
    succeeded_seconds: float = 0.0
    running_seconds: float = 0.0
    failed: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    failed_seconds: float = 0.0
    last_at: float = 0.0
    executions: dict[int, tuple[int, float]] = field(default_factory=dict)

    def answered(self, submitted_at: float, sent_at: float, now: float) -> None:
        """Count a job that has its last part."""
        self.succeeded += 1
        self.succeeded_seconds += now - submitted_at
        self.running_seconds += now - sent_at
        self.last_at = now

    def went_wrong(self, cause: Cause | None, submitted_at: float, now: float) -> None:
        """Count a job that has ended in any other way; ``cause`` is None for an error that its handler answered."""
        self.failed += 1
        name = HANDLER_ERROR if cause is None else cause.value
        self.failures[name] = self.failures.get(name, 0) + 1
        self.failed_seconds += now - submitted_at
        self.last_at = now

    def executed(self, rows: Sequence[Sequence[Any]], seconds: float) -> None:
        """The handler has run for that long and given these rows; errors, and parts but the last, do not count."""
        answered = [row[_MORE] or row[_ERROR] is not None for row in rows].count(False)
        if answered:
            count, total = self.executions.get(answered, (0, 0.0))
            self.executions[answered] = count + 1, total + seconds
