"""What a server has left, as the next one finds it."""

import asyncio
import math
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import msgpack
import pytest
from tests.core.handover.test_interleavings import World, started

from torchserve_py.base.causes import Cause
from torchserve_py.core.handover import left_format, left_sequences
from torchserve_py.core.handover.left_files import LeftFiles, in_folder
from torchserve_py.core.handover.left_format import Damaged
from torchserve_py.core.handover.left_sequences import LeftSequences, ServerHandover
from torchserve_py.core.handover.storage import name_of
from torchserve_py.core.jobs.parts import JobFailed
from torchserve_py.core.scheduling.sequence_source import LeftSequence

A_LIMIT = 60.0


async def leave(folder: Path, state: bytes = b"7", rest: float = 60.0, version: str = "1", model: str = "m") -> Path:
    """Leave the sequence s."""
    left = ServerHandover(in_folder(folder)).of(model)
    await left.write(version, "s", LeftSequence(("a token",), math.inf), rest, [state], A_LIMIT)
    return next(folder.glob("*/*"))


async def found(folder: Path, model: str = "m") -> LeftSequences:
    next_one = ServerHandover(in_folder(folder))
    await next_one.look()
    return next_one.of(model)


async def test_a_sequence_is_read_as_it_was_written_by_one_server_only(tmp_path: Path) -> None:
    await leave(tmp_path, b"\0" * 1_000_000)
    first, second = await found(tmp_path), await found(tmp_path)
    assert (first.version_of("s"), first.version_of("t")) == ("1", None)
    read = await first.read("s")
    assert read is not None
    assert (read.sequence, bytes(read.given)) == (LeftSequence(("a token",), math.inf), b"\0" * 1_000_000)
    assert await second.read("s") is None
    assert await first.read("s") is not None, "its worker may have died meanwhile"
    first.forget("s")
    assert first.version_of("s") is None
    await first.removed()
    assert not any(tmp_path.glob("*/*"))


