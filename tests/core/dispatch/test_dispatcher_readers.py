"""What the readers of jobs do, and what that means to workers and to other jobs."""

from tests.core.dispatch.shell import STREAM_BUFFER, Shell, cause_of, stateless

from torchserve_py.base.causes import Cause
from torchserve_py.core.scheduling.policy import Policy


async def test_a_waiting_job_whose_reader_leaves_is_never_sent() -> None:
    shell = Shell(stateless())
    (worker,) = shell.workers
    running, left = shell.submit("1"), shell.submit("2")
    left.cancel()
    shell.answer(worker, running)
    assert worker.batches == [["1"]]
    assert not worker.cancelled


async def test_a_running_job_whose_reader_leaves_is_cancelled_and_keeps_its_place_until_the_worker_answers() -> None:
    shell = Shell(stateless())
    (worker,) = shell.workers
    left, _next = shell.submit("1"), shell.submit("2")
    left.cancel()
    left.cancel()
    assert worker.cancelled == [left.id]
    assert worker.batches == [["1"]]
    shell.answer(worker, left)
    assert worker.batches == [["1"], ["2"]]


async def test_a_worker_waits_for_the_only_reader_that_it_serves() -> None:
    shell = Shell(stateless())
    (worker,) = shell.workers
    parts = shell.submit("stream")
    paused = []
    for body in (b"x" * STREAM_BUFFER, b"x"):
        shell.answer(worker, parts, body, more=True)
        paused.append(worker.paused)
    await parts.next()
    assert [*paused, worker.paused] == [False, True, False]


async def test_a_slow_reader_that_leaves_does_not_leave_its_worker_waiting() -> None:
    shell = Shell(stateless())
    (worker,) = shell.workers
    parts = shell.submit("stream")
    shell.answer(worker, parts, b"x" * (STREAM_BUFFER + 1), more=True)
    paused = worker.paused
    parts.cancel()
    assert [paused, worker.paused] == [True, False]


async def test_a_slow_reader_is_given_up_when_others_need_its_worker() -> None:
    shell = Shell(Policy(batch_size=2, continuous=True))
    (worker,) = shell.workers
    slow, quick = shell.submit("slow"), shell.submit("quick")
    sent = 0
    while not slow.ended:
        shell.answer(worker, slow, b"x" * STREAM_BUFFER, more=True)
        sent += STREAM_BUFFER
        assert not worker.paused
        assert sent <= 10 * STREAM_BUFFER
    assert worker.cancelled == [slow.id]
    shell.answer(worker, quick)
    assert (await quick.next()).body == b"ok"
    while slow.buffered_bytes:
        await slow.next()
    assert await cause_of(slow) is Cause.cancelled
