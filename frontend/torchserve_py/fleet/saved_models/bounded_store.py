"""A fleet's store of states that answers within a limit, whatever becomes of the disk or the network behind it.

A call that hangs is left to its thread, and while it does, no further thread is given to the store.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from torchserve_py.fleet.saved_models.fleet_state import FleetState, FleetStateError, StateStore

T = TypeVar("T")

#: How long a call may take (seconds): longer than Redis takes to say that it is away.
_LIMIT: Final = 15.0


class BoundedStore:
    """The calls of a store, for the event loop. Raises FleetStateError as the store, and if that does not answer."""

    def __init__(self, store: StateStore, limit: float = _LIMIT) -> None:
        self._store = store
        self._limit = limit
        self._hung: asyncio.Future[Any] | None = None
        self._hung_since = 0.0
        #: Ends all waiting: the server stops.
        self._end: asyncio.Future[None] | None = None
        self._is_closed = False
        self.name = store.name

    def close(self) -> None:
        """Wait for no answer any more; who waits for one gets FleetStateError."""
        self._is_closed = True
        if self._end is not None and not self._end.done():
            self._end.set_result(None)

    async def newest_number(self) -> int:
        return await self._ask(self._store.newest_number)

    async def newest(self) -> FleetState:
        return await self._ask(self._store.newest)

    async def add(self, state: FleetState) -> bool:
        """Add a state as `StateStore.add`; if that raises, nobody knows whether it was added."""
        return await self._ask(lambda: self._store.add(state))

    async def _ask(self, call: Callable[[], T]) -> T:
        if self._is_closed:
            raise self._no_more()
        if self._hung is not None and not self._hung.done():
            raise self._no_answer()
        loop = asyncio.get_running_loop()
        end = self._end = self._end or loop.create_future()
        asked = loop.run_in_executor(None, call)
        await asyncio.wait([asked, end], timeout=self._limit, return_when=asyncio.FIRST_COMPLETED)
        if not asked.done() and end.done():
            asked.add_done_callback(_forget)
            raise self._no_more()
        if not asked.done():
            asked.add_done_callback(_forget)
            self._hung, self._hung_since = asked, time.time() - self._limit
            raise self._no_answer()
        return asked.result()

    def _no_more(self) -> FleetStateError:
        return FleetStateError(f"The server stops, and waits no more for the state of the fleet at {self.name}.")

    def _no_answer(self) -> FleetStateError:
        since = time.strftime("%H:%M:%S", time.localtime(self._hung_since))
        return FleetStateError(f"The state of the fleet at {self.name} gives no answer since {since}.")


def _forget(answer: asyncio.Future[Any]) -> None:
    """Take note of an answer that comes too late for anybody."""
    if not answer.cancelled():
        answer.exception()
