"""Servers of a fleet serve the same, whatever several of them change, in any order, and whatever fails meanwhile."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

import pytest
from tests.fleet.saved_models.worlds import Models, Server, States, served

from torchserve_py.core.serving.errors import ModelError, ModelVersionNotFound, VersionConflict, VersionNotReady
from torchserve_py.endpoints.failures import EndpointError
from torchserve_py.endpoints.management.management_calls import ManagementCalls
from torchserve_py.fleet.saved_models import fleet_member
from torchserve_py.fleet.saved_models.fleet_state import NOTHING, FleetStateError

Change = Callable[[ManagementCalls], Awaitable[object]]


async def fleet(count: int = 2, states: States | None = None, versions: str = "1") -> tuple[States, list[Server]]:
    """Return servers that serve these versions of model ``m``."""
    states = states or States()
    servers = [Server(states) for _ in range(count)]
    for server in servers:
        await server.look()
    for version in versions:
        await register(version)(servers[0].calls)
    await settle(servers)
    return states, servers


async def settle(servers: list[Server]) -> None:
    for _ in range(4):
        for server in servers:
            await server.look(16)


def equal(states: States, servers: list[Server]) -> bool:
    return all(each.served == served(states.state.models) for each in servers)


def register(version: str, name: str = "m", workers: int = 1, batch: int = 1) -> Change:
    given = {"url": f"{name}-{version}.mar", "initial_workers": workers, "batch_size": batch}
    return lambda calls: calls.register(given)


def scale(version: str, count: int, name: str = "m") -> Change:
    return lambda calls: calls.scale(name, version, {"min_worker": count, "max_worker": count})


def unregister(version: str, name: str = "m") -> Change:
    return lambda calls: calls.unregister(name, version)


def choose(version: str, name: str = "m") -> Change:
    return lambda calls: calls.set_default(name, version)


def weigh(name: str = "m", **weights: int) -> Change:
    return lambda calls: calls.set_weights(name, {each.removeprefix("v"): share for each, share in weights.items()})


def reload(batch: int, version: str = "1") -> Change:
    async def change(calls: ManagementCalls) -> None:
        serving = calls._serving
        found = next(each for each in serving.saved_models() if each.version == version)
        await calls.load(found.model_copy(update={"batch_size": batch}))

    return change


PAIRS = {
    "A deletes, B scales": (unregister("4"), scale("4", 3)),
    "A scales, B deletes": (scale("4", 3), unregister("4")),
    "A deletes, B makes it the default": (unregister("4"), choose("4")),
    "A makes it the default, B deletes": (choose("4"), unregister("4")),
    "A deletes, B gives it weight": (unregister("4"), weigh(v1=50, v4=50)),
    "A gives it weight, B deletes": (weigh(v1=50, v4=50), unregister("4")),
    "both scale": (scale("4", 2), scale("4", 3)),
    "both delete": (unregister("4"), unregister("4")),
    "A scales, B loads it again": (scale("4", 3), reload(8, "4")),
    "A loads it again, B scales": (reload(8, "4"), scale("4", 3)),
    "A weighs, B makes it the default": (weigh(v1=90, v4=10), choose("4")),
    "both register": (register("5", batch=2), register("5", batch=4)),
}


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("simultaneous", [True, False])
async def test_two_changes_of_a_version_leave_all_servers_equal(pair: str, simultaneous: bool) -> None:
    states, servers = await fleet(3, versions="14")
    changes = [change(server.calls) for change, server in zip(PAIRS[pair], servers, strict=False)]
    if simultaneous:
        await asyncio.gather(*changes, return_exceptions=True)
    else:  # before the other server has followed
        for each in changes:
            try:
                await each
            except (ModelError, EndpointError):
                pass
    await settle(servers)
    assert equal(states, servers)
    assert [each.member.failed for each in servers] == [0, 0, 0]


async def test_both_register_a_version_and_one_deletes_it() -> None:
    states, (one, two) = await fleet()
    await asyncio.gather(register("4")(one.calls), register("4")(two.calls), return_exceptions=True)
    await unregister("4")(two.calls)
    await settle([one, two])
    assert equal(states, [one, two])
    assert ("m", "4") not in one.served


async def test_a_server_that_lags_changes_only_what_its_call_changes() -> None:
    states, (one, two) = await fleet(versions="12")
    await scale("1", 5)(one.calls)
    await weigh(v1=90, v2=10)(one.calls)
    await scale("2", 3)(two.calls)  # which knows nothing of that yet
    await choose("2")(two.calls)
    await settle([one, two])
    assert equal(states, [one, two])
    assert one.served == {("m", "1"): (5, 5, False, False, 90, 1), ("m", "2"): (3, 3, True, True, 10, 1)}


async def test_what_others_have_deleted_is_not_changed_any_more() -> None:
    _, (one, two) = await fleet(versions="12")
    await unregister("2")(one.calls)
    for change in (scale("2", 3), choose("2"), weigh(v1=50, v2=50)):
        with pytest.raises(ModelVersionNotFound):
            await change(two.calls)
    await unregister("2")(two.calls)  # gone is gone
    await settle([one, two])
    assert one.served.keys() == two.served.keys() == {("m", "1")}


@pytest.mark.parametrize(
    "change",
    [register("3"), unregister("2"), scale("2", 4), choose("2"), weigh(v1=50, v2=50), reload(8)],
    ids=["register", "unregister", "scale", "choose", "weigh", "reload"],
)
@pytest.mark.parametrize("lost", [False, True], ids=["the store is away", "its answer is lost"])
async def test_a_change_that_cannot_be_told_is_none_and_can_be_made_again(change: Change, lost: bool) -> None:
    states, servers = await fleet(versions="12")
    one, before = servers[0], servers[0].served
    if lost:
        states.loses = lambda: True
    else:
        states.fails = lambda: True
    with pytest.raises(EndpointError) as raised:
        await change(one.calls)
    assert raised.value.failure.status == 503
    assert raised.value.failure.cause == "fleet_not_told"
    assert one.served == before
    states.fails = states.loses = lambda: False
    if lost:
        await settle(servers)  # it is followed here, as a change of another server would be
        assert equal(states, servers)
    await change(one.calls)
    await settle(servers)
    assert equal(states, servers)
    assert one.served != before


async def test_a_registration_that_others_have_made_is_refused() -> None:
    _, (one, two) = await fleet()
    await register("4")(one.calls)
    await settle([one, two])
    with pytest.raises(VersionConflict):
        await register("4")(two.calls)


async def test_what_protects_clients_holds_here_and_is_told_until_it_is() -> None:
    states, (one, two) = await fleet(versions="12")
    await weigh(v1=95, v2=5)(one.calls)
    await settle([one, two])
    states.fails = lambda: True
    await one.calls.set_weights("m", {}, insist=True)
    for _ in range(100):
        await one.look()
        await two.look()
    assert one.models.weights("m") == {}
    assert two.models.weights("m") == {"1": 95, "2": 5}
    assert one.member.untold == 1
    states.fails = lambda: False
    await settle([one, two])
    assert one.models.weights("m") == two.models.weights("m") == {}
    assert one.member.untold == 0


async def test_what_others_have_decided_meanwhile_stays() -> None:
    states, (one, two) = await fleet(versions="12")
    await weigh(v1=95, v2=5)(one.calls)
    await settle([one, two])
    states.fails = lambda: True
    await one.calls.set_weights("m", {}, insist=True)
    states.fails = lambda: False
    await weigh(v1=50, v2=50)(two.calls)
    await settle([one, two])
    assert one.models.weights("m") == two.models.weights("m") == {"1": 50, "2": 50}


async def test_requests_move_to_a_version_only_where_it_is_ready() -> None:
    states, (one, two) = await fleet()
    two.models.unready.add("2")
    await register("2")(one.calls)
    await settle([one, two])
    await choose("2")(one.calls)
    await scale("1", 0)(one.calls)
    await settle([one, two])
    assert one.served["m", "1"][0] == 0
    assert two.served["m", "1"][:3] == (1, 1, True)  # it answers here
    assert two.member.failed == 1
    two.models.unready.clear()
    await settle([one, two])
    assert equal(states, [one, two])
    assert two.member.failed == 0


async def test_the_version_that_answers_stays_where_its_successor_does_not_load() -> None:
    states, (one, two) = await fleet()
    two.models.unloadable.add("2")
    await register("2")(one.calls)
    await choose("2")(one.calls)
    await unregister("1")(one.calls)
    await settle([one, two])
    assert two.served.keys() == {("m", "1")}
    assert two.models.awaited["m", "2"].failed
    assert "m-2.mar is no model" in two.models.awaited["m", "2"].why
    two.models.unloadable.clear()
    await settle([one, two])
    assert equal(states, [one, two])
    assert not two.models.awaited


async def test_a_version_without_a_ready_worker_gets_no_requests_unless_by_force() -> None:
    states, servers = await fleet()
    await register("2", workers=0)(servers[0].calls)
    with pytest.raises(VersionNotReady):
        await choose("2")(servers[0].calls)
    await servers[0].calls.set_default("m", "2", force=True)
    await settle(servers)
    assert equal(states, servers)
    assert servers[1].served["m", "2"][2]


async def test_a_version_that_no_server_here_can_load_is_unregistered_by_any() -> None:
    states, (one, two) = await fleet()
    two.models.unloadable.add("2")
    await register("2")(one.calls)
    await settle([one, two])
    await unregister("2")(two.calls)
    await settle([one, two])
    assert equal(states, [one, two])
    assert not two.models.awaited


async def test_an_error_that_nobody_has_foreseen_ends_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_member, "_LOOK_INTERVAL", 0.01)
    _, (one, two) = await fleet()
    following = asyncio.create_task(two.member.follow())
    two.models.defects = 1
    await scale("1", 3)(one.calls)
    async with asyncio.timeout(60):
        while two.models.saved["m"]["1"].min_workers != 3:
            await asyncio.sleep(0.01)
    assert not following.done()
    assert two.member.errors.child({}).value == 1
    assert "ZeroDivisionError" in caplog.text
    following.cancel()


async def test_a_lost_state_is_made_again_of_what_was_known() -> None:
    states, servers = await fleet(versions="12")
    states.state = type(states.state)(0, ())
    await settle(servers)
    assert states.state.number == 1
    assert states.state.by_version.keys() == {("m", "1"), ("m", "2")}
    assert equal(states, servers)


async def test_a_state_that_is_removed_while_it_is_read_takes_no_model_away(monkeypatch: pytest.MonkeyPatch) -> None:
    states, (server, _) = await fleet()
    before = server.served
    monkeypatch.setattr(states, "newest_number", lambda: states.state.number + 1)
    monkeypatch.setattr(states, "newest", lambda: NOTHING)
    with pytest.raises(FleetStateError, match="removed while it was read"):
        await server.member.look()
    await server.look(16)
    assert server.served == before


async def test_nothing_is_done_again_that_is_done() -> None:
    states, servers = await fleet(versions="12")
    servers[1].models.loads = 0
    number = states.state.number
    await settle(servers)
    await settle(servers)
    assert servers[1].models.loads == 0
    assert states.state.number == number


@pytest.mark.parametrize("seed", range(60))
async def test_storms_of_changes_leave_all_servers_equal(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    """Several servers change the same versions at random times, while the store fails now and then."""
    caplog.set_level(logging.CRITICAL)
    dice = random.Random(seed)
    states = States()
    servers = [Server(states, Models()) for _ in range(dice.choice((2, 3, 4)))]
    trouble = dice.random() * 0.2
    states.fails = lambda: dice.random() < trouble
    states.loses = lambda: dice.random() < trouble
    for _ in range(8):
        for server in servers:
            await server.look()

    async def storm(server: Server) -> None:
        for _ in range(25):
            await asyncio.sleep(dice.random() / 500)
            try:
                await change_at_random(dice)(server.calls)
            except (ModelError, EndpointError):
                pass

    async def follow(server: Server) -> None:
        for _ in range(25):
            await asyncio.sleep(dice.random() / 500)
            await server.look(dice.random() * 3)

    await asyncio.gather(*map(storm, servers), *map(follow, servers))
    states.fails = states.loses = lambda: False
    await settle(servers)
    assert equal(states, servers)
    assert [(each.member.failed, each.member.untold) for each in servers] == [(0, 0)] * len(servers)


def change_at_random(dice: random.Random) -> Change:
    version, other, name = dice.choice("1234"), dice.choice("1234"), dice.choice("mn")
    return dice.choice(
        (
            register(version, name, dice.randrange(3), dice.choice((1, 8))),
            register(version, name),
            unregister(version, name),
            scale(version, dice.randrange(4), name),
            choose(version, name),
            weigh(name, **{f"v{version}": 60, f"v{other}": 40}),
            lambda calls: calls.set_weights(name, {}, insist=True),
            lambda calls: calls.set_weights(name, {}),
            lambda calls: calls.unload(name),
        )
    )
