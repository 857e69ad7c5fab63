"""Moves the sequences of a worker that is to leave to the other workers of its model, one by one.

Only the sequence that moves waits, and only between two of its steps; the others go on at their worker until it is
their turn. A large state is sent ahead while its sequence goes on; then only what has changed since moves. `Move` is
the life of one move; `ts.sequences.handover` is what the workers do.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

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
from ts.protocol.frames import Buffer
from ts.protocol.messages import (
    GIVE,
    GIVE_AHEAD,
    GIVES_AHEAD,
    MIGRATED,
    MOVE_FAILED,
    MOVE_REFUSALS,
    NO_SUCCESSOR,
    NOT_ENCODABLE,
    NOT_MIGRATED,
    TAKE,
)

logger = logging.getLogger(__name__)

#: How many sequences of a worker move simultaneously. The worker gives so many between two of its batches, and its
#: answers wait behind their states: with four of 10 MB steps waited five times as long as with two.
_AT_ONCE: Final = 2
#: Seconds between two looks whether streams are over, or sequences rest that are left as soon as they do.
_LOOK_INTERVAL: Final = 0.05
#: After how long a sequence is tried again that could not be left to a server which asks for it (seconds).
_ASK_AGAIN: Final = 1.0
#: Tells a worker that a copy which it has made is of no use; how long it may take to hear that (seconds).
_DROPPED: Final = -1
_DROP_LIMIT: Final = 5.0
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
_LARGE: Final = Refusal(MOVE_FAILED, "its state is to be sent ahead")


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


class Taker(Protocol):
    """What a sequence moves to: a worker, or what does as one."""

    @property
    def id(self) -> str:
        """Its name."""

    @property
    def ready(self) -> bool:
        """Whether it is up."""

    @property
    def takes_ahead(self) -> bool:
        """Whether it can have pieces of a state that may change before the sequence moves."""

    def send_state(self, sequence_id: str, piece: Buffer) -> None:
        """Send a piece of a sequence."""

    async def ask(self, kind: str, limit: float, *fields: Any) -> Any:
        """Return the answer to `TAKE`; None if there is none within ``limit`` seconds."""

    def end_sequence(self, sequence_id: str, reason: str, moment: float) -> None:
        """Drop what there is of a sequence."""


@dataclass(slots=True, eq=False)
class Move:
    """A sequence on its way, see `move`.

    Attributes:
        ahead: How many pieces of the state were sent ahead to the taker; 0 if they may be, None if they are not to be.
        is_at_taker: Whether the taker may have something of the sequence.
    """

    giver: Worker
    taker: Taker
    ahead: int | None = None
    is_at_taker: bool = False
    state: MoveState = ASKED

    def advance(self, event: MoveEvent) -> None:
        """Go on with an event."""
        self.state = MOVE_TRANSITIONS[self.state, event]


@dataclass(slots=True, eq=False)
class Ahead:
    """A large state of which a taker has a copy, or part of it, while the sequence goes on at the giver.

    Attributes:
        pieces: How many pieces the copy has; None until all were sent.
        is_at_taker: Whether one of them was sent.
    """

    giver: Worker
    taker: Taker
    to: Destination | None
    pieces: int | None = None
    is_at_taker: bool = False


class Destination(Protocol):
    """Where sequences go that leave their version on this server.

    Attributes:
        from_version: The version that they come from, if they become another one's.
    """

    from_version: str

    def successor(self) -> Taker | None:
        """Return what is to have the next sequence, None if there is nothing."""

    def refuses(self, sequence: sequences.Sequence, taker: Taker) -> Refusal | None:
        """Have a sequence that this taker has taken, unless something has changed meanwhile; then say what."""

    def take_over(self, job: Any) -> None:
        """Have a step that has waited."""

    def declined(self, refusal: Refusal) -> None:
        """Note that a taker does not take a sequence."""


class OtherVersion:
    """A version of the model that is to have the sequences of another one.

    Args:
        handover: Its own.
        from_version: The version that they come from.
        take_over: Lets it run a step that has waited.
    """

    def __init__(self, handover: Handover, from_version: str, take_over: Callable[[Any], None]) -> None:
        self._handover, self.from_version = handover, from_version
        self.take_over = take_over

    def successor(self) -> Taker | None:
        """Return one of its workers."""
        return self._handover.successor()

    def refuses(self, sequence: sequences.Sequence, taker: Taker) -> Refusal | None:
        """Open a sequence there, unless a step that waits names its version."""
        waiting: tuple[Any, ...] = sequence.queue
        if not all(job.may_be_handed_over for job in waiting):
            return _NAMED
        if not self._handover.adopts(sequence, taker):
            return _UNTAKEN
        self._handover.migrated(MIGRATED)
        return None

    def declined(self, refusal: Refusal) -> None:
        """Count a state that was not migrated."""
        if refusal is not _UNTAKEN:
            self._handover.migrated(NOT_MIGRATED)


class Handover:
    """The moves of the sequences of one model version.

    Args:
        workers: Those that are up, by id: a live view.
        perform: Performs what the scheduler asks for.
        until: Waits until something is so that events of the scheduler change, for so many seconds at most.
        now: The clock of the scheduler.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        workers: Mapping[str, Worker],
        perform: Callable[[Effects], None],
        until: Callable[[Callable[[], bool], float], Awaitable[object]],
        now: Callable[[], float],
        metrics: ModelMetrics,
    ) -> None:
        self._scheduler, self._workers, self._perform, self._now = scheduler, workers, perform, now
        self._until = until
        self._metrics = metrics
        #: Of the questions to workers: one that was answered too late may have been asked again by then.
        self._given = itertools.count()
        #: The moves that are under way, by the ids of the sequences.
        self.moves: dict[str, Move] = {}
        #: What was sent ahead of sequences that are to move next, by their ids.
        self.ahead: dict[str, Ahead] = {}
        #: What gets all sequences from now on, whatever they were to move to; None while nothing does.
        self.final: Destination | None = None
        #: What has become of the sequences that were left since they rested.
        self._vacated = Vacated()
        #: What has become of those that other servers have asked for, since that moment.
        self._asked, self._asked_at = Vacated(), 0.0

    async def vacate(self, worker: Worker, limit: float, to: Destination | None = None) -> Vacated:
        """Move the sequences of a worker, which gets no new ones from now on, within ``limit`` seconds.

        They go to other workers of their version, or to another destination. Those that cannot move go on there.
        """
        is_up = self._workers.get(worker.id) is worker  # else it has ended since this was begun
        waiting = deque(self._scheduler.vacate(worker.id) if is_up else ())
        vacated, clock = Vacated(), running_time()
        if not waiting:
            return vacated
        began = clock.now()
        await _at_once(partial(self._drain, worker, waiting, vacated, began + limit, to), len(waiting))
        text = "Worker %s has handed over %d sequences in %.2f s, each within %.3f s; %d stay%s"
        why = f": {vacated.why}" if vacated.stay else ""
        logger.info(text, worker.label, vacated.moved, clock.now() - began, vacated.longest, len(vacated.stay), why)
        return vacated

    @property
    def giving(self) -> Sequence[Worker]:
        """The workers whose sequences can move."""
        return [worker for worker in self._workers.values() if worker.hands_over]

    async def leave_resting(self, limit: float) -> None:
        """Move the sequences to `final`, each once it rests, within ``limit`` seconds.

        What cannot move goes on, and so does what runs or waits.
        """
        vacated, until = self._vacated, running_time().now() + limit
        while self._scheduler.open_sequences and running_time().now() < until:
            await self._leave_some(self._scheduler.sequences(), until, vacated)
            if self._scheduler.open_sequences:
                await asyncio.sleep(_LOOK_INTERVAL)
        if vacated.moved or vacated.stay:
            why = f": {vacated.why}" if vacated.stay else ""
            text = "%d sequences that rested are left to the next server; %d stay%s"
            logger.info(text, vacated.moved, len(vacated.stay), why)

    async def leave_wanted(self, sequence_ids: Iterable[str], limit: float, to: Destination) -> Sequence[str]:
        """Move those of these sequences to a destination that rest, within ``limit`` seconds.

        Return those of them that never can: their worker gives none, or cannot encode them. Another one that has not
        moved is not tried again for a second.
        """
        now = running_time().now()
        if now - self._asked_at >= _ASK_AGAIN:
            self._asked, self._asked_at = Vacated(), now
        asked = self._asked
        found = [sequence for each in sequence_ids if (sequence := self._scheduler.sequence(each)) is not None]
        await self._leave_some(found, now + limit, asked, to)
        never = [each.id for each in found if (why := asked.stay.get(each.id)) and why.reason == NOT_ENCODABLE]
        up = {worker.id: worker.hands_over for worker in self._workers.values()}
        return [*never, *(each.id for each in found if not up.get(each.lane.worker_id or "", True))]

    async def _leave_some(
        self, some: Iterable[sequences.Sequence], until: float, vacated: Vacated, to: Destination | None = None
    ) -> None:
        """Move those of some sequences that rest, and have not been found to be unable to."""
        workers = self.giving
        resting: dict[str | None, deque[sequences.Sequence]] = {worker.id: deque() for worker in workers}
        for sequence in some:
            if sequence.state is sequences.IDLE and sequence.id not in vacated.stay:
                resting.get(sequence.lane.worker_id, deque()).append(sequence)
        drains = []
        for worker in workers:
            its = resting[worker.id]
            drain = partial(self._drain, worker, its, vacated, until, to, resting=True)
            drains.append(_at_once(drain, len(its)))
        await asyncio.gather(*drains)

    def closed(self, sequence_id: str) -> None:
        """A sequence is over: if it was moving, the taker drops it before it gets a step of another one of this id."""
        if (move := self.moves.get(sequence_id)) is not None and (move.state, "closed") in MOVE_TRANSITIONS:
            self._end(move, sequence_id, "closed")
        self._drop_ahead(sequence_id)

    async def _drain(
        self,
        worker: Worker,
        waiting: deque[sequences.Sequence],
        vacated: Vacated,
        until: float,
        to: Destination | None,
        *,
        resting: bool = False,
    ) -> None:
        """Move those that wait one after another; with ``resting`` only those that rest when it is their turn."""
        while waiting and self._workers.get(worker.id) is worker:
            sequence = waiting.popleft()
            if sequence.state is sequences.CLOSED or sequence.lane.worker_id != worker.id:
                continue
            if resting and sequence.state is not sequences.IDLE:
                continue
            left = running_time().now()
            if not self._scheduler.leave(sequence):
                if left >= until:
                    await self._refuse(sequence, _STREAMS, vacated)
                else:
                    waiting.append(sequence)
                    await asyncio.sleep(_LOOK_INTERVAL)
                continue
            try:
                refusal = await self._leave(sequence, worker, until, to)
            finally:  # it has moved, or goes on where it is
                self._perform(self._scheduler.stay(sequence, self._now()))
            if refusal is _LARGE:
                refusal = await self._send_ahead(sequence, worker, until, to)
            if refusal is None:
                vacated.moved += 1
                vacated.longest = max(vacated.longest, running_time().now() - left)
                self._metrics.handover.moved.inc()
            elif refusal is _STREAMS and running_time().now() < until:
                waiting.append(sequence)
            elif refusal is _LARGE:
                waiting.appendleft(sequence)
            elif sequence.state is not sequences.CLOSED:
                await self._refuse(sequence, refusal, vacated)

    async def _refuse(self, sequence: sequences.Sequence, refusal: Refusal, vacated: Vacated) -> None:
        vacated.stay[sequence.id] = refusal
        self._metrics.handover.refused[refusal.reason].inc()
        if (ahead := self._drop_ahead(sequence.id)) is not None:
            await ahead.giver.ask(GIVE_AHEAD, _DROP_LIMIT, sequence.id, 0, _DROPPED)

    async def _leave(
        self, sequence: sequences.Sequence, giver: Worker, until: float, to: Destination | None
    ) -> Refusal | None:
        """Move a sequence that is to leave once it rests; return why it does not, None if it has moved."""
        while sequence.in_flight:
            if _streams(sequence):
                return _STREAMS
            if (left := until - running_time().now()) <= 0:
                return _BUSY
            await self._until(lambda: not sequence.in_flight or _streams(sequence), left)
        may_be_ahead = sequence.id not in self.ahead
        for _ in range(_MOST_TAKERS):
            if sequence.state is sequences.CLOSED:
                return _IS_OVER
            to = self.final or to
            move = self._move_ahead(sequence.id, giver, to)
            if move is None:
                taker = (self if to is None else to).successor()
                if taker is None:
                    return _NO_SUCCESSOR
                self._drop_ahead(sequence.id)  # what the giver has of it goes as it is asked to give
                move = Move(giver, taker, 0 if may_be_ahead and taker.takes_ahead else None)
            refusal = await self._move(sequence, move, until, to)
            if refusal is not _UNTAKEN:
                return refusal
            may_be_ahead = False
        return _UNTAKEN

    async def _send_ahead(
        self, sequence: sequences.Sequence, giver: Worker, until: float, to: Destination | None
    ) -> Refusal:
        """Send a large state as it is now to its next worker while the sequence goes on; else it moves whole.

        Return why it cannot move at all, otherwise `_LARGE`.
        """
        taker = (self if to is None else to).successor()
        if taker is None or not taker.takes_ahead or sequence.state is sequences.CLOSED:
            return _LARGE
        self.ahead[sequence.id] = ahead = Ahead(giver, taker, to)
        number = next(self._given)
        giver.relays[number] = partial(self._relay_ahead, sequence.id, ahead)
        try:
            await self._until(lambda: not sequence.in_flight, until - running_time().now())
            sent, wanted = 0, 1
            while sent < wanted and self.ahead.get(sequence.id) is ahead and taker.ready:
                given = await giver.ask(GIVE_AHEAD, until - running_time().now(), sequence.id, number, sent)
                if not _are_sizes(given, 2) or given[0] <= sent:
                    refusal = refusal_in(given)
                    return _LARGE if refusal.reason == MOVE_FAILED else refusal
                sent, wanted = given
            if sent >= wanted:
                ahead.pieces = sent
            return _LARGE
        finally:
            del giver.relays[number]

    def _relay_ahead(self, sequence_id: str, ahead: Ahead, piece: bytes) -> None:
        if self.ahead.get(sequence_id) is ahead:
            ahead.is_at_taker = True
            ahead.taker.send_state(sequence_id, piece)

    def _move_ahead(self, sequence_id: str, giver: Worker, to: Destination | None) -> Move | None:
        """Return a move to the worker that has the copy of a state which was sent ahead, None if there is none."""
        ahead = self.ahead.get(sequence_id)
        if ahead is None or ahead.pieces is None:
            return None
        if ahead.giver is not giver or ahead.to is not to or not ahead.taker.ready:
            return None
        del self.ahead[sequence_id]
        return Move(giver, ahead.taker, ahead.pieces, is_at_taker=True)

    def _drop_ahead(self, sequence_id: str) -> Ahead | None:
        """Let the taker drop what was sent ahead of a sequence; return what that was."""
        ahead = self.ahead.pop(sequence_id, None)
        if ahead is not None and ahead.is_at_taker:
            _drop(ahead.taker, sequence_id)
        return ahead

    def successor(self) -> Worker | None:
        """Return the worker that is to have the next sequence which moves, None if there is none."""
        return self._workers.get(self._scheduler.successor() or "")

    async def _move(
        self, sequence: sequences.Sequence, move: Move, until: float, to: Destination | None
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
            fields = sequence.id, given, version, move.ahead or 0
            taken = await move.taker.ask(TAKE, until - running_time().now(), *fields)
            if move.state is OVER:
                return _IS_OVER
            if taken != []:
                refusal = refusal_in(taken)
                move.is_at_taker = refusal is _UNTAKEN  # else it has said that it has nothing
                self._end(move, sequence.id, "declined")
                if to is not None:
                    to.declined(refusal)
                return refusal
            return self._arrive(sequence, move, to)
        finally:
            if self.moves.get(sequence.id) is move:  # else that of a later sequence of this id
                del self.moves[sequence.id]

    async def _give(self, sequence_id: str, move: Move, until: float) -> int | Refusal:
        """Pass the state of a sequence on to the taker; return its bytes, or why the giver does not give it."""
        number = next(self._given)
        move.giver.relays[number] = partial(self._relay, sequence_id, move)
        try:
            given = await move.giver.ask(GIVE, until - running_time().now(), sequence_id, number, move.ahead)
            if given == [GIVES_AHEAD]:
                return _LARGE
            return given[0] if _are_sizes(given, 1) else refusal_in(given, _UNGIVEN)
        finally:
            del move.giver.relays[number]

    @staticmethod
    def _relay(sequence_id: str, move: Move, piece: bytes) -> None:
        if move.state is not OVER:
            move.is_at_taker = True
            move.taker.send_state(sequence_id, piece)

    def _arrive(self, sequence: sequences.Sequence, move: Move, to: Destination | None) -> Refusal | None:
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

    def _change_hands(self, sequence: sequences.Sequence, move: Move, to: Destination) -> Refusal | None:
        """Let another destination have a sequence that it has taken, with the steps that wait."""
        if (refusal := to.refuses(sequence, move.taker)) is not None:
            self._end(move, sequence.id, "declined")
            return refusal
        move.advance("taken")
        jobs, effects = self._scheduler.give_up(sequence, self._now())
        self._perform(effects)  # which tell the giver to drop it
        for job in jobs:
            to.take_over(job)
        return None

    def migrated(self, outcome: str) -> None:
        """Count a sequence of another version that has come here, or could not."""
        self._metrics.migrations[outcome].inc()

    def adopts(self, sequence: sequences.Sequence, worker: Taker) -> bool:
        """Open a sequence of another version at a worker of this one; return False if that cannot be."""
        is_up = self._workers.get(worker.id) is worker
        return is_up and self._scheduler.adopt(sequence, worker.id, self._now())

    def _end(self, move: Move, sequence_id: str, event: MoveEvent) -> None:
        """End a move otherwise than by success: the taker drops what it may have of the sequence."""
        if move.is_at_taker:
            _drop(move.taker, sequence_id)
        move.advance(event)


async def _at_once(drain: Callable[[], Awaitable[None]], waiting: int) -> None:
    """Move some of the sequences that wait at once."""
    await asyncio.gather(*(drain() for _ in range(min(_AT_ONCE, waiting))))


def _streams(sequence: sequences.Sequence) -> bool:
    return any(job.state is STREAMING for job in sequence.in_flight)


def _are_sizes(given: Any, count: int) -> bool:
    return isinstance(given, list) and len(given) == count and all(isinstance(each, int) for each in given)


def refusal_in(answer: Any, otherwise: Refusal = _UNTAKEN) -> Refusal:
    """Return why a worker gives or takes a sequence not, as its answer has it."""
    match answer:
        case [str() as reason, str() as text] if reason in MOVE_REFUSALS:
            return Refusal(reason, text)
    return otherwise


def _drop(worker: Taker, sequence_id: str) -> None:
    """Let a worker drop a sequence that goes on at another one; its handler learns that as with a store."""
    worker.end_sequence(sequence_id, CloseReason.suspended.value, boot_time())
