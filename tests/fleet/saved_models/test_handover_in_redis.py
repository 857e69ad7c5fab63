"""Sequences in memory of servers whose fleet is in Redis: each goes on at the server to which its next step comes."""

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
import redis
from tests.core.handover.test_interleavings import World
from tests.core.handover.test_left_sequences import A_LIMIT
from tests.core.handover.test_shared_folder import answer, lives, looks, told, working
from tests.core.handover.test_shared_folder_at_random import play
from tests.redis_sentinels import FailoverRedis
from tests.redis_server import DEADLINE, RedisServer

from torchserve_py.core.handover import left_sequences, next_server, whereabouts
from torchserve_py.core.handover.left_format import Damaged
from torchserve_py.core.handover.storage import HAS, LACKS, LOST, Place, Storage, Wanted
from torchserve_py.core.jobs.call import Call, SequenceRequest
from torchserve_py.core.scheduling.sequence_source import LeftSequence
from torchserve_py.fleet.saved_models import handover_in_redis
from torchserve_py.fleet.saved_models.fleet_state import FleetState
from torchserve_py.fleet.saved_models.handover_in_redis import HandoverInRedis
from torchserve_py.fleet.saved_models.state_in_redis import StateInRedis
from ts.protocol.boot_clock import boot_time

SOUGHT = {"m/s": Wanted("m", "s")}

Start = Callable[[], Awaitable[World]]


@pytest.fixture
def fleet(redis_server: RedisServer, request: pytest.FixtureRequest) -> Callable[[], HandoverInRedis]:
    """Return what a server of a fleet has, which no other test has."""
    return partial(HandoverInRedis, redis_server.url, str(abs(hash(request.node.nodeid))))


def storage(*where: str) -> Storage:
    in_redis = HandoverInRedis(*where)
    return Storage(in_redis, in_redis)


@pytest.fixture
def start(fleet: Callable[[], HandoverInRedis]) -> Start:
    """Return what starts a server with a worker."""

    async def server() -> World:
        world = World(partial(storage, *fleet.args))  # type: ignore[attr-defined]
        await world.start_server()
        world.add_worker()
        return world

    return server


def keys(of: HandoverInRedis, kind: str = "") -> list[str]:
    return [key.decode() for key in of._redis.keys(f"{of._prefix}:{kind}*")]


def in_redis(world: World) -> HandoverInRedis:
    assert world.handover._whereabouts is not None
    lists = world.handover._whereabouts._lists
    assert isinstance(lists, HandoverInRedis)
    return lists


async def test_a_sequence_goes_on_at_the_server_to_which_its_step_comes(start: Start) -> None:
    servers = [await start() for _ in range(3)]
    for step in range(1, 8):
        here = servers[step % 3]
        others = tuple(each for each in servers if each is not here)
        assert await answer(here, others=others) == str(step)
        assert await answer(here, "own", others=others) == str(step)
    assert [len(each.names()) for each in servers] == [0, 2, 0], "it is at one of them only"
    await asyncio.gather(*(each.left.removed() for each in servers))
    assert not keys(in_redis(servers[0]), "left") + keys(in_redis(servers[0]), "part")
    for each in servers:
        await each.handover.has_left([])
    assert not keys(in_redis(servers[0])), "nothing is left of servers that have ended"


@pytest.mark.parametrize("refuses", [False, True])
def test_each_step_counts_once_at_whichever_server(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, refuses: bool
) -> None:
    monkeypatch.setattr(whereabouts, "_WANTED_INTERVAL", 0.005)
    for seed in range(20):

        async def server(fleet: str = f"{refuses}-{seed}") -> World:
            world = World(partial(storage, redis_server.url, fleet))
            await world.start_server()
            world.add_worker()
            return world

        asyncio.run(play(random.Random(seed), server, refuses=refuses))


