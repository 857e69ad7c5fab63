"""What is remembered of sequences that are not open: those whose state is gone, and those whose state is stored."""

import math
from collections import OrderedDict
from collections.abc import Mapping

from torchserve_py.scheduling.effects import Cause, EndReason
from torchserve_py.scheduling.sequence import IDLE, Sequence

REMEMBERED_IDS = 100_000
REMEMBERED_SECONDS = 3600.0

REFUSALS = {
    EndReason.idle: Cause.sequence_expired,
    EndReason.timeout: Cause.sequence_expired,
    EndReason.evicted: Cause.sequence_lost,
    EndReason.worker_lost: Cause.sequence_lost,
}
#: The same for sequences that nothing begins anew after their end.
ENDS = {EndReason.ended: Cause.sequence_ended}


class ClosedIds:
    """Id -> why a job that continues that sequence is refused; bounded in number and time, the oldest goes first.

    The causes are kept as text: the collector does not look at tuples that hold nothing but text and numbers.
    Sequences that ended for a reason without a refusal are not remembered.
    """

    __slots__ = ("_ids", "_refusals")

    def __init__(self, refusals: Mapping[EndReason, Cause] = REFUSALS) -> None:
        self._refusals = refusals
        self._ids: OrderedDict[str | None, tuple[str, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._ids)

    def remember(self, sequence_id: str, reason: EndReason, now: float) -> None:
        """Remember why the sequence closed, if that refuses jobs; other sequences may begin anew."""
        if (cause := self._refusals.get(reason)) is None:
            return
        self._ids[sequence_id] = (cause.value, now)
        self._ids.move_to_end(sequence_id)
        while len(self._ids) > REMEMBERED_IDS or now - next(iter(self._ids.values()))[1] > REMEMBERED_SECONDS:
            self._ids.popitem(last=False)

    def remember_all_of(self, earlier: "ClosedIds", now: float) -> None:
        """Remember what an earlier version of the model remembered."""
        for sequence_id, (cause, _) in earlier._ids.items():
            self._ids[sequence_id] = (cause, now)

    def refusal(self, sequence_id: str | None, now: float) -> Cause | None:
        """Return why a job that continues this sequence is refused, or None if it is not."""
        cause, closed_at = self._ids.get(sequence_id, ("", -math.inf))
        return Cause(cause) if now - closed_at <= REMEMBERED_SECONDS else None

    def forget(self, sequence_id: str) -> None:
        """Forget an id that is open again."""
        self._ids.pop(sequence_id, None)


class SuspendedIds:
    """Sequences that are not open, but whose states are stored; their idle time runs.

    Bounded in number, the oldest goes first: the store knows nearly the same about those.
    """

    __slots__ = ("_ids",)

    def __init__(self) -> None:
        self._ids: OrderedDict[str | None, tuple[float, float]] = OrderedDict()  # keyed as jobs are

    def remember(self, sequence: Sequence, now: float) -> None:
        """Remember a sequence that leaves its worker, or had none; its next job opens it again."""
        idle_since = sequence.idle_since if sequence.state is IDLE else now
        self._ids[sequence.id] = (sequence.active_since, idle_since + sequence.lane.max_idle)
        self._ids.move_to_end(sequence.id)
        if len(self._ids) > REMEMBERED_IDS:
            self._ids.popitem(last=False)

    def asked_for(self, sequence_id: str | None, now: float, max_idle: float) -> None:
        """A job of the sequence was refused because there is no worker: until now the sequence was not idle."""
        active_since, idle_at = self._ids.get(sequence_id, (now, now))
        if now < idle_at:
            self._ids[sequence_id] = (active_since, now + max_idle)

    def take(self, sequence_id: str | None, now: float) -> float:
        """Forget a sequence that opens again; return since when it is known not to have been idle for too long."""
        active_since, idle_at = self._ids.pop(sequence_id, (now, now))
        return active_since if now < idle_at else now
