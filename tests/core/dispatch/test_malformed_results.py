"""Workers that send malformed rows: every job has one outcome, and the scheduler hears of every row."""

import asyncio
import itertools
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from tests.core.dispatch.shell import FakeWorker, Shell, cause_of, stateful, stateless
from tests.examples import examples

from torchserve_py.base.causes import Cause
from torchserve_py.core.jobs.call import Call
from torchserve_py.core.jobs.parts import JobFailed
from torchserve_py.core.scheduling.policy import Policy, SequencePolicy

_anything = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.binary(max_size=3), st.just([["x"]])
)
#: What is put in the place of a field, or several, of a row: by index.
_damages = st.dictionaries(st.integers(1, 6), _anything, max_size=3)


def durable() -> Policy:
    return Policy(batch_size=2, sequences=SequencePolicy(600.0, queue_size=5, max_sequences=10, durable=True))


async def test_a_malformed_part_of_a_stream_ends_it_and_its_place_is_free_once_the_worker_has_ended_it() -> None:
    shell = Shell(stateless())
    (worker,) = shell.workers
    streaming, waiting = shell.submit("1"), shell.submit("2")
    shell.answer(worker, streaming, b"first", more=True)
    shell.result(worker, streaming.id, True, 200, "", [], "a text", None)
    assert (await streaming.next()).body == b"first"
    last = await streaming.next()
    assert (last.more, last.status, last.body) == (False, 500, b"")
    assert "the body is of type str" in str(last.error)
    assert (worker.cancelled, worker.batches) == ([streaming.id], [["1"]])
    shell.answer(worker, streaming)
    assert worker.batches == [["1"], ["2"]]
    assert not waiting.ended


async def test_nobody_is_told_that_a_step_does_not_count_whose_result_is_malformed() -> None:
    for make_policy, more in itertools.product((durable, stateful), (False, True)):
        shell = Shell(make_policy())
        (worker,) = shell.workers
        parts = shell.submit("1", sequence_id="s")
        shell.result(worker, parts.id, more, 200.5, "", [], b"ok", None)
        if make_policy is durable:
            assert await cause_of(parts) is Cause.outcome_unknown
        else:
            assert "200.5" in str((await parts.next()).error)
        assert worker.cancelled == ([parts.id] if more else [])
        following = shell.submit("2", sequence_id="s")
        if more:
            shell.answer(worker, parts)
        shell.answer(worker, following)
        assert (await following.next()).body == b"ok"


async def test_what_came_before_a_result_that_is_refused_counts() -> None:
    shell = Shell(Policy(batch_size=2, max_batch_delay=60.0), workers=2)
    one, two = shell.workers
    first, second, others = shell.submit("1"), shell.submit("2"), [shell.submit("3"), shell.submit("4")]
    rows = [[parts.id, False, 200, "", [], b"ok", None, None] for parts in (first, others[0], second)]
    with pytest.raises(ValueError, match="which it does not have"):
        shell.results(one, rows)
    assert (await first.next()).body == b"ok"
    assert (shell.dispatcher.scheduler.queued, second.ended, others[0].ended) == (0, False, False)
    shell.answer(two, others[0])
    assert (await others[0].next()).body == b"ok"


@pytest.mark.parametrize("make_policy", [stateless, stateful, durable])
@settings(max_examples=examples(60))
@given(plan=st.lists(st.tuples(st.integers(0, 5), st.booleans(), _damages), min_size=1, max_size=30))
def test_whatever_is_malformed_every_job_has_its_outcome_and_the_workers_serve_on(
    make_policy: Any, plan: list[tuple[int, bool, dict[int, Any]]]
) -> None:
    asyncio.run(_play(make_policy(), plan))


async def _play(policy: Policy, plan: list[tuple[int, bool, dict[int, Any]]]) -> None:
    shell = Shell(policy, workers=2)
    jobs: list[Call] = []
    stateful_model = shell.is_stateful
    for pick, more, damage in plan:
        jobs.append(shell.submit("x", f"s{pick % 3}" if stateful_model else None))
        worker = shell.workers[pick % 2]
        if worker.in_flight:
            row = [sorted(worker.in_flight)[pick % len(worker.in_flight)], more, 200, "", [], b"ok", None]
            for field, value in damage.items():
                row[field] = value
            shell.result(worker, *row)
    _answer_all(shell)
    for parts in jobs:
        assert parts.ended
        await _read(parts)
    assert (shell.dispatcher.scheduler.queued, [worker.in_flight for worker in shell.workers]) == (0, [set(), set()])
    shell.lose(shell.workers[0])
    shell.workers[0] = shell.add_worker("w1")
    again = [shell.submit("again", f"new{n}" if stateful_model else None) for n in range(4)]
    _answer_all(shell)
    assert [(await parts.next()).body for parts in again] == [b"ok"] * 4


def _answer_all(shell: Shell) -> None:
    while any(worker.in_flight for worker in shell.workers):
        for worker in shell.workers:
            _answer_each(shell, worker)


def _answer_each(shell: Shell, worker: FakeWorker) -> None:
    for job_id in sorted(worker.in_flight):
        shell.result(worker, job_id, False, 200, "", [], b"ok", None)


async def _read(parts: Call) -> None:
    """Read an ended response to its end."""
    try:
        while (await parts.next()).more:
            pass
    except JobFailed:
        pass
