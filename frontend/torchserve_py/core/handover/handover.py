"""Moves the sequences of a worker that is to leave to the other workers of its model, one by one.

Only the sequence that moves waits, and only between two of its steps; the others go on at their worker until it is
their turn. `Move` is the life of one move; `ts.sequences.handover` is what the workers do.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

from torchserve_py.base.causes import CloseReason
from torchserve_py.base.metrics.model_metrics import ModelMetrics
from torchserve_py.core.handover.move import ASKED, MOVE_TRANSITIONS, OVER, MoveEvent, MoveState
from torchserve_py.core.scheduling import sequence as sequences
from torchserve_py.core.scheduling.effects import Effects
from torchserve_py.core.scheduling.job import STREAMING
from torchserve_py.core.scheduling.scheduler import Scheduler
from torchserve_py.core.workers.worker import Worker
from torchserve_py.net.running_time import running_time
from ts.protocol.boot_clock import boot_time
from ts.protocol.messages import GIVE, MIGRATED, MOVE_FAILED, MOVE_REFUSALS, NO_SUCCESSOR, NOT_MIGRATED, TAKE

logger = logging.getLogger(__name__)

#: How many sequences of a worker move simultaneously. The worker gives so many between two of its batches, and its
#: answers wait behind their states: with four of 10 MB steps waited five times as long as with two.
_AT_ONCE: Final = 2
#: Seconds between two looks whether the step is over that a sequence waits for, and whether its stream is.
_STEP_INTERVAL: Final = 0.002
_STREAM_INTERVAL: Final = 0.05
#: How many workers a sequence is offered to, if each of them leaves or dies meanwhile.
_MOST_TAKERS: Final = 3


class Refusal(NamedTuple):
    """Why a sequence stays at its worker: a reason, see `ts.protocol.messages.NOT_ENCODABLE`, and a text for people."""

    reason: str
    text: str


_IS_OVER: Final = Refusal(MOVE_FAILED, "it is over")
_STREAMS: Final = Refusal(MOVE_FAILED, "its stream lasted too long")
_BUSY: Final = Refusal(MOVE_FAILED, "its step took too long")
_NAMED: Final = Refusal(MOVE_FAILED, "a client names its version")
_NO_SUCCESSOR: Final = Refusal(NO_SUCCESSOR, "no other worker is ready that takes sequences")
_UNTAKEN: Final = Refusal(MOVE_FAILED, "the other worker ended, or gave no answer in time")
_UNGIVEN: Final = Refusal(MOVE_FAILED, "its worker ended, or gave no answer in time")


@dataclass(slots=True)
class Vacated:
    """What has become of the sequences of a worker that is to leave.

    Attributes:
        moved: How many go on at other workers.
        stay: Why others do not, by their ids.
        longest: The longest time that one of those that have moved could run no step (seconds).
    """

    moved: int = 0
    stay: dict[str, Refusal] = field(default_factory=dict)
    longest: float = 0.0

    @property
    def why(self) -> str:
        """Why sequences stay, for people; empty if none does."""
        counts = Counter(refusal.text for refusal in self.stay.values())
        return "; ".join(f"{count}: {text}" for text, count in counts.most_common(3))


@dataclass(slots=True, eq=False)
class Move:
    """A sequence on its way, see `move`.

    Attributes:
        is_at_taker: Whether the taker may have something of the sequence.
    """

    giver: Worker
    taker: Worker
    state: MoveState = ASKED
    is_at_taker: bool = False

    def advance(self, event: MoveEvent) -> None:
        """Go on with an event."""
        self.state = MOVE_TRANSITIONS[self.state, event]


class OtherVersion(NamedTuple):
    """A version of the model that is to have the sequences of another one.

    Attributes:
        handover: Its own.
        from_version: The version that they come from.
        take_over: Lets it run a step that has waited.
    """

    handover: Handover
    from_version: str
    take_over: Callable[[Any], None]


class Handover:
    """The moves of the sequences of one model version.

    Args:
        workers: Those that are up, by id: a live view.
        perform: Performs what the scheduler asks for.
        now: The clock of the scheduler.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        workers: Mapping[str, Worker],
        perform: Callable[[Effects], None],
        now: Callable[[], float],
        metrics: ModelMetrics,
    ) -> None:
        self._scheduler, self._workers, self._perform, self._now = scheduler, workers, perform, now
        self._metrics = metrics
        #: The moves that are under way, by the ids of the sequences.
        self.moves: dict[str, Move] = {}

    async def vacate(self, worker: Worker, limit: float, to: OtherVersion | None = None) -> Vacated:
        """Move the sequences of a worker, which gets no new ones from now on, within ``limit`` seconds.

        They go to other workers of their version, or to those of another one. Those that cannot move go on there.
        """
        waiting = deque(self._scheduler.vacate(worker.id))
        vacated, clock = Vacated(), running_time()
        if not waiting:
            return vacated
        began = clock.now()
        drain = partial(self._drain, worker, waiting, vacated, began + limit, to)
        drains = [drain() for _ in range(min(_AT_ONCE, len(waiting)))]
        await asyncio.gather(*drains)
        text = "Worker %s has handed over %d sequences in %.2f s, each within %.3f s; %d stay%s"
        why = f": {vacated.why}" if vacated.stay else ""
        logger.info(text, worker.label, vacated.moved, clock.now() - began, vacated.longest, len(vacated.stay), why)
        return vacated

    def closed(self, sequence_id: str) -> None:
        """A sequence is over: if it was moving, the taker drops it before it gets a step of another one of this id."""
        if (move := self.moves.get(sequence_id)) is not None and (move.state, "closed") in MOVE_TRANSITIONS:
            self._end(move, sequence_id, "closed")

    async def _drain(
        self,
        worker: Worker,
        waiting: deque[sequences.Sequence],
        vacated: Vacated,
        until: float,
        to: OtherVersion | None,
    ) -> None:
        while waiting and self._workers.get(worker.id) is worker:
            sequence = waiting.popleft()
            if sequence.state is sequences.CLOSED or sequence.lane.worker_id != worker.id:
                continue
            left = running_time().now()
            if not self._scheduler.leave(sequence):
                if left >= until:
                    self._refuse(sequence, _STREAMS, vacated)
                else:
                    waiting.append(sequence)
                    await asyncio.sleep(_STREAM_INTERVAL)
                continue
            try:
                refusal = await self._leave(sequence, worker, until, to)
            finally:  # it has moved, or goes on where it is
                self._perform(self._scheduler.stay(sequence, self._now()))
            if refusal is None:
                vacated.moved += 1
                vacated.longest = max(vacated.longest, running_time().now() - left)
                self._metrics.handover.moved.inc()
            elif refusal is _STREAMS and running_time().now() < until:
                waiting.append(sequence)
            elif sequence.state is not sequences.CLOSED:
                self._refuse(sequence, refusal, vacated)

    def _refuse(self, sequence: sequences.Sequence, refusal: Refusal, vacated: Vacated) -> None:
        vacated.stay[sequence.id] = refusal
        self._metrics.handover.refused[refusal.reason].inc()

    async def _leave(
        self, sequence: sequences.Sequence, giver: Worker, until: float, to: OtherVersion | None
    ) -> Refusal | None:
        """Move a sequence that is to leave once it rests; return why it does not, None if it has moved."""
        while sequence.in_flight:
            if any(job.state is STREAMING for job in sequence.in_flight):
                return _STREAMS
            if running_time().now() >= until:
                return _BUSY
            await asyncio.sleep(_STEP_INTERVAL)
        for _ in range(_MOST_TAKERS):
            if sequence.state is sequences.CLOSED:
                return _IS_OVER
            taker = (self if to is None else to.handover).successor()
            if taker is None:
                return _NO_SUCCESSOR
            refusal = await self._move(sequence, Move(giver, taker), until, to)
            if refusal is not _UNTAKEN:
                return refusal
        return _UNTAKEN

    def successor(self) -> Worker | None:
        """Return the worker that is to have the next sequence which moves, None if there is none."""
        return self._workers.get(self._scheduler.successor() or "")

    async def _move(
        self, sequence: sequences.Sequence, move: Move, until: float, to: OtherVersion | None
    ) -> Refusal | None:
        """Move a sequence that rests; return why it does not, None if it has moved."""
        self.moves[sequence.id] = move
        try:
            if not sequence.has_state:  # none of its steps has run
                move.advance("given")
                return self._arrive(sequence, move, to)
            given = await self._give(sequence.id, move, until)
            if move.state is OVER:
                return _IS_OVER
            if isinstance(given, Refusal):
                self._end(move, sequence.id, "refused")
                return given
            move.advance("given")
            version = "" if to is None else to.from_version
            taken = await move.taker.ask(TAKE, until - running_time().now(), sequence.id, given, version)
            if move.state is OVER:
                return _IS_OVER
            if taken != []:
                refusal = _refusal_in(taken, _UNTAKEN)
                move.is_at_taker = refusal is _UNTAKEN  # else it has said that it has nothing
                self._end(move, sequence.id, "declined")
                if to is not None and refusal is not _UNTAKEN:
                    to.handover.migrated(NOT_MIGRATED)
                return refusal
            return self._arrive(sequence, move, to)
        finally:
            if self.moves.get(sequence.id) is move:  # else that of a later sequence of this id
                del self.moves[sequence.id]

    async def _give(self, sequence_id: str, move: Move, until: float) -> int | Refusal:
        """Pass the state of a sequence on to the taker; return its bytes, or why the giver does not give it."""
        relay = move.giver.relays[sequence_id] = partial(self._relay, sequence_id, move)
        try:
            given = await move.giver.ask(GIVE, until - running_time().now(), sequence_id)
            return given[0] if _is_size(given) else _refusal_in(given, _UNGIVEN)
        finally:
            if move.giver.relays.get(sequence_id) is relay:
                del move.giver.relays[sequence_id]

    @staticmethod
    def _relay(sequence_id: str, move: Move, piece: bytes) -> None:
        if move.state is not OVER:
            move.is_at_taker = True
            move.taker.send_state(sequence_id, piece)

    def _arrive(self, sequence: sequences.Sequence, move: Move, to: OtherVersion | None) -> Refusal | None:
        """Let a sequence go on at the worker that has taken it, unless that is to leave or gone meanwhile."""
        if to is not None:
            return self._change_hands(sequence, move, to)
        effects: Effects | None = None
        if self._workers.get(move.taker.id) is move.taker:
            effects = self._scheduler.arrive(sequence, move.taker.id, self._now())
        if effects is None:
            self._end(move, sequence.id, "declined")
            return _UNTAKEN
        move.advance("taken")
        _drop(move.giver, sequence.id)
        self._perform(effects)
        return None

    def _change_hands(self, sequence: sequences.Sequence, move: Move, to: OtherVersion) -> Refusal | None:
        """Let another version have a sequence that one of its workers has taken, with the steps that wait."""
        waiting: tuple[Any, ...] = sequence.queue
        if not all(job.may_be_handed_over for job in waiting):
            self._end(move, sequence.id, "declined")
            return _NAMED
        if not to.handover.adopts(sequence, move.taker):
            self._end(move, sequence.id, "declined")
            return _UNTAKEN
        move.advance("taken")
        jobs, effects = self._scheduler.give_up(sequence, self._now())
        self._perform(effects)  # which tell the giver to drop it
        for job in jobs:
            to.take_over(job)
        to.handover.migrated(MIGRATED)
        return None

    def migrated(self, outcome: str) -> None:
        """Count a sequence of another version that has come here, or could not."""
        self._metrics.migrations[outcome].inc()

    def adopts(self, sequence: sequences.Sequence, worker: Worker) -> bool:
        """Open a sequence of another version at a worker of this one; return False if that cannot be."""
        is_up = self._workers.get(worker.id) is worker
        return is_up and self._scheduler.adopt(sequence, worker.id, self._now())

    def _end(self, move: Move, sequence_id: str, event: MoveEvent) -> None:
        """End a move otherwise than by success: the taker drops what it may have of the sequence."""
        if move.is_at_taker:
            _drop(move.taker, sequence_id)
        move.advance(event)


def _is_size(given: Any) -> bool:
    return isinstance(given, list) and len(given) == 1 and isinstance(given[0], int)


def _refusal_in(answer: Any, otherwise: Refusal) -> Refusal:
    """Return why a worker gives or takes a sequence not, as its answer has it."""
    match answer:
        case [str() as reason, str() as text] if reason in MOVE_REFUSALS:
            return Refusal(reason, text)
    return otherwise


def _drop(worker: Worker, sequence_id: str) -> None:
    """Let a worker drop a sequence that goes on at another one; its handler learns that as with a store."""
    worker.end_sequence(sequence_id, CloseReason.suspended.value, boot_time())
