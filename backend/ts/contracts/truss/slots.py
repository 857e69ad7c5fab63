"""The slots that limit how many predict calls run at once; further calls wait in first-in, first-out order.

A released slot passes directly to the call that has waited longest. Between two calls of plain functions the slot stays
in its thread: the thread that has finished one call begins the next, and notifies the event loop, which may be busy,
afterwards. Hence the device is never idle while a call waits for a slot.
"""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from ts.contracts.truss.model_request import TrussClient
from ts.contracts.truss.threads import ThreadCall, Threads


class SlotWork(ThreadCall[Any]):
    """A plain function that needs a slot.

    Args:
        keeps_slot: Returns, from the function's result, whether the call still needs its slot.

    Attributes:
        begun: Whether a thread has begun the function in its slot.
        slot_is_gone: Whether the thread, after the function had returned, passed the slot to other work.
    """

    def __init__(self, function: Callable[[], Any], keeps_slot: Callable[[Any], bool]) -> None:
        super().__init__(function)
        self._keeps_slot = keeps_slot
        self.begun = False
        self.slot_is_gone = False

    @property
    def needs_slot(self) -> bool:
        """Whether the call still needs its slot after the function has returned."""
        return self._error is None and self._keeps_slot(self._value)


class _Turn:
    __slots__ = ("has_slot", "over", "work")

    def __init__(self, work: SlotWork | None) -> None:
        self.work = work
        self.has_slot = False
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def finish(self) -> None:
        """End the waiting of the call, with or without a slot; call this from the event loop only."""
        if not self.over.done():
            self.over.set_result(None)


class Slots:
    """Slots of one event loop.

    Attributes:
        free: The number of free slots; 0 while a call waits.
    """

    def __init__(self, count: int) -> None:
        self.free = count
        self._lock = threading.Lock()
        self._waiting: OrderedDict[_Turn, None] = OrderedDict()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def acquire(self, client: TrussClient, work: SlotWork | None = None) -> bool:
        """Wait for a slot; return whether the call holds one, or its client left first.

        The call of a plain function gives its ``work``, which may have begun when this returns.
        """
        if client.left:
            return False
        with self._lock:
            if self.free:
                self.free -= 1
                return True
            turn = _Turn(work)
            self._waiting[turn] = None
        try:
            with client.calling_when_left(lambda: self._give_up(turn)):
                await turn.over
        except asyncio.CancelledError:
            await self._withdraw(turn)
            raise
        return turn.has_slot

    def begin(self, work: SlotWork, threads: Threads) -> None:
        """Have a thread run ``work``, for which a slot is held, and then the work that waits for that slot."""
        work.begun = True
        threads.start(work, lambda: self._run_in_turn(work))

    def release(self) -> None:
        """Release a slot; call this from the event loop only."""
        with self._lock:
            while self._waiting:
                turn, _ = self._waiting.popitem(last=False)
                if not turn.over.done():
                    turn.has_slot = True
                    turn.over.set_result(None)
                    return
            self.free += 1

    def _run_in_turn(self, first: SlotWork) -> None:
        """Run work after work in one slot, in a thread, until no further work waits; the last one keeps the slot."""
        work: SlotWork | None = first
        while work is not None:
            work.run()
            turn = None if work.needs_slot else self._next_work()
            if turn is None:
                work.publish()
                return
            work.slot_is_gone = True
            work.publish(turn.finish)
            work = turn.work

    def _next_work(self) -> _Turn | None:
        """Pass the slot to the call that has waited longest, if it is a plain function; called from a thread."""
        with self._lock:
            turn = next(iter(self._waiting), None)
            if turn is None or turn.work is None:
                return None
            del self._waiting[turn]
            turn.has_slot = turn.work.begun = True
            return turn

    def _give_up(self, turn: _Turn) -> None:
        with self._lock:
            if turn not in self._waiting:
                return
            del self._waiting[turn]
        turn.finish()

    async def _withdraw(self, turn: _Turn) -> None:
        """Remove a cancelled call from the queue, or release the slot that it got at the same time."""
        with self._lock:
            self._waiting.pop(turn, None)
        if not turn.has_slot:
            return
        if turn.work is not None and turn.work.begun:
            await turn.work.ended()
            if turn.work.slot_is_gone:
                return
        self.release()


class Slot:
    """A held slot, of unlimited ones if ``slots`` is None; only the first `release` of several takes effect."""

    __slots__ = ("_slots", "_work")

    def __init__(self, slots: Slots | None, work: SlotWork | None = None) -> None:
        self._slots = slots
        self._work = work

    def release(self) -> None:
        """Release the slot, unless it was released or passed on."""
        if self._slots is not None:
            if self._work is None or not self._work.slot_is_gone:
                self._slots.release()
            self._slots = None
