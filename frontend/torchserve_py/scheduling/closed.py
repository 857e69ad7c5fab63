"""What is remembered of closed sequences: whose next job must hear that the state is gone, and which only rest."""

from collections import OrderedDict

from torchserve_py.scheduling.effects import Cause, EndReason

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
    """Until when sequences whose states are stored may be idle that are open nowhere in this server at present.

    Bounded in number, the oldest goes first: of those the store knows nearly as well.
    """

    __slots__ = ("_ids", "_max_idle")

    def __init__(self, max_idle: float) -> None:
        self._ids: OrderedDict[str, float] = OrderedDict()
        self._max_idle = max_idle

    def remember(self, sequence_id: str, idle_since: float) -> None:
        """The sequence goes on with its next job; it has been idle since then."""
        self._ids[sequence_id] = idle_since + self._max_idle
        self._ids.move_to_end(sequence_id)
        if len(self._ids) > REMEMBERED_IDS:
            self._ids.popitem(last=False)

    def take(self, sequence_id: str, now: float) -> bool:
        """Whether a sequence that opens again is known not to have been idle for too long; forget it."""
        idle_until = self._ids.pop(sequence_id, None)
        return idle_until is not None and now <= idle_until
