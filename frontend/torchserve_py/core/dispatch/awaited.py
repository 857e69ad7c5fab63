"""What somebody waits for that events of a scheduler bring about."""

import asyncio
from collections.abc import Callable

from torchserve_py.net.running_time import running_time


class Awaited:
    """Conditions that are awaited; `look` at them after each event while there are any."""

    def __init__(self) -> None:
        #: Those who wait, and for what.
        self.waiters: dict[asyncio.Future[None], Callable[[], bool]] = {}

    async def until(self, condition: Callable[[], bool], limit: float) -> bool:
        """Wait until a condition is so, at most ``limit`` seconds; return whether it is."""
        if not condition():
            waiter = asyncio.get_running_loop().create_future()
            self.waiters[waiter] = condition
            try:
                await running_time().wait([waiter], limit)
            finally:
                del self.waiters[waiter]
        return condition()

    def look(self) -> None:
        """Wake those whose condition is so now."""
        for waiter, condition in self.waiters.items():
            if not waiter.done() and condition():
                waiter.set_result(None)
