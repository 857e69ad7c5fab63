"""How long connections may work in one turn of the event loop; the rest of their work waits for later turns.

Whatever one peer sends, the server serves others between two pieces of that work. All connections share the time of a
turn: those of clients, those of workers, and the pipes with the output of workers.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Final
from weakref import WeakKeyDictionary, proxy

#: How long one connection may work in one turn of the event loop (seconds) …
_SLICE: Final = 0.001
#: … and how long all of them together.
_TURN: Final = 0.004
#: How many pieces of deferred work run in one turn. Each may wake a task, whose time is not measured here.
_MOST: Final = 100


class Turns:
    """Limits the work of connections in each turn of an event loop, and runs deferred work in order."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = proxy(loop)  # which is the key that this is kept by
        self._waiting: deque[Callable[[], object]] = deque()
        self._is_scheduled = False
        #: When the current turn began, by the loop's clock, which stands still during a turn; when its time is used up.
        self._turn = self._end = 0.0

    def end_of_slice(self) -> float:
        """Return until when a connection may work now (`time.monotonic`), if it has done one small piece of its work.

        The connection then passes the rest of the work to `put_off`.
        """
        now = monotonic()
        if self._turn != self._loop.time():
            self._begin(now)
        return min(now + _SLICE, self._end)

    def _begin(self, now: float) -> None:
        self._turn, self._end = self._loop.time(), now + _TURN

    def put_off(self, work: Callable[[], object]) -> None:
        """Call ``work`` in the next turn, or in a later one if earlier work uses up that turn's time."""
        self._waiting.append(work)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._run)

    async def next(self) -> None:
        """Wait for the next turn, or for a later one if its time is used up; the task may work until `end_of_slice`."""
        come = self._loop.create_future()
        self.put_off(lambda: self._wake(come))
        await come

    def _wake(self, come: asyncio.Future[None]) -> None:
        if not come.done():
            come.set_result(None)
            self._end -= _SLICE  # the task takes it later

    def _run(self) -> None:
        self._is_scheduled = False
        self._begin(monotonic())
        try:
            for _ in range(min(len(self._waiting), _MOST)):  # work deferred while this runs waits for another turn
                self._waiting.popleft()()
                if monotonic() > self._end:
                    return
        finally:
            if self._waiting and not self._is_scheduled:
                self._is_scheduled = True
                self._loop.call_soon(self._run)


_of_loops: Final = WeakKeyDictionary[asyncio.AbstractEventLoop, Turns]()


def running_turns() -> Turns:
    """Return the turns of the running event loop."""
    loop = asyncio.get_running_loop()
    turns = _of_loops.get(loop)
    if turns is None:
        turns = _of_loops[loop] = Turns(loop)
    return turns
