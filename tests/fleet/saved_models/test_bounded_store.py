"""A store of states that gives no answer: callers get one all the same, and one thread waits."""

import asyncio
import threading
import time

import pytest
from tests.fleet.saved_models.worlds import Server, States

from torchserve_py.endpoints.failures import EndpointError
from torchserve_py.fleet.saved_models import bounded_store
from torchserve_py.fleet.saved_models.bounded_store import BoundedStore
from torchserve_py.fleet.saved_models.fleet_state import FleetStateError


class Hanging(States):
    """States on a disk that hangs while ``gate`` is not set."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.calls = 0

    def _check(self) -> None:
        self.calls += 1
        assert self.gate.wait(60)


async def test_who_asks_a_store_that_hangs_gets_an_error_and_one_thread_waits() -> None:
    states = Hanging()
    store = BoundedStore(states, limit=0.05)
    assert await store.newest_number() == 0
    states.gate.clear()
    for _ in range(20):
        with pytest.raises(FleetStateError, match="gives no answer since"):
            await store.newest()
    assert states.calls == 2
    states.gate.set()
    end = time.monotonic() + 30
    while True:
        try:
            assert (await store.newest()).number == 0
            break
        except FleetStateError:
            assert time.monotonic() < end
            await asyncio.sleep(0.01)


async def test_a_change_is_refused_while_the_store_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedStore.__init__, "__defaults__", (0.05,))
    assert bounded_store._LIMIT > 10  # longer than Redis takes to say that it is away
    states = Hanging()
    server = Server(states)
    await server.look()
    states.gate.clear()
    with pytest.raises(EndpointError, match="gives no answer since") as raised:
        await server.calls.register({"url": "m-1.mar"})
    assert (raised.value.failure.status, raised.value.failure.cause) == (503, "fleet_not_told")
    assert server.models.saved == {}
    states.gate.set()


async def test_nobody_waits_for_a_store_when_the_server_stops() -> None:
    states = Hanging()
    store = BoundedStore(states)
    states.gate.clear()
    asked = asyncio.create_task(store.newest())
    await asyncio.sleep(0)
    store.close()
    for waiting in (asked, store.newest_number()):
        with pytest.raises(FleetStateError, match="The server stops"):
            async with asyncio.timeout(60):
                await waiting
    states.gate.set()


async def test_nobody_waits_for_a_server_to_join_its_fleet_when_it_stops() -> None:
    states = Hanging()
    server = Server(states)
    states.gate.clear()
    changed = asyncio.create_task(server.calls.register({"url": "m-1.mar"}))
    await asyncio.sleep(0)
    server.member.close()
    with pytest.raises(EndpointError, match="The server stops"):
        async with asyncio.timeout(20):
            await changed
    assert server.models.saved == {}
    states.gate.set()
