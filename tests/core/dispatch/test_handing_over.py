"""A step whose sequence belongs to another version of the model, which is on the same server."""

from typing import cast

import pytest
from tests.core.dispatch.shell import Shell, cause_of, durable, stateless, told

from torchserve_py.base.causes import Cause
from torchserve_py.core.dispatch.ownership import Move, Ownership
from torchserve_py.core.jobs.call import Call, SequenceRequest
from torchserve_py.core.scheduling.policy import Policy
from torchserve_py.core.workers.worker import Worker


def by_default(body: str, sequence: str | None = None, *, named: bool = False) -> Call:
    about = None if sequence is None else SequenceRequest(sequence, False, False, ())
    return Call((), body, "text/plain", sequence=about, by_default=not named)


class Versions:
    """The dispatchers of versions 1 and 2, each with one worker."""

    def __init__(self) -> None:
        self.one, self.two = Shell(durable()), Shell(durable(), version="2")
        self.served, self.leaving = {"1": self.one, "2": self.two}, list[Shell]()
        self.ownership = Ownership(self.served, self.leaving)
        for each in (self.one, self.two):
            each.dispatcher.join(self.ownership, each)
        (self.old,), (self.new,) = self.one.workers, self.two.workers

    def submit(self, body: str, *, by_default: bool = True, more_input: bool = False) -> Call:
        sequence = SequenceRequest("s", False, False, ())
        call = Call((), body, "text/plain", sequence=sequence, by_default=by_default, open_ended=more_input)
        return self.two.run(call)

    def refuse(self, parts: Call, version: str = "1", cause: str = "sequence_moved") -> None:
        news = told(cause, version=version)
        self.two.result(self.new, parts.id, False, 409, "", [], b"", "why", news=news)


@pytest.fixture
async def versions() -> Versions:
    return Versions()


async def test_the_version_that_the_sequence_belongs_to_runs_the_step_and_those_behind_it(versions: Versions) -> None:
    first, second, third = (versions.submit(body) for body in "abc")
    versions.refuse(first)
    assert versions.new.batches == [["a"]]
    for body, parts in zip("abc", (first, second, third), strict=True):
        assert versions.old.batches[-1] == [body]
        versions.one.answer(versions.old, parts, body.encode())
        assert (await parts.next()).body == body.encode()
    assert not versions.two.dispatcher.scheduler.jobs
    assert not versions.two.dispatcher.scheduler.open_sequences
    assert versions.one.dispatcher.scheduler.open_sequences == 1


async def test_a_reader_that_leaves_cancels_the_step_where_it_runs(versions: Versions) -> None:
    parts = versions.submit("a")
    versions.refuse(parts)
    parts.cancel()
    assert versions.old.cancelled == [parts.id]
    assert versions.new.cancelled == []


@pytest.mark.parametrize(("version", "cause"), [("3", Cause.version_gone), ("1", Cause.sequence_moved)])
async def test_who_names_the_version_or_asks_where_the_other_one_is_not_hears_why(
    versions: Versions, version: str, cause: Cause
) -> None:
    parts = versions.submit("a", by_default=version == "3")
    versions.refuse(parts, version, "version_gone")
    assert await cause_of(parts) is cause
    assert versions.old.batches == []


async def test_a_step_whose_inputs_a_worker_has_is_not_handed_over(versions: Versions) -> None:
    parts = versions.submit("a", more_input=True)
    versions.refuse(parts)
    assert await cause_of(parts) is Cause.sequence_moved
    assert versions.old.batches == []


async def test_a_step_is_handed_over_only_once(versions: Versions) -> None:
    parts = versions.submit("a")
    versions.refuse(parts)
    news = told("sequence_moved", version="2")
    versions.one.result(versions.old, parts.id, False, 409, "", [], b"", "why", news=news)
    assert await cause_of(parts) is Cause.sequence_moved
    assert versions.new.batches == [["a"]]


async def test_a_version_that_runs_out_takes_the_steps_that_are_its_own(versions: Versions) -> None:
    assert await versions.one.dispatcher.drain(0.0, Cause.unregistered, runs_out=True)
    parts = versions.submit("a")
    versions.refuse(parts)
    assert versions.old.batches == [["a"]]
    assert await cause_of(versions.one.submit("b", "new")) is Cause.unregistered


async def test_of_a_step_that_a_lost_worker_may_have_run_the_other_version_never_says_that_it_does_not_count(
    versions: Versions,
) -> None:
    parts = versions.submit("a")
    versions.two.lose(versions.new)
    versions.new = versions.two.add_worker("w2")
    assert versions.new.batches == [["a"]]
    assert await versions.one.dispatcher.drain(0.0)
    versions.refuse(parts)
    assert await cause_of(parts) is Cause.outcome_unknown


