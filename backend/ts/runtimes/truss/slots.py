"""The slots that predict is limited by: so many run at once, the others wait in the order in which they came."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from ts.runtimes.truss.client import Client


class Slots:
    """Slots of one event loop.

    A slot that is given back goes to whoever waits longest, without ever being free in between; so nobody overtakes.

    Args:
        count: How many there are, at least 1.

    Attributes:
        free: How many nobody holds; 0 while anybody waits.
    """

    def __init__(self, count: int) -> None:
        self.free = count
        self._waiting: OrderedDict[asyncio.Future[bool], None] = OrderedDict()

    @property
    def waiting(self) -> int:
        """How many wait for one."""
        return len(self._waiting)

    async def acquire(self, client: Client) -> bool:
        """Wait for a slot, until the client leaves.

        Returns:
            Whether a slot is held now and must be released; False if the client left first.
        """
        if client.left:
            return False
        if self.free:
            self.free -= 1
            return True
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[turn] = None
        try:
            with client.telling(lambda: self._give_up(turn)):
                return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.result():
                self.release()
            self._waiting.pop(turn, None)
            raise

    def release(self) -> None:
        """Give a slot back."""
        while self._waiting:
            turn, _ = self._waiting.popitem(last=False)
            if not turn.done():
                turn.set_result(True)
                return
        self.free += 1

    def _give_up(self, turn: asyncio.Future[bool]) -> None:
        if not turn.done():
            del self._waiting[turn]
            turn.set_result(False)


class Slot:
    """One slot that is held; it can be released in several places and is given back once.

    Args:
        slots: Where it is from; None stands for a slot where there is no limit.
    """

    __slots__ = ("_slots",)

    def __init__(self, slots: Slots | None) -> None:
        self._slots = slots

    def release(self) -> None:
        """Give it back, unless that was done."""
        if self._slots is not None:
            self._slots.release()
            self._slots = None
