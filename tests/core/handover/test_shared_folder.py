"""Two servers that run on one folder: a sequence goes on at the other one when its server stops, or is lost."""

import asyncio
import itertools
import random
from collections.abc import Awaitable
from pathlib import Path

import pytest
from tests.core.dispatch.shell import Shell, stateful
from tests.core.handover.test_interleavings import World, started
from tests.core.handover.test_left_sequences import A_LIMIT

from torchserve_py.base.causes import Cause
from torchserve_py.core.dispatch.ownership import Ownership
from torchserve_py.core.handover import departures, left_sequences
from torchserve_py.core.handover.left_sequences import name_of
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


async def turns_of_seeking(world: World, count: int = 3) -> None:
    """Let a server look so many times for files that are to come."""
    seek = world.left._seek_once
    looks = itertools.count()
    is_over = asyncio.Event()

    async def counted(announced: departures.Departures) -> None:
        await seek(announced)
        if next(looks) == count:
            is_over.set()

    world.left._seek_once = counted  # type: ignore[method-assign]
    async with asyncio.timeout(A_LIMIT):
        await is_over.wait()


async def test_a_step_waits_for_a_sequence_that_another_server_is_about_to_leave(tmp_path: Path) -> None:
    first, second = await server(tmp_path), await server(tmp_path)
    assert [await answer(first) for _ in range(7)] == [str(number) for number in range(1, 8)]
    await first.announce()
    second.submit("s")
    await turns_of_seeking(second)
    assert await answer(second, "new") == "1", "others do not wait"
    assert not second.calls[0][1].ended
    await first.restart()
    assert await working(told(second.calls[0][1]), second) == "8"
    assert [await answer(second), await answer(first)] == ["9", "sequence_lost"]


async def test_a_server_that_is_asked_for_a_sequence_leaves_it_at_once_and_serves_the_others(tmp_path: Path) -> None:
    first, second = await server(tmp_path), await server(tmp_path)
    assert [await answer(first, name) for name in "st"] == ["1", "1"]
    await first.announce()
    assert await answer(second, others=(first,)) == "2"
    assert [await answer(first, "t"), await answer(first, "new")] == ["2", "1"]
    assert [await answer(first), await answer(second)] == ["sequence_lost", "3"]
    assert not [*(tmp_path / "servers").glob("*.wanted")], "it asks for nothing any more"


async def test_a_sequence_that_was_left_before_its_server_stops_may_come_back(tmp_path: Path) -> None:
    first, second = await server(tmp_path), await server(tmp_path)
    assert await answer(first) == "1"
    await first.announce()
    second.submit("s")
    await turns_of_seeking(second)
    second.dispatcher.cancel(second.calls[0][1], Cause.cancelled)
    async with asyncio.timeout(A_LIMIT):
        while not (tmp_path / first.left.name / name_of("s")).exists():
            first.work(0)
            await asyncio.sleep(0.001)
    assert await answer(first) == "2"
    await first.restart()
    assert await answer(second) == "3"


@pytest.mark.parametrize("content", [None, "", "[]", '{"m": 7}', "[" * 100_000])
async def test_a_list_that_cannot_be_read_hides_no_sequence(tmp_path: Path, content: str | None) -> None:
    first, second = await server(tmp_path), await server(tmp_path)
    assert await answer(first) == "1"
    await first.restart()
    for ending in ("leaving", "left"):
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
    assert [await answer(first), await answer(second)] == ["2", "sequence_lost"]


async def test_of_two_servers_that_ask_at_once_one_gets_the_sequence(tmp_path: Path) -> None:
    first, second, third = [await server(tmp_path) for _ in range(3)]
    assert await answer(first) == "1"
    await first.announce()
    second.submit("s")
    third.submit("s")
    await first.restart()
    answers = [await working(told(each.calls[0][1]), second, third) for each in (second, third)]
    assert sorted(answers) == ["2", "sequence_lost"]


async def test_a_sequence_of_a_server_that_dies_while_it_leaves_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await server(tmp_path), await server(tmp_path)
    assert await answer(first) == "1"
    await first.announce()
    assert first.handover._announcing is not None
    first.handover._announcing.cancel()
    second.submit("s")
    await turns_of_seeking(second)
    monkeypatch.setattr(departures, "_DEAD", 0.0)
    assert await working(told(second.calls[0][1]), second) == "sequence_lost"
    assert await answer(second) == "sequence_lost", "it stays lost"


async def test_a_step_does_not_wait_for_ever_for_a_sequence_that_its_server_cannot_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await server(tmp_path), await server(tmp_path)
    assert await answer(first) == "1"
    first.refuses["s"] = True
    await first.announce()
    monkeypatch.setattr(left_sequences, "_WAIT_LIMIT", 0.5)
    assert await answer(second, others=(first,)) == "sequence_lost"
    assert await answer(first) == "2", "it is served where it is"