async def test_its_worker_is_told_that_it_may_have_run(versions: Versions) -> None:
    parts = versions.submit("a")
    versions.two.lose(versions.new)
    versions.new = versions.two.add_worker("w2")
    versions.refuse(parts)
    job = versions.one.dispatcher.jobs_of(cast("Worker", versions.old))[parts.id]
    assert job.was_sent_before


async def test_what_a_step_is_sent_for_is_not_forgotten(versions: Versions) -> None:
    """A worker was silent for too long: others are only asked whether it has applied the step."""
    parts = versions.submit("a")
    versions.new.loss_cause = Cause.response_timeout
    versions.two.lose(versions.new)
    versions.new = versions.two.add_worker("w2")
    versions.refuse(parts)
    job = versions.one.dispatcher.jobs_of(cast("Worker", versions.old))[parts.id]
    assert job.asks_after == Cause.response_timeout.value


class Moving(Versions):
    """The sequence is version 1's, and version 2 continues it."""

    def step(self, body: str, *, by_default: bool = True, ends: bool = False) -> Call:
        sequence = SequenceRequest("s", False, ends, ())
        return self.one.run(Call((), body, "text/plain", sequence=sequence, by_default=by_default))

    def move(self) -> Move:
        sequence = self.one.dispatcher.scheduler.sequence("s")
        assert sequence is not None
        when = self.ownership.move(sequence, self.two)
        self.one.dispatcher.move("s", self.two, when)
        return when


@pytest.fixture
async def moving() -> Moving:
    return Moving()


async def test_a_resting_sequence_moves_at_once(moving: Moving) -> None:
    moving.one.answer(moving.old, moving.step("a"))
    assert moving.move() is Move.now
    assert not moving.one.dispatcher.scheduler.open_sequences
    assert moving.old.ended_sequences.get_nowait() == ("s", "suspended")


async def test_a_running_sequence_moves_behind_its_step_with_all_that_waits(moving: Moving) -> None:
    first, second, third = (moving.step(body) for body in "abc")
    assert moving.move() is Move.at_rest
    assert moving.new.batches == []
    moving.one.answer(moving.old, first)
    assert (moving.old.batches, moving.new.batches) == ([["a"]], [["b"]])
    moving.two.answer(moving.new, second, b"B")
    assert moving.new.batches == [["b"], ["c"]]
    moving.two.answer(moving.new, third, b"C")
    assert [(await parts.next()).body for parts in (first, second, third)] == [b"ok", b"B", b"C"]
    assert moving.old.ended_sequences.get_nowait() == ("s", "suspended")
    assert moving.two.dispatcher.scheduler.open_sequences == 1
    assert not moving.one.dispatcher.scheduler.open_sequences


async def test_a_sequence_that_the_other_version_cannot_migrate_comes_back_and_stays(moving: Moving) -> None:
    first, second = moving.step("a"), moving.step("b")
    moving.move()
    moving.one.answer(moving.old, first)
    moving.refuse(second)
    assert moving.old.batches == [["a"], ["b"]]
    assert moving.move() is Move.never
    moving.one.answer(moving.old, second)
    assert moving.move() is Move.never
    assert moving.one.dispatcher.scheduler.open_sequences == 1
    third = moving.step("c")
    moving.one.answer(moving.old, third)
    assert moving.old.batches == [["a"], ["b"], ["c"]]


async def test_a_client_hears_that_a_state_cannot_be_migrated_where_the_old_version_is_gone(moving: Moving) -> None:
    parts = moving.submit("a")
    moving.refuse(parts, "0.9", "migration_failed")
    assert await cause_of(parts) is Cause.migration_failed
    assert moving.new.ended_sequences.get_nowait() == ("s", "suspended")


async def test_a_sequence_stays_while_a_step_waits_that_names_its_version(moving: Moving) -> None:
    first, second = moving.step("a"), moving.step("b", by_default=False)
    moving.move()
    moving.one.answer(moving.old, first)
    assert (moving.old.batches, moving.new.batches) == ([["a"], ["b"]], [])
    moving.one.answer(moving.old, second)
    assert not moving.one.dispatcher.scheduler.open_sequences


@pytest.mark.parametrize("change", ["is to go", "is gone", "is replaced", "drains", "has no weight"])
async def test_a_sequence_stays_if_the_other_version_does_not_take_it_any_more(moving: Moving, change: str) -> None:
    first, second = moving.step("a"), moving.step("b")
    assert moving.move() is Move.at_rest
    match change:
        case "is to go":
            moving.leaving.append(moving.two)
        case "is gone":
            del moving.served["2"]
        case "is replaced":
            moving.served["2"] = Shell(durable(), version="2")
        case "drains":
            moving.two.dispatcher.refuse_new_jobs(Cause.draining)
        case "has no weight":
            moving.one.dispatcher.keep_sequences()
    moving.one.answer(moving.old, first)
    assert (moving.old.batches, moving.new.batches) == ([["a"], ["b"]], [])
    moving.one.answer(moving.old, second)
    assert moving.one.dispatcher.scheduler.open_sequences == 1


