"""About which jobs a worker has said nothing for too long, and what becomes of them and of the worker."""

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest

from torchserve_py.base.causes import Cause
from torchserve_py.core.jobs.call import Call
from torchserve_py.core.workers.lifecycle import WorkerLimits
from torchserve_py.core.workers.worker import Ranks, Watchdog, Worker, WorkerEvents

LIMIT = 10.0


class Watch:
    """A worker that is watched, by a clock that a test sets."""

    def __init__(self, *, independent: bool = True) -> None:
        self.label = "W-1"
        self.ended = cast("asyncio.Future[str]", None)
        self.loss_cause = Cause.worker_died
        self.in_flight: dict[str, Call] = {}
        self.cancelled: list[str] = []
        self.taken_out = 0
        self.killed = ""
        self.paused = False
        #: Since when a ping has no answer; None if all have one.
        self.pinged: float | None = None
        self.watchdog = Watchdog(
            cast("Worker", self),
            cast("Ranks", self),
            WorkerLimits(connect=LIMIT, load=LIMIT, response=LIMIT, stop=LIMIT, heartbeat=LIMIT),
            cast("WorkerEvents", self),
            independent=independent,
        )

    def kill(self, reason: str) -> None:
        self.killed = self.killed or reason

    def cancel(self, job: Call, cause: Cause) -> None:
        assert cause is Cause.response_timeout
        self.cancelled.append(job.id)

    def take_out(self, worker: object) -> None:
        self.taken_out += 1

    def sent(self, *job_ids: str, at: float | None) -> None:
        for job_id in job_ids:
            job = self.in_flight[job_id] = Call((), b"")
            job.id = job_id
            job.heard_at = at

    def heard(self, *job_ids: str, at: float) -> None:
        """A part of each comes."""
        self.watchdog.last_heard = at
        for job_id in job_ids:
            self.in_flight[job_id].heard_at = at

    def ping(self, buffers: object, now: float) -> None:
        self.pinged = now if self.pinged is None else self.pinged

    def silence(self, now: float) -> float:
        return 0.0 if self.pinged is None else now - self.pinged

    def check(self, now: float) -> tuple[Any, ...]:
        self.watchdog.check(now)
        return (self.cancelled, self.taken_out, self.killed)


def test_a_silent_job_is_ended_once() -> None:
    watch = Watch()
    watch.sent("a", "b", at=0.0)
    watch.sent("c", at=5.0)
    assert watch.check(10.0) == ([], 0, "")
    assert watch.check(10.1) == (["a", "b"], 0, "")
    assert watch.check(10.2) == (["a", "b"], 0, "")
    watch.heard("a", "b", at=15.0)
    assert watch.check(15.1) == (["a", "b", "c"], 0, "")


def test_every_part_starts_the_time_anew_and_the_last_ends_it() -> None:
    watch = Watch()
    watch.sent("streams", "ends", "silent", at=0.0)
    watch.heard("streams", "ends", at=8.0)
    del watch.in_flight["ends"]
    assert watch.check(12.0) == (["silent"], 0, "")
    assert watch.check(18.1) == (["silent", "streams"], 0, "")


def test_the_time_in_which_nobody_listened_does_not_count() -> None:
    watch = Watch()
    watch.sent("a", at=0.0)
    watch.watchdog.resume(100.0)
    assert watch.check(109.0) == ([], 0, "")
    assert watch.check(110.1) == (["a"], 0, "")


def test_a_worker_that_does_not_drop_a_job_gets_no_more_and_is_killed_once_the_others_are_done() -> None:
    watch = Watch()
    watch.sent("stuck", "runs", at=0.0)
    watch.heard("runs", at=9.0)
    assert watch.check(11.0) == (["stuck"], 0, "")
    watch.heard("runs", at=20.0)
    assert watch.check(21.0) == (["stuck"], 0, "")
    assert watch.check(21.1) == (["stuck"], 1, "")
    watch.heard("runs", at=22.0)
    assert watch.check(23.0) == (["stuck"], 1, "")
    del watch.in_flight["runs"]
    assert watch.check(24.0) == (["stuck"], 1, "it did not drop 1 jobs that were over")


def test_a_worker_that_was_taken_out_is_killed_after_a_time_though_its_other_jobs_go_on() -> None:
    watch = Watch()
    watch.sent("stuck", "streams", at=0.0)
    for now in (5.0, 10.5, 16.0, 21.0, 22.0, 30.0):
        watch.heard("streams", at=now)
        assert watch.check(now)[2] == ""
    watch.heard("streams", at=32.0)
    assert watch.check(32.1) == (["stuck"], 1, "it did not drop 1 jobs that were over")


def test_a_job_may_last_as_long_as_its_client_likes() -> None:
    for independent in (True, False):
        watch = Watch(independent=independent)
        watch.sent("lasts", at=None)
        assert watch.check(1000.0) == ([], 0, "")
        watch.in_flight["lasts"].heard_at = 1000.0  # its client is gone
        watch.check(1010.1)
        assert bool(watch.cancelled) is independent
        assert bool(watch.killed) is not independent


def test_a_worker_that_says_nothing_about_its_batch_is_killed() -> None:
    watch = Watch(independent=False)
    watch.watchdog.last_heard = 0.0
    watch.sent("a", "b", at=100.0)
    assert watch.check(110.0) == ([], 0, "")
    watch.heard("a", at=105.0)
    assert watch.check(115.0) == ([], 0, "")
    assert watch.check(115.1) == ([], 0, "it gave no response for 10 s")
    assert watch.loss_cause is Cause.response_timeout


def test_jobs_that_join_do_not_hide_that_a_worker_is_silent() -> None:
    watch = Watch(independent=False)
    watch.sent("a", at=0.0)
    watch.sent("joins", at=9.0)
    assert watch.check(10.1)[2] == "it gave no response for 10 s"


def test_a_worker_that_answers_no_ping_is_killed() -> None:
    watch = Watch()
    for now in (100.0, 102.0, 104.0, 106.0, 108.0, 110.0):
        watch.watchdog.look(now, 0.0)
        assert watch.killed == ""
    watch.watchdog.look(110.1, 0.0)
    assert watch.killed == "it answered no ping for 10 s"


def test_nobody_is_judged_before_what_came_during_a_standstill_is_read() -> None:
    watch = Watch()
    watch.sent("a", at=0.0)
    watch.watchdog.look(9.9, 0.0)
    watch.watchdog.look(10.1, 60.0)
    assert watch.cancelled == []
    watch.heard("a", at=10.2)
    watch.watchdog.look(12.0, 60.0)
    assert watch.cancelled == []


def test_a_server_that_stands_still_again_and_again_judges_all_the_same() -> None:
    watch = Watch(independent=False)
    watch.sent("a", at=0.0)
    for number in range(1, 6):
        watch.watchdog.look(number * 2.0, number * 1.0)
    watch.watchdog.look(12.0, 6.0)
    watch.watchdog.look(14.0, 7.0)
    assert watch.killed.startswith("it gave no response for 10 s")


async def test_a_look_that_fails_is_logged_and_the_worker_is_still_watched(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watch, again = Watch(), asyncio.Event()
    watch.ended = asyncio.get_running_loop().create_future()
    watch.watchdog.limits = replace(watch.watchdog.limits, response=0.01)

    def look(now: float, lost: float) -> None:
        if "a defect" in caplog.text:
            again.set()
        raise RuntimeError("a defect")

    monkeypatch.setattr(watch.watchdog, "look", look)
    watching = asyncio.create_task(watch.watchdog.run())
    await asyncio.wait_for(again.wait(), 60)
    watch.ended.set_result("ended")
    await watching
