"""A call, as its reader and its owner see it."""

import asyncio

import pytest

from torchserve_py.base.causes import Cause
from torchserve_py.core.jobs.call import Call, JobFailed, Part


class Reader:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.reads: list[int] = []
        self.gave_up_count = 0

    def was_read(self, call: Call) -> None:
        self.reads.append(call.buffered_bytes)

    def gave_up(self, call: Call) -> None:
        self.gave_up_count += 1


@pytest.fixture
def reader() -> Reader:
    return Reader()


@pytest.fixture
def call(reader: Reader) -> Call:
    call = Call((), b"")
    call.owner = reader
    return call


def part(body: bytes, *, more: bool = False) -> Part:
    return Part("j", more, 200, "", [], body, None)


async def test_parts_come_out_in_the_order_in_which_they_came_in(call: Call) -> None:
    for body in (b"a", b"b"):
        call.deliver(part(body, more=True))
    call.deliver(part(b"c"))
    assert [(await call.next()).body for _ in range(3)] == [b"a", b"b", b"c"]


async def test_a_reader_that_waits_gets_the_part_when_it_comes(call: Call) -> None:
    waiting = asyncio.ensure_future(call.next())
    await asyncio.sleep(0)
    call.deliver(part(b"a"))
    assert (await waiting).body == b"a"


async def test_a_second_part_that_comes_before_the_first_is_read_is_kept(call: Call) -> None:
    waiting = asyncio.ensure_future(call.next())
    await asyncio.sleep(0)
    call.deliver(part(b"a", more=True))
    call.deliver(part(b"b"))
    assert (await waiting).body == b"a"
    assert (await call.next()).body == b"b"


async def test_what_has_arrived_is_taken_at_once(call: Call, reader: Reader) -> None:
    assert call.take_arrived(99) == ()
    for body in (b"a", b"b"):
        call.deliver(part(body, more=True))
    call.deliver(part(b"cc", more=True))
    call.deliver(part(b"d"))

    assert (await call.next()).body == b"a"
    assert [each.body for each in call.take_arrived(2)] == [b"b", b"cc"]
    assert call.buffered_bytes == 1
    assert [each.body for each in call.take_arrived(99)] == [b"d"]
    assert call.take_arrived(99) == ()
    assert reader.reads == [4, 1, 0]


async def test_parts_that_arrived_before_a_failure_can_be_read(call: Call) -> None:
    call.deliver(part(b"a", more=True))
    call.fail(Cause.worker_died)
    assert (await call.next()).body == b"a"
    for _ in range(2):
        with pytest.raises(JobFailed) as failed:
            await call.next()
        assert failed.value.cause is Cause.worker_died


async def test_a_failure_reaches_a_reader_that_waits(call: Call) -> None:
    waiting = asyncio.ensure_future(call.next())
    await asyncio.sleep(0)
    call.fail(Cause.response_timeout)
    with pytest.raises(JobFailed) as failed:
        await waiting
    assert failed.value.cause is Cause.response_timeout


async def test_it_tells_how_much_waits_to_be_read(call: Call, reader: Reader) -> None:
    call.deliver(part(b"abc", more=True))
    call.deliver(part(b"de", more=True))
    assert call.buffered_bytes == 5
    await call.next()
    await call.next()
    assert reader.reads == [2, 0]


async def test_a_part_that_is_awaited_does_not_count_as_waiting(call: Call) -> None:
    waiting = asyncio.ensure_future(call.next())
    await asyncio.sleep(0)
    call.deliver(part(b"abc"))
    assert call.buffered_bytes == 0
    await waiting


async def test_giving_up_is_told_while_the_job_runs(call: Call, reader: Reader) -> None:
    call.deliver(part(b"a", more=True))
    call.cancel()
    assert reader.gave_up_count == 1


@pytest.mark.parametrize("end", [lambda call: call.deliver(part(b"")), lambda call: call.fail(Cause.draining)])
async def test_giving_up_after_the_end_does_nothing(call: Call, reader: Reader, end: object) -> None:
    assert callable(end)
    end(call)
    call.cancel()
    assert reader.gave_up_count == 0


async def test_who_loses_a_job_with_its_worker_is_told_how_that_ended(call: Call) -> None:
    end: asyncio.Future[str] = asyncio.Future()
    call.lost_with(end)
    call.fail(Cause.worker_died)
    next_part = asyncio.ensure_future(call.next())
    await asyncio.sleep(0)
    assert call.ended
    assert not next_part.done()
    end.set_result("exited with code 3")
    with pytest.raises(JobFailed):
        await next_part
    assert call.worker_end == "exited with code 3"


async def test_nobody_waits_long_for_the_end_of_a_worker(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchserve_py.core.jobs.call._END_SECONDS", 0)
    call.lost_with(asyncio.Future())
    call.fail(Cause.worker_died)
    with pytest.raises(JobFailed):
        await call.next()
    assert call.worker_end == ""
