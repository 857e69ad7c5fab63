"""Servers that run on one folder, in random orders: each step counts once, and defects that are planted are found."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.core.handover.test_interleavings import World
from tests.core.handover.test_left_sequences import A_LIMIT
from tests.core.handover.test_shared_folder import server, told

from torchserve_py.core.handover import left_sequences, server_lists, storage, whereabouts
from torchserve_py.core.handover.left_files import LeftFiles
from torchserve_py.core.jobs.call import Call
from torchserve_py.core.scheduling.scheduler import Scheduler
from torchserve_py.core.scheduling.sequence import MOVING


class Client:
    """Steps one sequence, and goes to another server when one refuses a step."""

    def __init__(self, sequence_id: str, servers: list[World]) -> None:
        self.sequence_id, self.servers = sequence_id, servers
        self.at, self.count = servers[0], 0
        self.call: Call | None = None
        self.is_lost = False
        #: How many steps it has given up, which may have run.
        self.given_up = 0

    def give_up(self) -> None:
        if self.call is not None and self.call.owner is not None:
            self.call.owner.gave_up(self.call)
            self.call, self.given_up = None, self.given_up + 1

    def step(self) -> None:
        if self.call is None and not self.is_lost:
            self.at.submit(self.sequence_id)
            self.call = self.at.calls[-1][1]

    def hop(self) -> None:
        """The proxy sends the next step to the next server."""
        if self.call is None:
            self.at = self.servers[(self.servers.index(self.at) + 1) % len(self.servers)]

    async def look(self, *, refuses: bool) -> None:
        """Look what the step was told, if anything."""
        if self.call is None or not self.call.ended:
            return
        heard, self.call = await told(self.call), None
        if heard == "draining":
            self.hop()
            self.step()
        elif heard in ("sequence_lost", "interrupted") and refuses:
            self.is_lost = True
        else:
            expected = [str(self.count + 1 + given_up) for given_up in range(self.given_up + 1)]
            assert heard in expected, f"{self.sequence_id} was told {heard} as one of the steps {expected}"
            self.count, self.given_up = int(heard), 0


WHAT = ["step"] * 6 + ["work"] * 8 + ["turn"] * 4 + ["hop"] * 2 + ["stop", "refuse", "give up"]


@pytest.mark.parametrize("refuses", [False, True])
def test_each_step_counts_once_at_whichever_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: bool
) -> None:
    monkeypatch.setattr(whereabouts, "_WANTED_INTERVAL", 0.005)
    for seed in range(30):
        asyncio.run(play(random.Random(seed), partial(server, tmp_path / str(seed)), refuses=refuses))


async def play(
    choice: random.Random,
    start: Callable[[], Awaitable[World]],
    *,
    refuses: bool,
    kind: type[Client] = Client,
    what: Sequence[str] = WHAT,
) -> None:
    servers = [await start() for _ in range(3)]
    clients = [kind(name, servers) for name in "stuv"]
    stopping: asyncio.Task[None] | None = None
    for _ in range(choice.randrange(100, 400)):
        client, world = choice.choice(clients), choice.choice(servers)
        match choice.choice(what):
            case "step":
                client.step()
            case "work":
                world.work(choice.randrange(1_000))
            case "turn":
                await asyncio.sleep(0.01 if choice.random() < 0.5 else 0)
            case "hop":
                client.hop()
            case "stop" if stopping is None or stopping.done():
                stopping = asyncio.ensure_future(world.restart())
            case "give up":
                client.give_up()
            case "refuse" if refuses:
                world.refuses[client.sequence_id] = True
        for each in clients:
            await each.look(refuses=refuses)
    for world in servers:
        world.dispatcher.set_workers(1)  # so that each has room for all
    async with asyncio.timeout(A_LIMIT):
        while any(client.call is not None for client in clients) or not (stopping is None or stopping.done()):
            for each in servers:
                each.work(choice.randrange(1_000))
            await asyncio.sleep(0)
            for client in clients:
                await client.look(refuses=refuses)
    for world in servers:
        await world.handover.has_left(world.names())


def lists_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(server_lists.ServerLists, "_write", lambda lists, marks: None)


def is_unlisted_while_it_moves(patch: pytest.MonkeyPatch) -> None:
    def has(folder: Any, is_open: Any, wanted: storage.Wanted) -> bool:
        sequence = is_open.__self__.dispatcher.scheduler.sequence(wanted.sequence_id)
        return sequence is not None and sequence.state is not MOVING

    patch.setattr(left_sequences.ServerHandover, "_has", has)


def stays_where_it_was(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Scheduler, "give_up", lambda scheduler, sequence, now: ((), ()))


def may_be_taken_twice(patch: pytest.MonkeyPatch) -> None:
    def take(files: LeftFiles, key: str, taken: str) -> bytes | None:
        path = files._folder / key
        return path.read_bytes() if path.exists() else None

    patch.setattr(LeftFiles, "take", take)


def reads_no_other_list(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(server_lists.ServerLists, "place", lambda lists, name: storage.Place.nowhere)


@pytest.mark.parametrize(
    "mutate",
    [
        lists_nothing,
        is_unlisted_while_it_moves,
        stays_where_it_was,
        may_be_taken_twice,
        reads_no_other_list,
    ],
)
def test_servers_with_a_defect_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutate: Callable[[pytest.MonkeyPatch], None]
) -> None:
    monkeypatch.setattr(whereabouts, "_WANTED_INTERVAL", 0.005)
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        for seed in range(400):
            asyncio.run(play(random.Random(seed), partial(server, tmp_path / str(seed)), refuses=False))
