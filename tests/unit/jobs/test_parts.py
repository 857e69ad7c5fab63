"""What a door holds while its job runs."""

import asyncio

import pytest

from torchserve_py.jobs.parts import JobFailed, Part, Parts
from torchserve_py.scheduling.effects import Cause


class Reader:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.reads: list[int] = []
        self.gave_up_count = 0

    def was_read(self, parts: Parts) -> None:
        self.reads.append(parts.buffered_bytes)

    def gave_up(self, parts: Parts) -> None:
        self.gave_up_count += 1


@pytest.fixture
def reader() -> Reader:
    return Reader()


@pytest.fixture
def parts(reader: Reader) -> Parts:
    return Parts("j", None, reader)


def part(body: bytes, *, more: bool = False) -> Part:
    return Part("j", more, 200, "", [], body, None)


async def test_parts_come_out_in_the_order_in_which_they_came_in(parts: Parts) -> None:
    for body in (b"a", b"b"):
        parts.deliver(part(body, more=True))
    parts.deliver(part(b"c"))
    assert [(await parts.next()).body for _ in range(3)] == [b"a", b"b", b"c"]


async def test_a_reader_that_waits_gets_the_part_when_it_comes(parts: Parts) -> None:
    waiting = asyncio.ensure_future(parts.next())
    await asyncio.sleep(0)
    parts.deliver(part(b"a"))
    assert (await waiting).body == b"a"


async def test_a_second_part_that_comes_before_the_first_is_read_is_kept(parts: Parts) -> None:
    waiting = asyncio.ensure_future(parts.next())
    await asyncio.sleep(0)
    parts.deliver(part(b"a", more=True))
    parts.deliver(part(b"b"))
    assert (await waiting).body == b"a"
    assert (await parts.next()).body == b"b"


async def test_what_has_arrived_is_taken_at_once(parts: Parts, reader: Reader) -> None:
    assert parts.take_arrived(99) == ()
    for body in (b"a", b"b"):
        parts.deliver(part(body, more=True))
    parts.deliver(part(b"cc", more=True))
    parts.deliver(part(b"d"))

    assert (await parts.next()).body == b"a"
    assert [each.body for each in parts.take_arrived(2)] == [b"b", b"cc"]
    assert parts.buffered_bytes == 1
    assert [each.body for each in parts.take_arrived(99)] == [b"d"]
    assert parts.take_arrived(99) == ()
    assert reader.reads == [4, 1, 0]


async def test_parts_that_arrived_before_a_failure_can_be_read(parts: Parts) -> None:
    parts.deliver(part(b"a", more=True))
    parts.fail(Cause.worker_died)
    assert (await parts.next()).body == b"a"
    for _ in range(2):
        with pytest.raises(JobFailed) as failed:
            await parts.next()
        assert failed.value.cause is Cause.worker_died


async def test_a_failure_reaches_a_reader_that_waits(parts: Parts) -> None:
    waiting = asyncio.ensure_future(parts.next())
    await asyncio.sleep(0)
    parts.fail(Cause.response_timeout)
    with pytest.raises(JobFailed) as failed:
        await waiting
    assert failed.value.cause is Cause.response_timeout


async def test_it_tells_how_much_waits_to_be_read(parts: Parts, reader: Reader) -> None:
    parts.deliver(part(b"abc", more=True))
    parts.deliver(part(b"de", more=True))
    assert parts.buffered_bytes == 5
    await parts.next()
    await parts.next()
    assert reader.reads == [2, 0]


async def test_a_part_that_is_awaited_does_not_count_as_waiting(parts: Parts) -> None:
    waiting = asyncio.ensure_future(parts.next())
    await asyncio.sleep(0)
    parts.deliver(part(b"abc"))
    assert parts.buffered_bytes == 0
    await waiting


async def test_giving_up_is_told_while_the_job_runs(parts: Parts, reader: Reader) -> None:
    parts.deliver(part(b"a", more=True))
    parts.cancel()
    assert reader.gave_up_count == 1


@pytest.mark.parametrize("end", [lambda parts: parts.deliver(part(b"")), lambda parts: parts.fail(Cause.draining)])
async def test_giving_up_after_the_end_does_nothing(parts: Parts, reader: Reader, end: object) -> None:
    assert callable(end)
    end(parts)
    parts.cancel()
    assert reader.gave_up_count == 0


async def test_who_loses_a_job_with_its_worker_is_told_how_that_ended(parts: Parts) -> None:
    end: asyncio.Future[str] = asyncio.Future()
    parts.lost_with(end)
    parts.fail(Cause.worker_died)
    next_part = asyncio.ensure_future(parts.next())
    await asyncio.sleep(0)
    assert parts.ended
    assert not next_part.done()
    end.set_result("exited with code 3")
    with pytest.raises(JobFailed):
        await next_part
    assert parts.worker_end == "exited with code 3"


async def test_nobody_waits_long_for_the_end_of_a_worker(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchserve_py.jobs.parts._END_SECONDS", 0)
    parts.lost_with(asyncio.Future())
    parts.fail(Cause.worker_died)
    with pytest.raises(JobFailed):
        await parts.next()
    assert parts.worker_end == ""
