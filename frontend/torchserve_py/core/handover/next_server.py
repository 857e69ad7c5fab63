"""The next server with the storage of this one: it gets the sequences in memory when a server stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, NamedTuple

from torchserve_py.base.background_tasks import in_background
from torchserve_py.base.causes import Cause, CloseReason
from torchserve_py.base.metrics.model_metrics import ModelMetrics
from torchserve_py.core.handover.handover import Handover, Refusal, refusal_in
from torchserve_py.core.handover.left_format import Damaged, Left
from torchserve_py.core.handover.left_sequences import LeftSequences
from torchserve_py.core.scheduling.effects import Effects
from torchserve_py.core.scheduling.scheduler import Scheduler
from torchserve_py.core.scheduling.sequence import CLOSED, Sequence
from torchserve_py.core.scheduling.sequence_source import LeftSequence
from torchserve_py.core.workers.worker import Worker
from ts.protocol.boot_clock import boot_time
from ts.protocol.frames import Buffer
from ts.protocol.messages import MOVE_FAILED, NOT_ENCODABLE, STATE_PIECE, TAKE

logger = logging.getLogger(__name__)

#: How long a worker may take to have a sequence, and another server to leave it (seconds).
_TAKE_LIMIT: Final = 10.0
_WAIT_LIMIT: Final = 30.0
#: Seconds between two attempts to read what another server has left.
_READ_AGAIN: Final = 0.2


class NextServer:
    """Takes sequences as a worker does, see `handover.Taker`, and writes them to files.

    Args:
        scheduler: The one that has them.
        now: Its clock.
        take_over: Gets the steps that have waited.
    """

    id = "next server"
    ready = True
    takes_ahead = False
    from_version = ""

    def __init__(
        self,
        left: LeftSequences,
        version: str,
        scheduler: Scheduler,
        now: Callable[[], float],
        take_over: Callable[[Any], None],
    ) -> None:
        self._left, self._version = left, version
        self._scheduler, self._now = scheduler, now
        self.take_over = take_over
        self._pieces: dict[str, list[bytes]] = {}
        self._written = set[str]()

    def successor(self) -> NextServer:
        """Return this."""
        return self

    def send_state(self, sequence_id: str, piece: Buffer) -> None:
        """Keep a piece of a sequence."""
        self._pieces.setdefault(sequence_id, []).append(bytes(piece))

    async def ask(self, kind: str, limit: float, *fields: Any) -> Any:
        """Write a sequence of which all pieces have come; return as a worker does that was asked to `TAKE` it."""
        sequence_id, size, *_ = fields
        pieces, sequence = self._pieces.pop(sequence_id, []), self._scheduler.sequence(sequence_id)
        if sequence is None or sum(map(len, pieces)) != size:
            return [MOVE_FAILED, "not all of it has come"]
        await self._left.look_first()
        if sequence.state is CLOSED:
            return [MOVE_FAILED, "it has ended meanwhile"]
        now = self._now()
        left = LeftSequence(sequence.tokens, sequence.ends_at - now)
        rest = sequence.lane.max_idle - (now - sequence.idle_since)
        try:
            await self._left.write(self._version, sequence_id, left, rest, pieces, limit)
        except OSError as error:
            return [MOVE_FAILED, f"it cannot be written: {error}"]
        if sequence.state is CLOSED:
            self._left.withdraw(sequence_id)
            return [MOVE_FAILED, "it has ended meanwhile"]
        self._written.add(sequence_id)
        return []

    def refuses(self, sequence: Sequence, taker: Any) -> Refusal | None:
        """Let the next server have a file."""
        if sequence.id in self._written:
            self._written.remove(sequence.id)
            self._left.has_come(self._version, sequence.id)
        else:
            self._left.absent(sequence.id, is_lost=False)
        return None

    def declined(self, refusal: Refusal) -> None:
        """Nothing is to be counted."""

    def end_sequence(self, sequence_id: str, reason: str, moment: float) -> None:
        """Drop what has come of a sequence."""
        self._pieces.pop(sequence_id, None)
        if sequence_id in self._written:
            self._written.remove(sequence_id)
            self._left.withdraw(sequence_id)


class _Fetched(NamedTuple):
    """What has become of a sequence that another server had left.

    Attributes:
        left: What its scheduler knew of it, if its worker has it now, or it is over.
        over: Why it is of no use.
    """

    left: LeftSequence | None
    over: CloseReason | None = None


_LOST: Final = _Fetched(None, CloseReason.worker_lost)


class Inheritance:
    """What other servers have left of the sequences of one version, and how this one leaves them.

    Args:
        runs: Returns what gets the steps of a version of this name, None if none is served.
        take_over: Gets the steps here that have waited for a sequence which is left.
        handover: The moves of the version's sequences.
        perform: Passes an event to the scheduler, and performs its effects.
        now: The clock of the scheduler.
    """

    def __init__(
        self,
        left: LeftSequences,
        version: str,
        runs: Callable[[str], Callable[[Any], None] | None],
        take_over: Callable[[Any], None],
        scheduler: Scheduler,
        handover: Handover,
        perform: Callable[[Callable[[float], Effects]], None],
        now: Callable[[], float],
        metrics: ModelMetrics,
    ) -> None:
        self._left, self._version, self._runs, self._take_over = left, version, runs, take_over
        self._scheduler, self._handover = scheduler, handover
        self._perform, self._now, self._metrics = perform, now, metrics
        scheduler.expect_left(self._is_left)

    def has(self, sequence_id: str) -> bool:
        """Whether another server has left a sequence of this version."""
        return self._left.version_of(sequence_id) == self._version

    def is_here(self, sequence_id: str) -> bool:
        """Whether this server has a sequence, rather than steps that wait until it is known where that is."""
        sequence = self._scheduler.sequence(sequence_id)
        return sequence is not None and (not sequence.is_left or self._left.has_taken(sequence_id))

    def _is_left(self, sequence_id: str) -> bool:
        if self._left.is_shared:
            return True  # perhaps: whether there is a file is known once it was looked for
        version = self._left.version_of(sequence_id)
        return version is not None and (version == self._version or self._runs(version) is None)

    def leave(self, take_over: Callable[[Any], None], expected: Iterable[str] = ()) -> None:
        """Let all sequences that move from now on go to the next server, or another dispatcher of this one.

        ``take_over`` gets the steps that have waited. Further steps of those that are ``expected`` wait there.
        """
        self._left.expect(self._version, expected)
        self._handover.final = self._next(take_over)

    def _next(self, take_over: Callable[[Any], None]) -> NextServer:
        return NextServer(self._left, self._version, self._scheduler, self._now, take_over)

    async def leave_all(self, limit: float) -> None:
        """Leave the sequences to the next server, or where they go by `leave`, within ``limit`` seconds."""
        self._begin()
        try:
            await asyncio.gather(*(self._handover.vacate(worker, limit) for worker in self._handover.giving))
        finally:
            self._left.lose_expected()

    async def leave_resting(self, limit: float) -> None:
        """Leave the sequences to the next server, each as soon as it rests, within ``limit`` seconds."""
        self._begin()
        await self._handover.leave_resting(limit)

    async def leave_wanted(self, sequence_ids: Iterable[str], limit: float) -> None:
        """Leave those of these sequences that rest to the server which asks for them, within ``limit`` seconds."""
        for each in await self._handover.leave_wanted(sequence_ids, limit, self._next(self._take_over)):
            self._left.keeps(each)

    def give_up(self, is_among: Callable[[str], bool]) -> None:
        """Close those sequences that another server has, too."""
        for each in [each.id for each in self._scheduler.sequences() if is_among(each.id)]:
            logger.warning(
                "Sequence %r is given up: another server, which has heard nothing of this one, has it, too", each
            )
            self._metrics.handover.given_up.inc()
            self._perform(partial(self._scheduler.close_sequence, each, CloseReason.suspended))

    def _begin(self) -> None:
        """Let all sequences that move from now on go to the next server, unless they go elsewhere already."""
        if self._handover.final is None:
            self.leave(self._take_over)

    def closed(self, sequence_id: str, *, is_lost: bool) -> None:
        """Note that a sequence is over which others may expect."""
        if self._left.is_shared or self._handover.final is not None:
            # What was being fetched can be read again.
            self._left.absent(sequence_id, is_lost=is_lost and sequence_id not in self._left.fetching)

    def fetch(self, sequence: Sequence, worker: Worker) -> None:
        """Give a worker what another server has left of a sequence, once an earlier attempt to do so is over."""
        fetching, earlier = self._left.fetching, self._left.fetching.get(sequence.id)
        task = in_background(self._fetch_after(earlier, sequence, worker), f"fetching the sequence {sequence.id!r}")
        fetching[sequence.id] = task
        task.add_done_callback(partial(self._fetched, sequence.id))

    def _fetched(self, sequence_id: str, task: asyncio.Task[None]) -> None:
        if self._left.fetching[sequence_id] is task:
            del self._left.fetching[sequence_id]
        self._left.changed(sequence_id)

    async def _fetch_after(self, earlier: asyncio.Task[None] | None, sequence: Sequence, worker: Worker) -> None:
        fetched = _LOST
        try:
            if earlier is not None:
                await asyncio.wait([earlier])
            fetched = await self._fetch(sequence, worker)
        finally:  # steps wait for it
            self._perform(partial(self._scheduler.fetched, sequence, fetched.left, over=fetched.over))

    def _pass_on(self, sequence: Sequence, take_over: Callable[[Any], None]) -> None:
        """Let another version run the steps of a sequence that is found to be of that version."""
        jobs: Iterable[Any] = sequence.queue
        taken = self._scheduler.take_waiting([job for job in jobs if job.may_be_handed_over], self._now())
        self._refuse(sequence)
        for job in taken:  # once the sequence is closed here
            asyncio.get_running_loop().call_soon(take_over, job)

    def _refuse(self, sequence: Sequence) -> None:
        """Refuse the steps that wait for a sequence which another version or server goes on with."""
        for job in sequence.queue:
            self._perform(partial(self._scheduler.cancel, job.id, cause=Cause.sequence_moved))

    async def _fetch(self, sequence: Sequence, worker: Worker) -> _Fetched:
        left, sequence_id = self._left, sequence.id
        read = await self._read(sequence)
        if isinstance(read, _Fetched):
            return read
        if read.is_over:
            left.forget(sequence_id)
            return _Fetched(read.sequence, CloseReason.idle)
        taken = await _take(worker, sequence_id, read, "" if read.version == self._version else read.version)
        if sequence.state is CLOSED:  # its steps open it again, perhaps at another worker, or server
            if worker.ready:
                worker.end_sequence(sequence_id, CloseReason.suspended.value, boot_time())
            await left.put_back(sequence_id)
            return _Fetched(None)
        if taken == []:
            left.forget(sequence_id)
            self._metrics.handover.moved.inc()
            return _Fetched(read.sequence)
        return self._lose(sequence_id, refusal_in(taken))

    async def _read(self, sequence: Sequence) -> Left | _Fetched:
        """Return what another server has left of a sequence, or what has become of that."""
        left, sequence_id = self._left, sequence.id
        until = self._now() + _WAIT_LIMIT
        while True:
            is_leaving = self._handover.final is not None  # then others wait for this one
            try:
                is_lost = not is_leaving and await left.wait_for(sequence_id)
                may_begin = self._scheduler.may_begin(sequence, self._now())
                is_lost = is_lost or await left.find(sequence_id, until - self._now(), may_begin=may_begin)
            except TimeoutError:
                logger.warning("Another server has not left the sequence %r within %g s", sequence_id, _WAIT_LIMIT)
                self._refuse(sequence)
                return _Fetched(None)
            version = left.version_of(sequence_id)
            if version is None:  # there is none, or an earlier attempt, whose sequence is over, has got it
                if is_lost:
                    logger.warning("Sequence %r, which another server had, is lost", sequence_id)
                return _LOST if is_lost else _Fetched(None)
            if version != self._version and (take_over := self._runs(version)) is not None:
                self._pass_on(sequence, take_over)
                return _Fetched(None)
            if sequence.state is CLOSED and left.is_shared:  # others may have the file
                return _Fetched(None)
            try:
                read = await left.read(sequence_id)
            except (Damaged, OSError) as error:
                if isinstance(error, OSError) and left.is_shared and self._now() < until:
                    await asyncio.sleep(_READ_AGAIN)  # a database, or a disk of other machines, may be back soon
                    continue
                return self._lose(sequence_id, Refusal(NOT_ENCODABLE, f"its file cannot be read: {error}"))
            if read is not None:
                return read
            left.forget(sequence_id)
            if not left.is_shared:
                logger.warning("Sequence %r, which a server has left, was taken by another one", sequence_id)
                return _LOST
            # Another one was faster, and has the sequence now.

    def _lose(self, sequence_id: str, refusal: Refusal) -> _Fetched:
        """Give up a sequence whose file is of no use."""
        logger.warning("Sequence %r, which a server has left, is lost: %s", sequence_id, refusal.text)
        self._metrics.handover.refused[refusal.reason].inc()
        self._left.forget(sequence_id)
        self._left.absent(sequence_id, is_lost=True)
        return _LOST


async def _take(worker: Worker, sequence_id: str, read: Left, from_version: str) -> Any:
    if not worker.hands_over:
        return [NOT_ENCODABLE, "its worker takes no sequences"]
    for start in range(0, len(read.given), STATE_PIECE):
        worker.send_state(sequence_id, read.given[start : start + STATE_PIECE])
    return await worker.ask(TAKE, _TAKE_LIMIT, sequence_id, len(read.given), from_version)