async def test_a_server_that_stops_leaves_its_sequences_and_what_it_could_not_leave_is_lost(start: Start) -> None:
    first, second = await start(), await start()
    assert [await answer(first, name) for name in ("goes", "ends", "stays")] == ["1", "1", "1"]
    first.end("ends")
    first.refuses["stays"] = True
    await first.restart()
    assert [await answer(second, name) for name in ("goes", "ends", "stays")] == ["2", "1", "sequence_lost"]


async def test_of_servers_that_look_for_a_sequence_at_the_same_moment_one_has_it(
    fleet: Callable[[], HandoverInRedis],
) -> None:
    servers = [fleet() for _ in range(8)]
    seen = await asyncio.gather(*(asyncio.to_thread(each.look, {}, SOUGHT) for each in servers))
    places = [each.places["m/s"] for each in seen]
    assert sorted(each.name for each in places) == ["elsewhere"] * 7 + ["nowhere"]
    owner = servers[places.index(Place.nowhere)]
    assert owner.look({}, {}).wanted == [Wanted("m", "s")] * 7


def test_a_sequence_that_was_lost_begins_anew_at_one_server(fleet: Callable[[], HandoverInRedis]) -> None:
    first, second, third = [fleet() for _ in range(3)]
    first.look({"m/s": LOST}, {})
    assert [each.look({}, SOUGHT).places["m/s"] for each in (second, third)] == [Place.lost, Place.elsewhere]