async def test_what_follows_an_end_does_not_move(moving: Moving) -> None:
    first, second = moving.step("a", ends=True), moving.step("b")
    moving.move()
    moving.one.answer(moving.old, first)
    assert (moving.old.batches, moving.new.batches) == ([["a"], ["b"]], [])
    moving.one.answer(moving.old, second)
    assert moving.one.dispatcher.scheduler.open_sequences == 1


async def test_what_came_of_migrations_is_counted(moving: Moving) -> None:
    moving.two.answer(moving.new, moving.submit("a"), news=told(migration="migrated"))
    news = told("migration_failed", version="0.9", migration="failed")
    parts = moving.submit("b")
    moving.two.result(moving.new, parts.id, False, 500, "", [], b"", "why", news=news)
    counted = moving.two.dispatcher.metrics.migrations
    assert {each: counter.value for each, counter in counted.items()} == {"migrated": 1, "failed": 1}


async def test_what_waits_without_a_worker_goes_to_another_version_unless_it_names_this_one() -> None:
    one, two = Shell(Policy(queue_size=10), workers=0), Shell(Policy(queue_size=10))
    one.dispatcher.set_workers(1)
    waiting = one.run(by_default("a"))
    named = one.run(by_default("b", named=True))
    one.dispatcher.hand_over(two)
    (worker,) = two.workers
    assert worker.batches == [["a"]]
    two.answer(worker, waiting, b"done")
    assert (await waiting.next()).body == b"done"
    one.dispatcher.set_workers(0)
    assert await cause_of(named) is Cause.no_worker
    assert not one.dispatcher.scheduler.jobs


async def test_steps_that_wait_for_a_worker_go_with_their_sequence_in_order(versions: Versions) -> None:
    old, new = versions.one.dispatcher, versions.two
    running = versions.one.run(by_default("a", "s"))
    behind = versions.one.run(by_default("b", "s"))
    old.hand_over(new)  # the sequence has a worker: its steps stay
    assert versions.new.batches == []
    old.take_out(cast("Worker", versions.old))
    last = versions.one.run(by_default("c", "s"))
    versions.one.answer(versions.old, running)
    assert (await running.next()).body == b"ok"
    old.hand_over(new)
    for body, parts in (("b", behind), ("c", last)):
        assert versions.new.batches[-1] == [body]
        versions.two.answer(versions.new, parts, body.encode())
        assert (await parts.next()).body == body.encode()
    assert not old.scheduler.jobs
    assert not old.scheduler.open_sequences


async def test_a_version_that_could_not_run_a_sequence_is_not_given_its_steps_again(versions: Versions) -> None:
    old, new = versions.one.dispatcher, versions.two
    old.take_out(cast("Worker", versions.old))
    parts = versions.submit("a")
    versions.refuse(parts)
    assert old.scheduler.queued == 1
    old.hand_over(new)
    assert old.scheduler.queued == 1
    assert versions.new.batches == [["a"]]


async def test_a_call_that_is_handed_over_wakes_a_version_that_sleeps_or_is_refused() -> None:
    asked: list[float | None] = []
    shell = Shell(stateless())
    shell.dispatcher.rest(cast("Worker", shell.workers[0]), rests=True)
    refusals = iter((None, Cause.not_loaded))

    def refuses(limit: float | None, call: Call) -> Cause | None:
        asked.append(limit)
        return next(refusals)

    shell.dispatcher.refuses = refuses
    first, second = (Call((), b"x") for _ in range(2))
    shell.dispatcher.take_over(first, by=None)
    shell.dispatcher.take_over(second, by=None)
    assert len(asked) == 2
    assert await cause_of(second) is Cause.not_loaded
    shell.dispatcher.rest(cast("Worker", shell.workers[0]), rests=False)
    shell.answer(shell.workers[0], first, b"woken")
    assert (await first.next()).body == b"woken"


async def test_steps_that_name_a_version_without_their_sequence_are_refused_when_it_goes_to_its_own() -> None:
    versions = Versions()
    moved, named = versions.submit("a"), versions.submit("b", by_default=False)
    versions.refuse(moved)
    assert await cause_of(named) is Cause.sequence_moved
    open_at = [each for each in (versions.one, versions.two) if each.dispatcher.scheduler.sequence("s") is not None]
    assert open_at == [versions.one]
    versions.one.answer(versions.old, moved, b"run")
    assert (await moved.next()).body == b"run"
