"""Servers that run on one folder: a sequence goes on at the one to which its next step comes, or is lost."""

import asyncio
import itertools
import os
import shutil
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.core.dispatch.shell import Shell, stateful
from tests.core.handover.test_interleavings import World, started
from tests.core.handover.test_left_sequences import A_LIMIT

from torchserve_py.base.causes import Cause
from torchserve_py.core.dispatch.ownership import Ownership
from torchserve_py.core.handover import handover, next_server, server_lists, whereabouts
from torchserve_py.core.handover.disk import Disk
from torchserve_py.core.handover.left_files import LeftFiles, in_folder
from torchserve_py.core.handover.storage import HAS, LOST, Place, Seen, Wanted, name_of
from torchserve_py.core.jobs.call import Call, SequenceRequest
from torchserve_py.core.jobs.parts import JobFailed


async def server(folder: Path) -> World:
    """Return a server with a worker."""
    world = await started(folder, is_shared=True)
    world.add_worker()
    return world


async def answer(world: World, sequence_id: str = "s", *, others: tuple[World, ...] = ()) -> str:
    """Return what the next step of a sequence is told, while the workers of this server and others work."""
    world.submit(sequence_id)
    call = world.calls[-1][1]
    return await working(told(call), world, *others)


async def told(call: object) -> str:
    try:
        return bytes((await call.next()).body).decode()  # type: ignore[attr-defined]
    except JobFailed as failed:
        return str(failed.cause)


async def working(waited: Awaitable[str], *worlds: World) -> str:
    task = asyncio.ensure_future(waited)
    async with asyncio.timeout(A_LIMIT):
        while not task.done():
            for world in worlds:
                for number in range(len(world.workers)):
                    world.work(number)
            await asyncio.sleep(0.001)
    return task.result()


async def looks(world: World, count: int = 3) -> None:
    """Let a server look so many times where sequences are."""
    whereabouts = world.handover._whereabouts
    assert whereabouts is not None
    look = whereabouts._look
    numbers = itertools.count(1)
    is_over = asyncio.Event()

    async def counted(*args: Any) -> Any:
        seen = await look(*args)
        if next(numbers) == count:
            is_over.set()
        return seen

    whereabouts._look = counted  # type: ignore[method-assign]
    async with asyncio.timeout(A_LIMIT):
        await is_over.wait()
    whereabouts._look = look  # type: ignore[method-assign]


def lists_of(world: World) -> server_lists.ServerLists:
    assert world.handover._whereabouts is not None
    lists = world.handover._whereabouts._lists
    assert isinstance(lists, server_lists.ServerLists)
    return lists


def dies(world: World) -> None:
    """Let a server say nothing any more to others."""
    assert world.handover._whereabouts is not None
    assert world.handover._whereabouts._task is not None
    world.handover._whereabouts._task.cancel()


def lives(world: World) -> None:
    """Let a server say again what it has."""
    assert world.handover._whereabouts is not None
    world.handover._whereabouts._task = None
    world.share()


async def test_a_sequence_goes_on_at_the_server_to_which_its_step_comes(tmp_path: Path) -> None:
    servers = [await server(tmp_path) for _ in range(3)]
    for step in range(1, 8):
        here = servers[step % 3]
        others = tuple(each for each in servers if each is not here)
        assert await answer(here, others=others) == str(step)
        assert await answer(here, "own", others=others) == str(step)
    assert [len(each.names()) for each in servers] == [0, 2, 0], "it is at one of them only"
    assert not [*(tmp_path / "servers").glob("*.wanted")], "none asks for anything any more"
    await asyncio.gather(*(each.left.removed() for each in servers))
    assert not any((tmp_path / name_of("m")).iterdir())


