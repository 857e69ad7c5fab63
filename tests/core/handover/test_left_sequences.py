"""What a server has left, as the next one finds it."""

import asyncio
import math
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.core.handover.test_interleavings import World

from torchserve_py.base.causes import Cause
from torchserve_py.core.handover.left_sequences import Damaged, LeftSequences
from torchserve_py.core.jobs.parts import JobFailed
from torchserve_py.core.scheduling.sequence_source import LeftSequence


def leave(folder: Path, state: bytes = b"7", rest: float = 60.0) -> Path:
    """Leave the sequence s of version 1."""
    left = LeftSequences(folder)
    left.published("1", "s", left.write("1", "s", LeftSequence(("a token",), math.inf), rest, [state]))
    return next(folder.glob("*/*"))


def found(folder: Path) -> LeftSequences:
    left = LeftSequences(folder)
    left.look()
    return left


def test_a_sequence_is_read_as_it_was_written_by_one_server_only(tmp_path: Path) -> None:
    leave(tmp_path, b"\0" * 1_000_000)
    first, second = found(tmp_path), found(tmp_path)
    assert (first.version_of("s"), first.version_of("t")) == ("1", None)
    read = first.read("s")
    assert read is not None
    assert (read.sequence, bytes(read.given)) == (LeftSequence(("a token",), math.inf), b"\0" * 1_000_000)
    assert second.read("s") is None
    assert first.read("s") is not None, "its worker may have died meanwhile"
    first.forget("s")
    assert first.version_of("s") is None
    assert not any(tmp_path.glob("*/*"))


@pytest.mark.parametrize("version", ["1.0", "..", ".", "a/b", "ü" * 40])
def test_a_version_may_have_any_name(tmp_path: Path, version: str) -> None:
    folder = tmp_path / "model"
    left = LeftSequences(folder)
    left.published(version, "s", left.write(version, "s", LeftSequence((), math.inf), 60.0, [b"7"]))
    assert [each.parent.parent for each in tmp_path.rglob("*") if each.is_file()] == [folder]
    assert found(folder).version_of("s") == version


def test_what_cannot_be_written_leaves_no_file(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            leave(tmp_path, bytes(2_000_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not any(each.is_file() for each in tmp_path.rglob("*"))


def test_a_sequence_that_was_idle_for_too_long_is_removed(tmp_path: Path) -> None:
    leave(tmp_path, rest=-1.0)
    assert found(tmp_path).version_of("s") is None
    assert not any(tmp_path.glob("*/*"))


def test_what_a_server_that_died_has_begun_is_removed_an_hour_later(tmp_path: Path) -> None:
    LeftSequences(tmp_path).write("1", "s", LeftSequence((), 1.0), 60.0, [b"7"])
    (path,) = tmp_path.glob("*/*")
    assert found(tmp_path).version_of("s") is None
    assert path.exists()
    os.utime(path, (time.time() - 4_000.0,) * 2)
    found(tmp_path)
    assert not path.exists()


@pytest.mark.parametrize(
    "change",
    [lambda content: b"", lambda content: content[:-1], lambda content: b"x" + content, lambda content: content + b"x"],
)
def test_a_damaged_file_says_so(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    path = leave(tmp_path)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(Damaged):
        found(tmp_path).read("s")


async def next_server(folder: Path) -> World:
    """Return a server that has found the sequence s, of which seven steps have run, and has got two steps of it."""
    leave(folder)
    world = World(folder)
    world.add_worker()
    world.add_worker()
    world.submit("s")
    world.submit("s")
    async with asyncio.timeout(60):
        while not any(worker.to_do for worker in world.workers.values()):
            await asyncio.sleep(0.001)
    return world


async def counts(world: World) -> list[str]:
    await world.settle()
    answers = []
    for _, call in world.calls:
        try:
            answers.append(bytes((await call.next()).body).decode())
        except JobFailed as failed:
            answers.append(str(failed.cause))
    return answers


async def test_steps_wait_until_a_worker_has_their_sequence(tmp_path: Path) -> None:
    world = await next_server(tmp_path)
    world.submit("other")
    assert await counts(world) == ["8", "9", "1"]


async def test_a_worker_that_dies_while_it_takes_the_sequence_does_not_lose_it(tmp_path: Path) -> None:
    world = await next_server(tmp_path)
    names = [*world.workers]
    world.kill(2 * next(number for number, name in enumerate(names) if world.workers[name].to_do))
    assert await counts(world) == ["8", "9"]


async def test_a_worker_that_is_taken_out_meanwhile_does_not_lose_it(tmp_path: Path) -> None:
    world = await next_server(tmp_path)
    (worker,) = (each for each in world.workers.values() if each.to_do)
    world.dispatcher.take_out(worker)  # type: ignore[arg-type]
    assert await counts(world) == ["8", "9"]


async def test_a_client_that_leaves_meanwhile_takes_nothing_with_it(tmp_path: Path) -> None:
    world = await next_server(tmp_path)
    for _, call in world.calls:
        world.dispatcher.cancel(call, Cause.cancelled)
    await world.settle()
    world.submit("s")
    assert (await counts(world))[-1] == "8"


async def test_a_worker_that_does_not_take_the_sequence_has_it_refused_as_lost(tmp_path: Path) -> None:
    leave(tmp_path)
    world = World(tmp_path)
    world.add_worker()
    world.refuses["s"] = True
    world.submit("s")
    world.submit("s")
    assert await counts(world) == ["sequence_lost", "sequence_lost"]
    assert not any(tmp_path.glob("*/*"))


async def test_steps_of_a_sequence_that_another_server_has_taken_begin_one(tmp_path: Path) -> None:
    leave(tmp_path)
    world = World(tmp_path)
    assert found(tmp_path).read("s") is not None
    world.add_worker()
    world.submit("s")
    world.submit("s")
    assert await counts(world) == ["1", "2"]
