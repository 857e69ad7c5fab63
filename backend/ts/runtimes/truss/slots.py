"""The slots that predict is limited by: so many run at once, the others wait in the order in which they came.

A slot that is given back goes to whoever waits longest, without ever being free in between; so nobody overtakes.
Between two calls of plain functions it does not even leave its thread: the thread that has ended one begins the next,
and the event loop, which may be busy, is told afterwards: what predict runs on is not idle while anybody waits for it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from ts.runtimes.truss.client import Client
from ts.runtimes.truss.threads import Threads, Work


class SlotWork(Work[Any]):
    """A plain function that needs a slot.

    Args:
        function: What is called.
        keeps_slot: Tells by what the function has returned whether its slot is needed for longer.

    Attributes:
        begun: Whether a thread has begun it when it got its slot.
        slot_is_gone: Whether the thread has begun other work in that slot since it has ended.
    """

    def __init__(self, function: Callable[[], Any], keeps_slot: Callable[[Any], bool]) -> None:
        super().__init__(function)
        self._keeps_slot = keeps_slot
        self.begun = False
        self.slot_is_gone = False

    @property
    def needs_slot(self) -> bool:
        """Whether it needs its slot although it has ended."""
        return self._error is None and self._keeps_slot(self._value)


class Slots:
    """Slots of one event loop.

    Args:
        count: How many there are, at least 1.

    Attributes:
        free: How many nobody holds; 0 while anybody waits.
    """

    def __init__(self, count: int) -> None:
        self.free = count
        self._lock = threading.Lock()
        self._waiting: OrderedDict[_Turn, None] = OrderedDict()

    @property
    def waiting(self) -> int:
        """How many wait for one."""
        return len(self._waiting)

    async def acquire(self, client: Client, work: SlotWork | None = None) -> bool:
        """Wait for a slot, until the client leaves.

        Args:
            client: Who the slot is for.
            work: What is to run in it, if that is a plain function: it may have begun when this returns.

        Returns:
            Whether a slot is held now and must be released; False if the client left first.
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
            with client.telling(lambda: self._give_up(turn)):
                await turn.came
        except asyncio.CancelledError:
            await self._withdraw(turn)
            raise
        return turn.has_slot

    def begin(self, work: SlotWork, threads: Threads) -> None:
        """Have a thread run ``work``, for which a slot is held, and then the work that waits for that slot."""
        work.begun = True
        threads.start(work, lambda: self._run_in_turn(work))

    def release(self) -> None:
        """Give a slot back; from the event loop."""
        with self._lock:
            while self._waiting:
                turn, _ = self._waiting.popitem(last=False)
                if not turn.came.done():
                    turn.has_slot = True
                    turn.came.set_result(None)
                    return
            self.free += 1

    def _run_in_turn(self, first: SlotWork) -> None:
        """Run work in one slot, in a thread, until there is no more for it; the last keeps the slot."""
        work: SlotWork | None = first
        while work is not None:
            work.run()
            turn = None if work.needs_slot else self._next_work()
            if turn is None:
                work.tell()
                return
            work.slot_is_gone = True
            work.tell(turn.come)
            work = turn.work

    def _next_work(self) -> _Turn | None:
        """Give a slot to whoever waits longest, if that is for work; from a thread."""
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
        turn.come()

    async def _withdraw(self, turn: _Turn) -> None:
        """Have whoever waited neither wait nor hold a slot any longer."""
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
    """One slot that is held; it can be released in several places and is given back once.

    Args:
        slots: Where it is from; None stands for a slot where there is no limit.
        work: What runs in it first, if that is a plain function.
    """

    __slots__ = ("_slots", "_work")

    def __init__(self, slots: Slots | None, work: SlotWork | None = None) -> None:
        self._slots = slots
        self._work = work

    def release(self) -> None:
        """Give it back, unless that was done."""
        if self._slots is not None:
            if self._work is None or not self._work.slot_is_gone:
                self._slots.release()
            self._slots = None


class _Turn:
    """One call that waits for a slot."""

    __slots__ = ("came", "has_slot", "work")

    def __init__(self, work: SlotWork | None) -> None:
        self.work = work
        self.has_slot = False
        self.came: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def come(self) -> None:
        """Tell whoever waits that it is over, with a slot or without; from the event loop."""
        if not self.came.done():
            self.came.set_result(None)