async def test_a_step_waits_for_the_one_that_runs_at_another_server(tmp_path: Path) -> None:
    first, second = await server(tmp_path), await server(tmp_path)
    assert await answer(first) == "1"
    first.submit("s")
    second.submit("s")
    await looks(second)
    assert await answer(second, "new") == "1", "others do not wait"
    assert not second.calls[0][1].ended
    steps = [told(first.calls[-1][1]), told(second.calls[0][1])]
    assert [await working(each, first, second) for each in steps] == ["2", "3"]


async def test_a_step_waits_for_a_sequence_that_a_server_leaves_as_it_stops(tmp_path: Path) -> None:
    first, second = await server(tmp_path), await server(tmp_path)
    assert [await answer(first) for _ in range(7)] == [str(number) for number in range(1, 8)]
    second.submit("s")
    await looks(second)
    await first.restart()
    assert await working(told(second.calls[0][1]), second) == "8"
    assert [await answer(second), await answer(first, others=(second,))] == ["9", "10"]


async def test_a_step_that_waits_where_the_sequence_was_follows_it(tmp_path: Path) -> None:
    first, second = await server(tmp_path), await server(tmp_path)
    assert await answer(first) == "1"
    second.submit("s")
    async with asyncio.timeout(A_LIMIT):
        while not first.workers["w1"].to_do:  # it is asked to give it
            await asyncio.sleep(0.001)
    first.submit("s")
    steps = [told(each.calls[-1][1]) for each in (first, second)]
    answers = await asyncio.gather(*(working(each, first, second) for each in steps))
    assert sorted(answers) == ["2", "3"]


async def test_a_sequence_that_was_left_to_a_client_which_is_gone_goes_on_anywhere(tmp_path: Path) -> None:
    first, second = await server(tmp_path), await server(tmp_path)
    assert await answer(first) == "1"
    second.submit("s")
    await looks(second)
    second.dispatcher.cancel(second.calls[0][1], Cause.cancelled)
    async with asyncio.timeout(A_LIMIT):
        while not second.names():
            first.work(0)
            second.work(0)
            await asyncio.sleep(0.001)
    assert await answer(first, others=(second,)) == "2"
    await first.restart()
    assert await answer(second) == "3"


async def test_a_worker_that_dies_as_it_gets_a_sequence_takes_it_from_no_server(tmp_path: Path) -> None:
    first, second = await server(tmp_path), await server(tmp_path)
    assert await answer(first) == "1"
    second.submit("s")
    async with asyncio.timeout(A_LIMIT):
        while not second.workers["w1"].to_do:  # it gets the state
            first.work(0)
            await asyncio.sleep(0.001)
    second.dispatcher.cancel(second.calls[0][1], Cause.cancelled)
    second.kill(0)
    await looks(second)
    assert await answer(first, others=(second,)) == "2"


@pytest.mark.parametrize("content", [None, "", "[]", '{"m": 7}', "[" * 100_000])
async def test_a_list_that_cannot_be_read_hides_no_sequence(tmp_path: Path, content: str | None) -> None:
    first, second = await server(tmp_path), await server(tmp_path)
    assert await answer(first) == "1"
    await first.restart()
    for ending in ("open", "wanted"):
        path = tmp_path / "servers" / f"other.{ending}"
        if content is None:
            path.mkdir()
        else:
            path.write_text(content)
    assert await answer(second) == "2"


async def test_a_sequence_goes_to_and_fro(tmp_path: Path) -> None:
    servers = [await server(tmp_path), await server(tmp_path)]
    assert await answer(servers[0]) == "1"
    for step in range(2, 8):
        await servers[step % 2].restart()
        assert await answer(servers[(step + 1) % 2]) == str(step)


async def test_a_sequence_may_come_back_to_the_server_that_has_left_it(tmp_path: Path) -> None:
    first, second = await server(tmp_path), await server(tmp_path)
    assert await answer(first) == "1"
    await first.restart()
    assert [await answer(first), await answer(second, others=(first,))] == ["2", "3"]