@pytest.mark.parametrize("name", ["1.0", "..", ".", "a/b", "ü" * 200])
async def test_models_and_versions_may_have_any_name(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "handover"
    await leave(folder, version=name, model=name)
    assert [each.parent.parent for each in tmp_path.rglob("*") if each.is_file()] == [folder]
    assert (await found(folder, name)).version_of("s") == name


async def test_what_cannot_be_written_leaves_no_file(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            await leave(tmp_path, bytes(2_000_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not any(each.is_file() for each in tmp_path.rglob("*"))


async def test_a_sequence_that_was_idle_for_too_long_is_removed(tmp_path: Path) -> None:
    await leave(tmp_path, rest=-1.0)
    assert (await found(tmp_path)).version_of("s") is None
    assert not any(tmp_path.glob("*/*"))


@pytest.mark.parametrize("name", [".taken-s", ".being-written"])
async def test_what_a_server_that_died_has_had_is_removed_an_hour_later(tmp_path: Path, name: str) -> None:
    path = (await leave(tmp_path)).rename(next(tmp_path.glob("*")) / name)
    assert (await found(tmp_path)).version_of("s") is None
    assert path.exists()
    os.utime(path, (time.time() - 4_000.0,) * 2)
    await found(tmp_path)
    assert not path.exists()


async def test_a_model_that_is_no_longer_served_leaves_nothing(tmp_path: Path) -> None:
    await leave(tmp_path)
    await leave(tmp_path, model="other")
    left = await found(tmp_path)
    left.drop()
    assert left.version_of("s") is None
    await left.removed()
    assert (await found(tmp_path)).version_of("s") is None
    assert (await found(tmp_path, "other")).version_of("s") == "1"


@pytest.mark.parametrize(
    "change",
    [lambda content: b"", lambda content: content[:-1], lambda content: b"x" + content, lambda content: content + b"x"],
)
async def test_a_damaged_file_says_so(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    path = await leave(tmp_path)
    path.write_bytes(change(path.read_bytes()))
    left = await found(tmp_path)
    assert left.version_of("s") is not None, "else it would begin anew"
    with pytest.raises(Damaged):
        await left.read("s")


@pytest.mark.parametrize("put", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to(path)])
async def test_what_cannot_be_read_is_no_loss_to_other_sequences(tmp_path: Path, put: Callable[[Path], None]) -> None:
    folder = (await leave(tmp_path)).parent
    put(folder / name_of("t"))
    left = await found(tmp_path)
    assert left.version_of("s") == "1"
    assert await left.read("s") is not None
    assert left.version_of("t") is not None, "else it would begin anew"
    with pytest.raises(OSError):
        await left.read("t")


@pytest.mark.parametrize("head", [["1", "soon", [], None], [None, 1e12, [], None]])
async def test_a_head_of_other_types_is_damage(tmp_path: Path, head: list[object]) -> None:
    path, packed = await leave(tmp_path), msgpack.packb(head)
    line = path.read_bytes().partition(b"\n")[0]
    path.write_bytes(line + b"\n" + bytes(4) + len(packed).to_bytes(4, "big") + packed)
    left = await found(tmp_path)
    assert left.version_of("s") == ""
    with pytest.raises(Damaged):
        await left.read("s")


@pytest.fixture
def hung_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A disk that gives no answer until the test is over, and limits that are short."""
    over = threading.Event()
    for name in ("all", "write", "take", "remove"):
        work = getattr(LeftFiles, name)
        monkeypatch.setattr(LeftFiles, name, lambda *args, work=work: (over.wait(60.0), work(*args))[1])
    monkeypatch.setattr(left_sequences, "_LIMIT", 0.01)
    yield
    over.set()


async def test_a_disk_that_hangs_holds_nothing_up(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    path = await leave(tmp_path)
    left = await found(tmp_path)
    request.getfixturevalue("hung_disk")
    async with asyncio.timeout(5.0):
        await ServerHandover(in_folder(tmp_path)).look()
        with pytest.raises(TimeoutError):
            await left.write("1", "t", LeftSequence((), math.inf), 60.0, [b"7"], 0.01)
        with pytest.raises(TimeoutError):
            await left.read("s")
        left.forget("s")
        await left.removed()
    assert path.exists()


async def test_what_was_not_written_in_time_never_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    is_late, is_over = threading.Event(), threading.Event()
    write = LeftFiles.write
    monkeypatch.setattr(LeftFiles, "write", lambda *args: (is_late.wait(60.0), write(*args), is_over.set()))
    with pytest.raises(TimeoutError):
        await (
            ServerHandover(in_folder(tmp_path)).of("m").write("1", "s", LeftSequence((), math.inf), 60.0, [b"7"], 0.01)
        )
    is_late.set()
    assert await asyncio.to_thread(is_over.wait, 60.0)
    assert not any(tmp_path.glob("*/*"))


async def next_server(folder: Path) -> World:
    """Return a server that has found the sequence s, of which seven steps have run, and has got two steps of it."""
    await leave(folder)
    world = await started(folder)
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
    await leave(tmp_path)
    world = await started(tmp_path)
    world.add_worker()
    world.refuses["s"] = True
    world.submit("s")
    world.submit("s")
    assert await counts(world) == ["sequence_lost", "sequence_lost"]
    await world.left.removed()
    assert not any(tmp_path.glob("*/*"))


@pytest.mark.parametrize("is_shared", [False, True])
async def test_a_sequence_that_was_idle_for_too_long_since_has_expired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_shared: bool
) -> None:
    await leave(tmp_path, rest=60.0)
    world = await started(tmp_path, is_shared=is_shared)
    world.add_worker()
    later = time.time() + 61.0
    monkeypatch.setattr(left_format, "time", SimpleNamespace(time=lambda: later))
    world.submit("s")
    world.submit("s")
    assert await counts(world) == ["sequence_expired", "sequence_expired"]
    await world.left.removed()
    assert not any((tmp_path / name_of("m")).iterdir())


async def test_a_sequence_that_another_server_has_taken_is_lost_here(tmp_path: Path) -> None:
    await leave(tmp_path)
    world = await started(tmp_path)
    assert await (await found(tmp_path)).read("s") is not None
    world.add_worker()
    world.submit("s")
    world.submit("s")
    assert await counts(world) == ["sequence_lost", "sequence_lost"]


async def test_a_server_that_drains_leaves_a_sequence_once_its_steps_are_answered(tmp_path: Path) -> None:
    world = await started(tmp_path)
    world.add_worker()
    for name in ("rests", "runs", "runs", "runs"):
        world.submit(name)
    world.work(0)
    drained = asyncio.ensure_future(world.dispatcher.drain(A_LIMIT, Cause.draining))
    leaving = asyncio.ensure_future(world.inheritance.leave_resting(A_LIMIT))
    assert await counts(world) == ["1", "1", "2", "3"]
    async with asyncio.timeout(A_LIMIT / 2):
        while not drained.done():
            world.work(0)
            await asyncio.sleep(0.001)
        await leaving
    assert await drained
    next_one = await found(tmp_path)
    assert [next_one.version_of(name) for name in ("rests", "runs")] == ["1", "1"]


async def test_a_sequence_whose_worker_gave_it_too_late_is_left_when_it_is_asked_again(tmp_path: Path) -> None:
    world = await started(tmp_path)
    world.add_worker()
    world.submit("s")
    world.work(0)
    await world.inheritance.leave_resting(0.01)  # its worker is busy
    leaving = asyncio.ensure_future(world.inheritance.leave_all(A_LIMIT))
    (worker,) = world.workers.values()
    async with asyncio.timeout(A_LIMIT / 2):
        while len(worker.to_do) < 2:
            await asyncio.sleep(0)
        while not leaving.done():
            world.work(0)
            await asyncio.sleep(0.001)
    read = await (await found(tmp_path)).read("s")
    assert read is not None
    assert bytes(read.given) == b"1"


async def test_a_server_that_drains_waits_for_a_sequence_that_it_cannot_leave(tmp_path: Path) -> None:
    world = await started(tmp_path)
    world.add_worker()
    world.submit("s")
    world.work(0)
    (tmp_path / name_of("m")).write_text("a file in place of the folder")
    leaving = asyncio.ensure_future(world.inheritance.leave_resting(A_LIMIT))
    async with asyncio.timeout(A_LIMIT / 2):
        while world.dispatcher.metrics.handover.refused["failed"].value == 0:
            world.work(0)
            await asyncio.sleep(0.001)
    assert not await world.dispatcher.drain(0.01, Cause.draining)
    world.submit("s")
    assert (await counts(world))[-1] == "2"
    leaving.cancel()


async def test_a_sequence_that_ends_while_it_is_written_is_not_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await started(tmp_path)
    world.add_worker()
    world.submit("s")
    world.work(0)
    is_begun, may_end = threading.Event(), threading.Event()
    write = LeftFiles.write
    monkeypatch.setattr(LeftFiles, "write", lambda *args: (is_begun.set(), may_end.wait(A_LIMIT), write(*args)))
    leaving = asyncio.ensure_future(world.inheritance.leave_resting(A_LIMIT))
    async with asyncio.timeout(A_LIMIT):
        while not is_begun.is_set():
            world.work(0)
            await asyncio.sleep(0.001)
    world.end("s")
    may_end.set()
    await leaving
    await world.left.removed()
    assert not any(tmp_path.glob("*/*"))
