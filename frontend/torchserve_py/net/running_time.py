"""The time in which this process runs: the clock by which the silence of others is judged.

While the process is stopped (SIGSTOP, a paused container, a debugger, a machine that swaps), or has more to do than it
has time for, what others send waits in sockets and is not read. By the time of the machine, a worker, a client or a
sequence would have been silent for too long before what it sent is read. So this clock waits whenever the event loop
does not come round in time. All limits on others go by it; only those that others have set themselves, such as the
deadline of a gRPC call, go by the time of the machine.

Other servers go by the time of the machine. To them what is read right after a standstill has waited since that began:
they have no better information.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary, proxy

from ts.protocol.boot_clock import boot_time

#: How often (seconds) the event loop is to come round, and how late it may do so before the clock waits for it.
_BEAT: Final = 0.1
_TOLERANCE: Final = 0.1
#: Until so long (seconds) after a standstill requests are read that have waited through it.
_BACKLOG: Final = 0.2
#: How many standstills are remembered.
_REMEMBERED: Final = 100

T = TypeVar("T")


class RunningTime:
    """A clock that a standstill of the event loop does not advance."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = proxy(loop)  # which is the key that this is kept by
        self._lost = 0.0
        #: When, by this clock, the latest standstills were, and how much had been lost before each.
        self._standstills: deque[tuple[float, float]] = deque(maxlen=_REMEMBERED)
        self._next_beat(boot_time())

    def now(self) -> float:
        """Return seconds of `boot_time` without those of standstills; a suspension of the machine is one."""
        now = boot_time()
        return (now if now < self._runs_until else self._runs_until) - self._lost

    @property
    def lost(self) -> float:
        """The seconds of all standstills so far."""
        return max(0.0, boot_time() - self._runs_until) + self._lost

    def moment_of(self, shown: float) -> float:
        """Return since when (by `boot_time`) something may have waited that was read when this clock showed that."""
        lost, earliest = self._lost, shown
        for stood_at, lost_before in reversed(self._standstills):
            if stood_at + _BACKLOG < earliest:
                break
            lost, earliest = lost_before, min(earliest, stood_at)
        return shown + lost

    async def wait(self, awaited: Iterable[asyncio.Future[Any]], limit: float | None) -> None:
        """Wait until one of these is done, for at most ``limit`` seconds of this clock."""
        futures = tuple(awaited)
        end = float("inf") if limit is None else self.now() + limit
        while True:
            left = None if limit is None else max(0.0, end - self.now())
            done, _ = await asyncio.wait(futures, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if done or self.now() >= end:
                return

    async def within(self, limit: float | None, work: Coroutine[Any, Any, T]) -> T:
        """Return what ``work`` returns.

        Raises TimeoutError: it took longer than ``limit`` seconds of this clock, and was cancelled.
        """
        task = asyncio.ensure_future(work)
        try:
            await self.wait([task], limit)
            if task.done():
                return task.result()
            raise TimeoutError
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])

    def _next_beat(self, now: float) -> None:
        #: Up to when (by `boot_time`) the clock runs, unless the event loop comes round before.
        self._runs_until = now + _BEAT + _TOLERANCE
        self._loop.call_later(_BEAT, self._beat)

    def _beat(self) -> None:
        now = boot_time()
        if now > self._runs_until:
            self._standstills.append((self._runs_until - self._lost, self._lost))
            self._lost += now - self._runs_until
        self._next_beat(now)


_of_loops: Final = WeakKeyDictionary[asyncio.AbstractEventLoop, RunningTime]()


def running_time() -> RunningTime:
    """Return the clock of the running event loop."""
    loop = asyncio.get_running_loop()
    clock = _of_loops.get(loop)
    if clock is None:
        clock = _of_loops[loop] = RunningTime(loop)
    return clock


class Deadline:
    """One deadline of a client, which is moved often and rarely expires: calls back when the latest one has passed.

    Its ``clock`` stands still while this process does.

    Postponing the deadline needs no new timer of the event loop: the existing one checks the deadline again.
    """

    __slots__ = ("_deadline", "_handle", "_looks_at", "_loop", "_then", "clock")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.clock = running_time()
        self._loop = loop
        self._deadline = self._looks_at = 0.0
        self._then: Callable[[], None] | None = None
        self._handle: asyncio.TimerHandle | None = None

    def start(self, seconds: float, then: Callable[[], None]) -> None:
        """Call ``then`` after ``seconds``; this replaces an earlier deadline and its callback."""
        self._deadline = deadline = self.clock.now() + seconds
        self._then = then
        if self._handle is not None:
            if self._looks_at <= deadline:
                return
            self._handle.cancel()
        self._look_in(seconds)

    def stop(self) -> None:
        self._then = None

    def close(self) -> None:
        """Cancel the deadline, and the event loop's timer."""
        self.stop()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _look_in(self, seconds: float) -> None:
        self._looks_at = self._deadline
        self._handle = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        self._handle = None
        then = self._then
        if then is None:
            return
        left = self._deadline - self.clock.now()
        if left > 0.001:  # the event loop may call slightly early, within the resolution of its clock
            self._look_in(left)
            return
        self.stop()
        then()