async def test_servers_that_ask_at_once_get_the_sequence_in_turn(tmp_path: Path) -> None:
    first, second, third = [await server(tmp_path) for _ in range(3)]
    assert await answer(first) == "1"
    second.submit("s")
    third.submit("s")
    steps = [told(each.calls[0][1]) for each in (second, third)]
    answers = await asyncio.gather(*(working(each, first, second, third) for each in steps))
    assert sorted(answers) == ["2", "3"]


def test_of_servers_that_begin_a_sequence_at_the_same_moment_at_most_one_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = [server_lists.ServerLists(tmp_path, lambda names: {}) for _ in range(2)]
    for each in (first, second):
        each.look({}, {})
    sought = {"m/s": Wanted("m", "s")}
    write, begun = first._write, []

    def late(marks: Any) -> None:
        if not begun:  # the second one looks after the first one has read the lists, and before it tells what it has
            begun.append(second.look({}, sought).places["m/s"])
        write(marks)

    monkeypatch.setattr(first, "_write", late)
    begun.append(first.look({}, sought).places["m/s"])
    assert begun == [Place.nowhere, Place.elsewhere]
    assert [server.place("m/s") for server in (first, second)] == [
        Place.elsewhere,
        Place.nowhere,
    ], "the second one goes on with it"


def test_a_sequence_that_was_lost_begins_anew_at_one_server(tmp_path: Path) -> None:
    first, second, third = [server_lists.ServerLists(tmp_path, lambda names: {}) for _ in range(3)]
    first.look({"m/s": LOST}, {})
    sought = {"m/s": Wanted("m", "s")}
    found = [each.look({}, sought).places["m/s"] for each in (second, third)]
    assert found == [Place.lost, Place.elsewhere]


async def test_a_sequence_of_a_server_that_dies_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = await server(tmp_path), await server(tmp_path)
    assert await answer(first) == "1"
    dies(first)
    second.submit("s")
    await looks(second)
    monkeypatch.setattr(server_lists, "DEAD", 0.0)
    assert await working(told(second.calls[0][1]), second) == "sequence_lost"
    assert await answer(second) == "sequence_lost", "it stays lost"


async def with_one_taken_for_dead(folder: Path) -> tuple[World, World]:
    """Return a server with two steps of "s" and one of "t", and another one that takes it for dead."""
    first, second = await server(folder), await server(folder)
    assert [await answer(first, name) for name in "sst"] == ["1", "2", "1"]
    await looks(second)
    dies(first)
    for other in lists_of(second)._others.values():
        other.heard_at -= server_lists.DEAD
    return first, second


async def test_a_server_that_was_frozen_gives_up_what_others_have_begun_anew(tmp_path: Path) -> None:
    first, second = await with_one_taken_for_dead(tmp_path)
    assert await answer(second) == "sequence_lost"
    second.submit_first("s")
    assert await working(told(second.calls[-1][1]), second) == "1"
    await looks(second)
    lists_of(first)._written_at -= 2 * server_lists.DEAD
    lives(first)
    await looks(first)
    assert await answer(first, "t") == "2"
    assert await answer(first, others=(second,)) == "2"


async def test_a_server_that_was_frozen_as_it_stopped_leaves_nothing_that_others_have_begun_anew(
    tmp_path: Path,
) -> None:
    first, second = await with_one_taken_for_dead(tmp_path)
    second.submit_first("s")
    assert await working(told(second.calls[-1][1]), second) == "1"
    await looks(second)
    lives(first)
    lists_of(first)._written_at -= 2 * server_lists.DEAD
    assert first.handover._whereabouts is not None
    first.handover._whereabouts._looked_at -= 2 * server_lists.DEAD
    await first.restart()
    assert await answer(first, others=(second,)) == "2"
    assert await answer(second, "t", others=(first,)) == "2"