async def test_what_could_not_be_left_is_lost_and_what_has_ended_is_not(tmp_path: Path) -> None:
    first, second = await server(tmp_path), await server(tmp_path)
    assert [await answer(first, name) for name in ("ends", "stays")] == ["1", "1"]
    await first.announce()
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
    assert not any(each.is_file() for each in (tmp_path / second.left.name).iterdir())


async def test_a_folder_that_cannot_be_read_keeps_no_sequence_from_beginning(tmp_path: Path) -> None:
    world = World(tmp_path / "a file" / "handover", is_shared=True)
    (tmp_path / "a file").write_text("")
    await world.start_server()
    world.add_worker()
    assert [await answer(world), await answer(world)] == ["1", "2"]
    await world.announce()
    await world.handover.has_left(world.names)


async def test_lists_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = await server(tmp_path), await server(tmp_path)
    assert await answer(first) == "1"
    await first.restart()
    assert await answer(second) == "2"
    assert [each.suffix for each in (tmp_path / "servers").iterdir()] == [".left"]
    monkeypatch.setitem(departures._KEPT, ".left", -1.0)  # type: ignore[arg-type]
    assert await answer(second, "other") == "1"
    assert not any((tmp_path / "servers").iterdir())


async def test_a_server_alone_writes_no_lists(tmp_path: Path) -> None:
    world = await started(tmp_path)
    world.add_worker()
    assert await answer(world) == "1"
    await world.restart()
    assert not (tmp_path / "servers").exists()


class Client:
    """Steps one sequence, and goes to the other server when one refuses a step."""

    def __init__(self, sequence_id: str, servers: list[World]) -> None:
        self.sequence_id, self.servers = sequence_id, servers
        self.at, self.count = servers[0], 0
        self.call: Call | None = None
        self.is_lost = False

    def other(self) -> World:
        return self.servers[self.at is self.servers[0]]

    def step(self) -> None:
        if self.call is None and not self.is_lost:
            self.at.submit(self.sequence_id)
            self.call = self.at.calls[-1][1]

    def hop(self) -> None:
        """The proxy has heard that the server is about to stop."""
        if self.call is None and self.at.handover._announcing is not None:
            self.at = self.other()

    async def look(self, *, refuses: bool) -> None:
        """Look what the step was told, if anything."""
        if self.call is None or not self.call.ended:
            return
        heard, self.call = await told(self.call), None
        if heard == "draining":
            self.at = self.other()
            self.step()
        elif heard == "sequence_lost" and refuses:
            self.is_lost = True
        else:
            self.count += 1
            assert heard == str(self.count), f"{self.sequence_id} was told {heard} as step {self.count}"


WHAT = ["step"] * 6 + ["work"] * 8 + ["turn"] * 4 + ["hop"] * 2 + ["stop", "refuse"]


@pytest.mark.parametrize("refuses", [False, True])
def test_each_step_counts_once_at_whichever_server(tmp_path: Path, refuses: bool) -> None:
    for seed in range(60):
        asyncio.run(play(random.Random(seed), tmp_path / str(seed), refuses=refuses))


async def play(choice: random.Random, folder: Path, *, refuses: bool) -> None:
    servers = [await server(folder), await server(folder)]
    clients = [Client(name, servers) for name in "stuv"]
    stopping: asyncio.Task[None] | None = None
    for _ in range(choice.randrange(20, 200)):
        client, world = choice.choice(clients), choice.choice(servers)
        match choice.choice(
            ["step"] * 6 + ["work"] * 8 + ["turn"] * 4 + ["hop", "hop", "announce", "restart", "refuse"]
        ):
            case "step":
                client.step()
            case "work":
                world.work(choice.randrange(1_000))
            case "turn":
                await asyncio.sleep(0.003 if choice.random() < 0.2 else 0)
            case "hop":
                client.hop()
            case "stop" if stopping is None or stopping.done():
                await world.announce()
                stopping = asyncio.ensure_future(world.restart())
            case "refuse" if refuses:
                world.refuses[client.sequence_id] = True
        for each in clients:
            await each.look(refuses=refuses)
    if stopping is not None:
        await stopping
    for world in servers:
        world.dispatcher.set_workers(1)  # so that each has room for all
    async with asyncio.timeout(A_LIMIT):
        while any(client.call is not None for client in clients):
            for each in servers:
                each.work(choice.randrange(1_000))
            await asyncio.sleep(0)
            for client in clients:
                await client.look(refuses=refuses)
    for world in servers:
        await world.handover.has_left(world.names)
