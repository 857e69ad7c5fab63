"""What is remembered of closed sequences: whose next job must hear that the state is gone, and which only rest."""

from collections import OrderedDict

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


class ClosedIds:
    """Id -> why a job that continues that sequence is refused; bounded in number and time, the oldest goes first."""

    __slots__ = ("_ids",)

    def __init__(self) -> None:
        self._ids: OrderedDict[str | None, tuple[Cause, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._ids)

    def remember(self, sequence_id: str, reason: EndReason, now: float) -> None:
        """The sequence closed for this reason; one that simply ended may begin anew and is not remembered."""
        if (cause := REFUSALS.get(reason)) is None:
            return
        self._ids[sequence_id] = (cause, now)
        self._ids.move_to_end(sequence_id)
        while len(self._ids) > REMEMBERED_IDS or now - next(iter(self._ids.values()))[1] > REMEMBERED_SECONDS:
            self._ids.popitem(last=False)

    def refusal(self, sequence_id: str | None, now: float) -> Cause | None:
        """Why a job that continues this sequence is refused; None if nothing is known against it."""
        cause, closed_at = self._ids.get(sequence_id, (None, now))
        return cause if now - closed_at <= REMEMBERED_SECONDS else None

    def forget(self, sequence_id: str) -> None:
        """The id is open again."""
        self._ids.pop(sequence_id, None)


class SuspendedIds:
    """Sequences whose states are stored and that are open nowhere in this server at present, though their time runs.

    Bounded in number, the oldest goes first: of those the store knows nearly as well.
    """

    __slots__ = ("_ids",)

    def __init__(self) -> None:
        self._ids: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def remember(self, sequence: Sequence, now: float) -> None:
        """The sequence leaves its worker, or never came to one; its next job opens it again."""
        idle_since = sequence.idle_since if sequence.state is IDLE else now
        self._ids[sequence.id] = (sequence.active_since, idle_since + sequence.max_idle)
        self._ids.move_to_end(sequence.id)
        if len(self._ids) > REMEMBERED_IDS:
            self._ids.popitem(last=False)

    def take(self, sequence_id: str, now: float) -> float:
        """Since when a sequence that opens again is known not to have been idle for too long; forget it."""
        active_since, idle_at = self._ids.pop(sequence_id, (now, now))
        return active_since if now < idle_at else now