@pytest.mark.parametrize(("seconds", "usurped"), [(0.0, []), (2 * server_lists.DEAD, ["m/s"])])
def test_what_another_server_has_begun_anew_and_left_is_given_up(
    tmp_path: Path, seconds: float, usurped: list[str]
) -> None:
    lists = server_lists.ServerLists(tmp_path / "servers", lambda names: {})
    lists.look({"m/s": HAS, "m/t": HAS}, {})
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "s").touch()
    os.utime(tmp_path / "m" / "s", (time.time() + seconds,) * 2)
    lists._written_at -= 2 * server_lists.DEAD
    assert lists.look({}, {}).usurped == usurped


def test_a_server_that_has_died_has_begun_nothing_anew_while_another_one_was_frozen(tmp_path: Path) -> None:
    first, second = [server_lists.ServerLists(tmp_path, lambda names: {}) for _ in range(2)]
    first.look({"m/s": HAS}, {})
    second.look({"m/s": HAS}, {})
    second._written_at -= 2 * server_lists.DEAD
    assert second.look({}, {}).usurped == []


async def test_a_sequence_that_its_server_lost_is_lost_at_others(tmp_path: Path) -> None:
    first, second = await server(tmp_path), await server(tmp_path)
    assert await answer(first) == "1"
    first.kill(0)
    await looks(first)
    assert await answer(second) == "sequence_lost"


async def test_a_step_that_is_given_up_before_it_runs_hides_no_loss(tmp_path: Path) -> None:
    first, second = await server(tmp_path), await server(tmp_path)
    assert await answer(first) == "1"
    first.kill(0)
    first.submit("s")
    await looks(first)
    first.calls[-1][1].cancel()
    await looks(first)
    assert await answer(second) == "sequence_lost"


async def test_a_sequence_that_cannot_be_left_is_lost_at_others_until_it_has_ended(tmp_path: Path) -> None:
    first, second = await server(tmp_path), await server(tmp_path)
    assert await answer(first) == "1"
    first.refuses["s"] = True
    assert await answer(second, others=(first,)) == "sequence_lost"
    assert await answer(first) == "2", "it is served where it is"
    first.end("s")
    await looks(first)
    assert await answer(first) == "1"


async def test_a_sequence_that_could_not_be_written_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "_ASK_AGAIN", 0.0)
    first, second = await server(tmp_path), await server(tmp_path)
    assert await answer(first) == "1"
    failures, write = iter([OSError("No space left on device")] * 2), LeftFiles.write

    def failing(*args: Any) -> None:
        for failure in failures:
            raise failure
        write(*args)

    monkeypatch.setattr(LeftFiles, "write", failing)
    assert await answer(second, others=(first,)) == "2"
    assert first.dispatcher.metrics.handover.refused["failed"].value == 2


async def test_a_step_does_not_wait_for_ever_for_another_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await server(tmp_path), await server(tmp_path)
    assert await answer(first) == "1"
    first.submit("s")
    monkeypatch.setattr(next_server, "_WAIT_LIMIT", 0.3)
    assert await answer(second) == "sequence_moved"
    assert await answer(second, others=(first,)) == "3", "it is not lost"


async def test_what_could_not_be_left_is_lost_and_what_has_ended_is_not(tmp_path: Path) -> None:
    first, second = await server(tmp_path), await server(tmp_path)
    assert [await answer(first, name) for name in ("ends", "stays")] == ["1", "1"]
    first.end("ends")
    first.refuses["stays"] = True
    await first.restart()
    assert [await answer(second, name) for name in ("ends", "stays")] == ["1", "sequence_lost"]


async def test_a_sequence_that_has_ended_where_it_went_may_begin_anew(tmp_path: Path) -> None:
    first, second = await server(tmp_path), await server(tmp_path)
    assert await answer(first) == "1"
    await first.restart()
    assert await answer(second) == "2"
    second.end("s")
    assert await answer(second) == "1"