def test_what_a_server_had_that_died_is_lost_and_it_learns_so_if_it_was_frozen(
    fleet: Callable[[], HandoverInRedis], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = fleet(), fleet()
    first.look({"m/s": HAS, "m/t": HAS}, {})
    assert second.look({}, SOUGHT).places["m/s"] is Place.elsewhere
    first._redis.delete(f"{first._prefix}:alive:{first._me}")  # as its time limit does
    assert second.look({}, SOUGHT).places["m/s"] is Place.lost
    assert first.look({}, {}).usurped == ["m/s"]
    assert second.look({}, {"m/t": Wanted("m", "t")}).places["m/t"] is Place.elsewhere, "it lives again"


def test_a_server_lives_as_long_as_it_looks(fleet: Callable[[], HandoverInRedis]) -> None:
    first = fleet()
    first.look({"m/s": HAS}, {})
    alive = f"{first._prefix}:alive:{first._me}"
    assert 10 <= first._redis.ttl(alive) <= 11
    first._redis.expire(alive, 5)
    first.look({}, {})
    assert first._redis.ttl(alive) == 5, "once a second is enough"
    first._told_at -= 1.0
    first.look({}, {})
    assert first._redis.ttl(alive) > 5
    assert all(first._redis.ttl(key) > 0 for key in keys(first))


async def falls_silent(world: World) -> None:
    """Let a server say nothing any more to others, once a look that is under way is over."""
    places = world.handover._whereabouts
    assert places is not None
    assert places._task is not None
    places._has_ended = True
    await asyncio.wait([places._task])
    places._has_ended = False


async def test_what_others_have_begun_anew_while_a_server_was_frozen_is_given_up(start: Start) -> None:
    first, second = await start(), await start()
    assert [await answer(first, name) for name in "sst"] == ["1", "2", "1"]
    await looks(second)
    await falls_silent(first)
    lists = in_redis(first)
    lists._redis.delete(f"{lists._prefix}:alive:{lists._me}")
    assert await answer(second) == "sequence_lost"
    second.submit_first("s")
    assert await working(told(second.calls[-1][1]), second) == "1"
    await looks(second)
    with pytest.raises(OSError, match="take this one for dead"):
        await first.left.write("1", "s", LeftSequence((), 60.0), 60.0, [b"2"], A_LIMIT)
    assert not keys(lists, "part")
    lives(first)
    await looks(first)
    assert [await answer(first, "t"), await answer(first, others=(second,))] == ["2", "2"]
    assert first.dispatcher.metrics.handover.given_up.value == 1


async def test_servers_tell_everything_again_after_redis_has_lost_it(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = await start(), await start()
    assert [await answer(first), await answer(second, "t")] == ["1", "1"]
    await looks(first)
    lists = in_redis(first)
    lists._redis.delete(*keys(lists))
    await asyncio.gather(looks(first), looks(second))
    assert [await answer(second, others=(first,)), await answer(first, "t", others=(second,))] == ["2", "2"]
    assert not caplog.records


def test_a_redis_that_has_lost_the_last_changes_is_told_them_again(fleet: Callable[[], HandoverInRedis]) -> None:
    first, second = fleet(), fleet()
    first.look({"m/s": HAS}, {})
    number = first._redis.get(f"{first._prefix}:number:{first._me}")
    first.look({"m/s": LACKS, "m/t": HAS}, {})
    first._redis.delete(f"{first._prefix}:has:{first._me}")
    first._redis.hset(f"{first._prefix}:has:{first._me}", "m/s", HAS)  # as a replica has it that takes over
    first._redis.set(f"{first._prefix}:number:{first._me}", number)
    first.look({}, {})
    sought = SOUGHT | {"m/t": Wanted("m", "t")}
    assert [*second.look({}, sought).places.values()] == [Place.nowhere, Place.elsewhere]


@pytest.mark.parametrize("lost", ["", "has", "alive"])
def test_what_others_had_is_not_begun_anew_before_they_could_tell_that_again(
    fleet: Callable[[], HandoverInRedis], monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    first, second = fleet(), fleet()
    first.look({"m/s": HAS}, {})
    second.look({}, {})
    first._redis.delete(*keys(first, lost))
    if lost == "has":
        second._is_whole = False
    sought = SOUGHT | {"m/new": Wanted("m", "new")}
    assert second.look({}, sought).places == dict.fromkeys(sought, Place.elsewhere)
    assert [*first.look({}, {}).wanted] == [*sought.values()]
    monkeypatch.setattr(handover_in_redis, "boot_time", lambda: boot_time() + 2.0)
    assert second.look({}, sought).places == {"m/s": Place.elsewhere, "m/new": Place.nowhere}


def test_a_server_tells_again_what_another_client_has_removed_or_added(fleet: Callable[[], HandoverInRedis]) -> None:
    first, second = fleet(), fleet()
    first.look({"m/s": HAS}, {})
    for change in (first._redis.delete, lambda key: first._redis.hset(key, "m/t", HAS)):
        change(f"{first._prefix}:has:{first._me}")
        first.look({}, {})
        assert first._redis.hkeys(f"{first._prefix}:has:{first._me}") == [b"m/s"]
    assert second.look({}, SOUGHT).places["m/s"] is Place.elsewhere


def test_what_others_seem_to_have_again_is_given_up_only_if_they_say_so(
    fleet: Callable[[], HandoverInRedis], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = fleet(), fleet()
    first.look({"m/s": HAS, "m/t": HAS}, {})
    second.look({}, {})
    before = {key: first._redis.dump(key) for key in keys(first)}
    first.look({"m/s": LACKS}, {})
    second.look({"m/s": HAS}, {})
    for key, content in before.items():  # a replica takes over that has not heard of that
        first._redis.restore(key, 5_000, content, replace=True)
    second.look({"m/t": HAS}, {})
    assert second.look({}, {}).usurped == []
    assert first.look({}, {}).usurped == []
    monkeypatch.setattr(handover_in_redis, "boot_time", lambda: boot_time() + 2.0)
    assert [first.look({}, {}).usurped, second.look({}, {}).usurped] == [["m/t"], []]


@pytest.mark.parametrize("knows", [False, True])
async def test_a_state_that_was_taken_and_is_there_again_does_not_count(start: Start, knows: bool) -> None:
    first, second, third = [await start() for _ in range(3)]
    assert await answer(first) == "1"
    lists = in_redis(second)
    kept: list[bytes] = []
    take = lists._take

    def taken(names: list[str]) -> object:
        kept.append(lists._redis.dump(names[0]))
        return take(names)

    lists._take = taken
    assert [await answer(second, others=(first,)), await answer(second)] == ["2", "3"]
    await looks(first)
    lists._redis.restore(lists._left(second.left._key("s")), 0, kept[0])  # a replica that takes over has it still
    if knows:
        lists._redis.delete(f"{lists._prefix}:number:{lists._me}")
        await looks(second)
        assert not keys(lists, "left")
    assert await answer(third, others=(first, second)) == "4"
    assert second.dispatcher.metrics.handover.given_up.value == 0


@pytest.mark.parametrize("waits", [False, True])
async def test_while_redis_gives_no_answer_sequences_go_on_and_one_that_two_servers_have_is_given_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, waits: bool
) -> None:
    with RedisServer(tmp_path) as redis_server:

        async def server() -> World:
            world = World(partial(storage, redis_server.url))
            await world.start_server()
            world.add_worker()
            return world

        first, second = await server(), await server()
        assert [await answer(first), await answer(first)] == ["1", "2"]
        await looks(first)
        redis_server.kill()
        assert [await answer(first), await answer(second, "new")] == ["3", "1"]
        if not waits:
            assert await answer(second) == "1", "it cannot be known that another server has it"
        await looks(second, 1)
        redis_server.start()
        async with asyncio.timeout(A_LIMIT):
            while not (first.handover._whereabouts and not first.handover._whereabouts._is_blind):
                await asyncio.sleep(0.01)
        await looks(first)
        await looks(second)
        if waits:
            assert await answer(second, others=(first,)) == "4"
        else:
            assert "'s' is given up: another server" in caplog.text
            assert sum(("m", "s") in each.names() for each in (first, second)) == 1
        assert await answer(first, "new", others=(second,)) == "2"
        await first.handover.has_left([])
        await second.handover.has_left([])


async def test_a_step_that_continues_a_sequence_waits_until_redis_answers_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RedisServer(tmp_path) as redis_server:

        async def server() -> World:
            world = World(partial(storage, redis_server.url))
            await world.start_server()
            world.add_worker()
            return world

        def step(world: World, number: int) -> Call:
            sequence = SequenceRequest("s", False, False, (), number, "a token")
            return world.shell.run(Call((), "", "text/plain", sequence=sequence))

        first, second = await server(), await server()
        assert await working(told(step(first, 1)), first) == "1"
        redis_server.kill()
        call = step(second, 2)
        await looks(second)
        assert not call.ended
        redis_server.start()
        assert await working(told(call), first, second) == "2"
        redis_server.kill()
        monkeypatch.setattr(next_server, "_WAIT_LIMIT", 0.1)
        assert await working(told(step(first, 3)), first, second) == "sequence_moved"
        assert await working(told(step(second, 3)), first, second) == "3"
        for each in (first, second):
            await each.handover.has_left([])


async def leave(of: HandoverInRedis, state: bytes = b"7", rest: float = 60.0) -> left_sequences.LeftSequences:
    of.look({}, {})
    left = left_sequences.ServerHandover(Storage(of, of)).of("m")
    await left.write("1", "s", LeftSequence(("a token",), 60.0), rest, [state], A_LIMIT)
    return left


async def test_a_sequence_is_read_as_it_was_written_by_one_server_only(fleet: Callable[[], HandoverInRedis]) -> None:
    first, second, state = fleet(), fleet(), bytes(range(256)) * 40_000
    left = await leave(first, state)
    key = left._key("s")
    content = second.take(key, "m/.taken-1")
    assert content is not None
    assert state in content
    assert first.take(key, "m/.taken-2") is None
    assert second.take(key, "m/.taken-1") == content, "its worker may have died meanwhile"
    second.rename("m/.taken-1", key)
    assert first.take(key, "m/.taken-2") == content
    first.remove(["m/.taken-2"])
    assert first.take(key, "m/.taken-2") is None


async def test_a_sequence_goes_when_it_was_idle_for_too_long(fleet: Callable[[], HandoverInRedis]) -> None:
    of = fleet()
    await leave(of, rest=20.0)
    (key,) = keys(of, "left")
    assert 18_000 < of._redis.pttl(key) <= 20_000
    of.take(key.partition(":left:")[2], "m/.taken-1")
    (key,) = keys(of, "left")
    assert 18_000 < of._redis.pttl(key) <= 20_000, "also if the server that has taken it dies"


def test_a_connection_that_breaks_is_made_again(
    fleet: Callable[[], HandoverInRedis], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = fleet(), fleet()
    first.look({"m/s": HAS}, {})
    second.look({}, {})
    read, breaks = redis.Connection.read_response, [True]

    def answer(connection: redis.Connection, **options: object) -> object:
        if breaks and breaks.pop():
            connection.disconnect()
            raise redis.ConnectionError("connection reset by peer")
        return read(connection, **options)

    monkeypatch.setattr(redis.Connection, "read_response", answer)
    assert second.look({}, SOUGHT).places["m/s"] is Place.elsewhere
    breaks.append(True)
    first.look({"m/t": HAS}, {})
    assert second.look({}, {"m/t": Wanted("m", "t")}).places["m/t"] is Place.elsewhere


async def test_a_state_that_cannot_be_read_for_a_moment_is_not_lost(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await start(), await start()
    assert await answer(first) == "1"
    take, failures = HandoverInRedis.take, iter([False, True])

    def fails(of: HandoverInRedis, key: str, taken: str) -> bytes | None:
        if (has_taken := next(failures, None)) is None:
            return take(of, key, taken)
        if has_taken:
            take(of, key, taken)
        raise OSError("connection lost")

    monkeypatch.setattr(HandoverInRedis, "take", fails)
    assert await answer(second, others=(first,)) == "2"


async def test_clocks_of_servers_do_not_matter(
    fleet: Callable[[], HandoverInRedis], monkeypatch: pytest.MonkeyPatch
) -> None:
    of, now = fleet(), time.time()
    monkeypatch.setattr(time, "time", lambda: now - 7_200.0)
    left = await leave(of)
    monkeypatch.setattr(time, "time", lambda: now + 7_200.0)
    left.has_come("1", "s")
    read = await left.read("s")
    assert read is not None
    assert not read.is_over


async def test_a_model_that_is_no_longer_served_leaves_nothing(fleet: Callable[[], HandoverInRedis]) -> None:
    of = fleet()
    left = await leave(of)
    of._redis.hset(f"{of._prefix}:left:other/s", "version", "1")
    left.drop()
    await left.removed()
    assert [key.partition(":left:")[2] for key in keys(of, "left")] == ["other/s"]


async def test_damage_says_so(fleet: Callable[[], HandoverInRedis]) -> None:
    of = fleet()
    left = await leave(of)
    (key,) = keys(of, "left")
    of._redis.hset(key, "content", b"nonsense")
    left.has_come("1", "s")
    with pytest.raises(Damaged):
        await left.read("s")


@pytest.mark.parametrize("happened", [False, True])
async def test_a_write_of_which_nobody_knows_whether_it_was_made_does_not_count(
    fleet: Callable[[], HandoverInRedis], monkeypatch: pytest.MonkeyPatch, happened: bool
) -> None:
    first, second = fleet(), fleet()
    first.look({"m/other": HAS}, {})
    appear = first._appear

    def without_answer(*args: object) -> None:
        if happened:
            appear(*args)
        raise redis.ConnectionError("connection lost")

    monkeypatch.setattr(first, "_appear", without_answer)
    with pytest.raises(OSError, match="connection lost"):
        await leave(first)
    key = left_sequences.ServerHandover(Storage(first, first)).of("m")._key("s")
    assert bool(keys(first, "left")) is happened
    first.look({}, {})
    assert not keys(first, "left")
    monkeypatch.setattr(first, "_appear", appear)
    await leave(first)
    first.look({}, {})
    assert second.look({}, {key: Wanted("m", "s")}).places == {key: Place.left}


async def test_a_sequence_that_is_to_be_taken_is_not_given_up_to_its_former_server(
    fleet: Callable[[], HandoverInRedis],
) -> None:
    first, second, third = [fleet() for _ in range(3)]
    key = (await leave(first))._key("s")
    sought = {key: Wanted("m", "s")}
    assert second.look({}, sought).places[key] is Place.left
    second._is_whole = False
    assert second.look({}, {}).usurped == []
    assert third.look({}, sought).places[key] is Place.elsewhere
    assert second.take(key, "m/.taken-1") is not None
    second._is_whole = False
    assert second.look({}, {}).usurped == []
    await leave(first)
    second._is_whole = False
    assert second.look({}, {}).usurped == [key], "it was taken for dead"


async def test_a_state_counts_once_its_server_has_told_that_it_has_the_sequence_no_more(
    fleet: Callable[[], HandoverInRedis],
) -> None:
    first, second = fleet(), fleet()
    left = await leave(first)
    key = left._key("s")
    first.look({key: HAS}, {})
    assert second.look({}, {key: Wanted("m", "s")}).places[key] is Place.elsewhere
    first.look({key: LACKS}, {})
    assert second.look({}, {key: Wanted("m", "s")}).places[key] is Place.left


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
async def test_a_redis_that_drops_keys_when_its_memory_is_full_is_not_used(tmp_path: Path, policy: str) -> None:
    with RedisServer(tmp_path, {"maxmemory": "100mb", "maxmemory-policy": policy}) as redis_server:
        of = HandoverInRedis(redis_server.url)
        with pytest.raises(OSError, match=f"maxmemory-policy {policy}.*Set maxmemory-policy noeviction"):
            of.look({"m/s": HAS}, {})
        assert not keys(of)


async def test_a_state_for_which_redis_has_no_room_stays_where_it_is(tmp_path: Path) -> None:
    with RedisServer(tmp_path, {"maxmemory": "8mb"}) as redis_server:
        of = HandoverInRedis(redis_server.url)
        with pytest.raises(OSError, match="used memory"):
            await leave(of, bytes(16_000_000))
        assert not keys(of, "left") + keys(of, "part")


@pytest.mark.parametrize("text", [b"", b"[]", b'["m"]', b'["m", 7]', b'{"m": 7}', b"[" * 100_000, b"\xff"])
def test_what_another_server_asks_for_may_be_nonsense(fleet: Callable[[], HandoverInRedis], text: bytes) -> None:
    first, second = fleet(), fleet()
    first.look({}, {})
    first._redis.hset(f"{first._prefix}:wanted:{first._me}", mapping={"m/s": text, "m/t": '["m", "t"]'})
    assert second.look({}, {}).wanted == [Wanted("m", "t")]


def test_a_hundred_thousand_sequences_are_told_at_once(fleet: Callable[[], HandoverInRedis]) -> None:
    first, second = fleet(), fleet()
    marks = {f"m/{number:032}": HAS for number in range(100_000)}
    first.look(marks, {})
    last = {f"m/{99_999:032}": Wanted("m", "last")}
    assert second.look({}, last).places == dict.fromkeys(last, Place.elsewhere)


def test_a_fleet_goes_on_at_the_primary_that_sentinels_name(tmp_path: Path) -> None:
    with FailoverRedis(tmp_path) as failover:
        first, second = HandoverInRedis(failover.url), HandoverInRedis(failover.url)
        assert StateInRedis(failover.url).add(FleetState(1, ()))
        first.look({"m/s": HAS}, {})
        former = failover.find_primary()
        former.send_signal(signal.SIGSTOP)
        failover.wait_failed_over(former)
        end = time.monotonic() + DEADLINE
        while True:
            try:
                first.look({}, {})
                break
            except OSError:  # it waits for the former primary at first
                assert time.monotonic() < end
        assert second.look({}, SOUGHT).places["m/s"] is Place.elsewhere
        assert StateInRedis(failover.url).newest_number() == 1