async def test_a_sequence_that_is_over_here_is_refused_although_it_was_looked_for(tmp_path: Path) -> None:
    world = await server(tmp_path)
    assert await answer(world) == "1"
    world.kill(0)
    world.add_worker()
    assert [await answer(world), await answer(world)] == ["sequence_lost", "sequence_lost"]


async def test_a_sequence_goes_to_the_version_that_it_is_of(tmp_path: Path) -> None:
    first, second = await server(tmp_path), await server(tmp_path)
    assert await answer(first) == "1"
    await first.restart()
    newer = Shell(stateful(), 1, version="2")
    ownership = Ownership({"1": second.shell, "2": newer}, ())
    for each in (second.shell, newer):
        each.dispatcher.join(ownership, each)
    newer.dispatcher.inherit(second.left, "2")
    named, by_default = [
        Call((), "", "text/plain", sequence=SequenceRequest("s", False, False, ()), by_default=each)
        for each in (False, True)
    ]
    assert await told(newer.run(named)) == "sequence_moved"
    assert await working(told(newer.run(by_default)), second) == "2"
    assert newer.dispatcher.scheduler.sequence("s") is None


async def test_a_model_that_is_no_longer_served_leaves_nothing_to_others(tmp_path: Path) -> None:
    first, second = await server(tmp_path), await server(tmp_path)
    assert await answer(first) == "1"
    await first.restart()
    second.left.drop()
    await second.left.removed()
    assert not any(each.is_file() for each in (tmp_path / name_of("m")).iterdir())


async def test_a_folder_that_cannot_be_read_keeps_no_sequence_from_beginning(tmp_path: Path) -> None:
    world = World(partial(in_folder, tmp_path / "a file" / "handover", is_shared=True))
    (tmp_path / "a file").write_text("")
    await world.start_server()
    world.add_worker()
    assert [await answer(world), await answer(world)] == ["1", "2"]
    await world.handover.has_left(world.names())


async def test_while_a_folder_hangs_sequences_begin_and_those_of_other_servers_are_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await server(tmp_path), await server(tmp_path)
    assert await answer(first) == "1"
    lists_of(second)._read_lists()
    is_over, look = threading.Event(), server_lists.ServerLists.look
    with monkeypatch.context() as patch:
        patch.setattr(server_lists.ServerLists, "look", lambda *args: (is_over.wait(A_LIMIT), look(*args))[1])
        patch.setattr(whereabouts, "_LIMIT", 0.01)
        patch.setattr(next_server, "_WAIT_LIMIT", 0.3)
        assert [await answer(second, "new"), await answer(second)] == ["1", "sequence_moved"]
        is_over.set()
    assert await answer(second, others=(first,)) == "2"
    assert await answer(first, "new", others=(second,)) == "2"


async def test_a_server_that_was_frozen_takes_no_folder_for_one_that_hangs() -> None:
    answers = threading.Event()
    looked = asyncio.ensure_future(Disk().run(answers.wait, 1.0))
    await asyncio.sleep(0.01)
    time.sleep(1.5)  # all of the server stands still
    asyncio.get_running_loop().call_later(0.01, answers.set)
    assert await looked


async def test_what_another_server_had_is_not_begun_anew_while_the_folder_gives_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = iter([Place.elsewhere])

    def look(lists: Any, marks: Any, sought: dict[str, Any]) -> Seen:
        for place in seen:
            return Seen(dict.fromkeys(sought, place), {}, [], [], None)
        raise OSError("no answer")

    monkeypatch.setattr(server_lists.ServerLists, "look", look)
    places = whereabouts.Whereabouts(server_lists.ServerLists(tmp_path, lambda names: {}))
    places.start(lambda wanted: False, lambda wanted: None, lambda names: None)
    with pytest.raises(TimeoutError):
        await places.seek("m/s", Wanted("m", "s"), 0.5)
    found, _ = await places.seek("m/new", Wanted("m", "new"), A_LIMIT)
    assert found is Place.nowhere
    await places.end([])


async def test_a_look_that_is_late_tells_what_is_to_be_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    works, usurped = threading.Event(), iter([["m/s"]])

    def look(*args: object) -> Seen:
        works.wait(A_LIMIT)
        return Seen({}, {}, [], next(usurped, []), None)

    monkeypatch.setattr(server_lists.ServerLists, "look", look)
    monkeypatch.setattr(whereabouts, "_LIMIT", 0.01)
    given_up: list[str] = []
    places = whereabouts.Whereabouts(server_lists.ServerLists(tmp_path, lambda names: {}))
    places.start(lambda wanted: True, lambda wanted: None, given_up.extend)
    async with asyncio.timeout(A_LIMIT):
        while not places._is_blind:
            await asyncio.sleep(0.01)
        works.set()
        while not given_up:
            await asyncio.sleep(0.01)
    assert given_up == ["m/s"]
    await places.end([])


@pytest.mark.parametrize("hangs", [False, True])
async def test_while_a_folder_gives_no_answer_only_what_its_list_is_to_say_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, hangs: bool
) -> None:
    places = whereabouts.Whereabouts(server_lists.ServerLists(tmp_path, lambda names: {}))
    is_open = dict.fromkeys(["listed", "begun", "open"], True)
    places.start(lambda wanted: is_open.get(wanted.sequence_id, False), lambda wanted: None, lambda names: None)
    other = server_lists.ServerLists(tmp_path, lambda names: {})

    async def is_so(found: Callable[[], bool]) -> None:
        async with asyncio.timeout(A_LIMIT):
            while not found():
                await asyncio.sleep(0.01)
                other._read_lists()

    places.changed("listed", Wanted("m", "listed"))
    await is_so(lambda: other.place("listed") is Place.elsewhere)
    works, look = threading.Event(), server_lists.ServerLists.look

    def fails(lists: Any, *given: Any) -> Any:
        if hangs:
            works.wait(A_LIMIT)
        elif not works.is_set():
            raise OSError("no answer")
        return look(lists, *given)

    monkeypatch.setattr(server_lists.ServerLists, "look", fails)
    monkeypatch.setattr(whereabouts, "_LIMIT", 0.01)
    monkeypatch.setattr(whereabouts, "_MOST_CHANGED", 100)
    places.changed("begun", Wanted("m", "begun"))
    await is_so(lambda: "begun" in places._changed and places._told == {"begun"})
    is_open |= {"listed": False, "begun": False}
    for name in ("listed", "begun", "open", *map(str, range(1_000))):
        places.changed(name, Wanted("m", name))
    await is_so(lambda: len(places._changed) <= 3)
    monkeypatch.setattr(whereabouts, "_LIMIT", A_LIMIT)
    works.set()
    await is_so(lambda: other.place("open") is Place.elsewhere)
    assert [other.place(name).name for name in ("listed", "begun")] == ["nowhere", "nowhere"]
    await places.end([])


async def test_a_list_names_only_the_sequences_that_were_lost_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whereabouts, "_MOST_LOST", 2)
    places = whereabouts.Whereabouts(server_lists.ServerLists(tmp_path, lambda names: {}))
    places.start(lambda wanted: False, lambda wanted: None, lambda names: None)
    other = server_lists.ServerLists(tmp_path, lambda names: {})
    sought = {name: Wanted("m", name) for name in ("a", "b", "c")}
    for name, wanted in sought.items():
        places.lost(name, wanted)
        async with asyncio.timeout(A_LIMIT):
            while other.place(name) is not Place.lost:
                await asyncio.sleep(0.01)
                other._read_lists()
    async with asyncio.timeout(A_LIMIT):
        while other.place("a") is Place.lost:
            await asyncio.sleep(0.01)
            other._read_lists()
    assert [other.place(name).name for name in sought] == ["nowhere", "lost", "lost"]
    await places.end([])


@pytest.mark.parametrize("yields", [0, 1])
@pytest.mark.parametrize("problem", ["full", "removed", "damaged"])
async def test_of_two_servers_that_have_a_sequence_since_their_folder_did_not_work_one_gives_it_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, problem: str, yields: int
) -> None:
    def full(marks: object) -> str:
        raise OSError("No space left on device")

    first, second = [await server(tmp_path), await server(tmp_path)]
    if (lists_of(first)._own.name > lists_of(second)._own.name) is bool(yields):
        first, second = second, first
    with monkeypatch.context() as patch:
        if problem == "full":
            patch.setattr(server_lists, "_lines_of", full)
        assert [await answer(first, name) for name in "sst"] == ["1", "2", "1"]
        if problem == "removed":
            dies(first)
            shutil.rmtree(tmp_path / "servers")
        elif problem == "damaged":
            await looks(first)
            lists_of(first)._own.write_text("nonsense")
        assert await answer(second) == "1"
    if problem == "removed":
        lives(first)
    monkeypatch.setattr(server_lists, "SIGN_INTERVAL", 0.05)
    keeps, yielding = (first, second) if yields else (second, first)
    async with asyncio.timeout(A_LIMIT):
        while ("m", "s") in yielding.names():
            await asyncio.sleep(0.01)
    assert ("m", "s") in keeps.names()
    assert "'s' is given up: another server" in caplog.text
    assert [each.dispatcher.metrics.handover.given_up.value for each in (keeps, yielding)] == [0, 1]
    await looks(yielding)
    assert await answer(yielding, others=(keeps,)) == ("3" if keeps is first else "2")
    assert await answer(first, "t", others=(second,)) == "2"


async def test_a_folder_that_is_removed_is_made_anew(tmp_path: Path) -> None:
    first, second = await server(tmp_path), await server(tmp_path)
    assert await answer(first) == "1"
    shutil.rmtree(tmp_path / "servers")
    lists_of(first)._written_at -= 2 * server_lists.SIGN_INTERVAL
    await looks(first)
    assert await answer(second, others=(first,)) == "2"


async def test_a_list_that_cannot_be_written_is_written_once_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await server(tmp_path), await server(tmp_path)

    def full(marks: object) -> str:
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(server_lists, "_lines_of", full)
        assert await answer(first) == "1"
    await looks(first)
    assert await answer(second, others=(first,)) == "2"


async def test_a_list_is_written_anew_when_most_of_it_is_past(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_lists, "_SPARE_LINES", 0)
    first = await server(tmp_path)
    for name in "abcdefgh":
        assert await answer(first, name) == "1"
        if name == "c":
            second = await server(tmp_path)
            await looks(second)
        if name != "h":
            first.end(name)
            await looks(first)
    listed = [path.read_text() for path in (tmp_path / "servers").iterdir()]
    assert f"+{name_of('m')}/{name_of('h')}\n" in [text[17:] for text in listed]
    assert await answer(second, "h", others=(first,)) == "2"
    assert await answer(second, "a") == "1"


async def test_lists_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = await server(tmp_path), await server(tmp_path)
    assert await answer(first) == "1"
    first.refuses["s"] = True
    await first.restart()
    await looks(first)
    await looks(second)
    assert len([*(tmp_path / "servers").iterdir()]) == 3
    assert await answer(second) == "sequence_lost"
    monkeypatch.setitem(server_lists._KEPT, ".open", -1.0)  # type: ignore[arg-type]
    assert await answer(second, "other") == "1"
    assert len([*(tmp_path / "servers").iterdir()]) < 3


async def test_a_server_alone_writes_no_lists(tmp_path: Path) -> None:
    world = await started(tmp_path)
    world.add_worker()
    assert await answer(world) == "1"
    await world.restart()
    assert not (tmp_path / "servers").exists()
