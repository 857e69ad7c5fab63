"""What a key may ask of a server, in a second and at once, and what it has used."""

from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.base.metrics.records import Ended

from torchserve_py.base.causes import Cause
from torchserve_py.core.jobs.call import Call, SequenceRequest
from torchserve_py.core.jobs.job_observer import ObservedJob
from torchserve_py.core.jobs.parts import Exceeded, Part
from torchserve_py.ops.keys.key_account import KeyAccount, KeyUsage, tokens_in
from torchserve_py.ops.keys.keys_file import LimitsEntry


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Key(KeyAccount):
    """An account, and the requests that it has allowed."""

    def __init__(self, now: Any = Clock(), **limits: Any) -> None:  # noqa: B008 - it stands still
        super().__init__("client", "name", now)
        self.running: list[ObservedJob] = []
        self.told: Exceeded | None = None
        self.change(LimitsEntry(**limits))

    def ask(self, sequence: str | None = None, still_open: Collection[str] = ()) -> Cause | None:
        """Begin a request; return why it may not run."""
        named = None if sequence is None else SequenceRequest(sequence, False, False, ())
        begun = self.begin(Call((), b"", sequence=named), "m", still_open.__contains__)
        if isinstance(begun, Exceeded):
            self.told = begun
            return begun.cause
        self.running.append(begun)
        return None

    def answer(self, body: bytes = b"", parts: int = 0, error: str | None = None) -> None:
        """End the request that has run for longest, after half a second, with some parts before its last one."""
        job = self.running.pop(0)
        assert job.part is not None
        for _ in range(parts):
            job.part(Part("j", True, 200, "", [], b"", None))
        status = 500 if error else 200
        job.end(Ended(1.0, 2.0, 2.5, status, error is None), Part("j", False, status, "", [], body, error))


def test_a_call_that_a_function_makes_is_counted_and_never_refused() -> None:
    key = Key(requests_at_once=1, requests_per_second=2)
    assert key.ask() is None
    for _ in range(3):
        call = key.begin(Call((), b"").within(b"", None, "call"), "m", bool)
        assert isinstance(call, ObservedJob)
        key.running.append(call)
    assert key.ask() is Cause.too_many_at_once
    for _ in range(4):
        key.answer()
    assert key.ask() is Cause.rate_limited
    assert key.usage["m"].requests == 4


def test_as_many_as_a_second_has_may_come_in_one_moment_and_then_one_by_one() -> None:
    clock = Clock()
    limits = Key(clock, requests_per_second=4)
    assert [limits.ask() for _ in range(5)] == [None] * 4 + [Cause.rate_limited]
    clock.now += 0.25
    assert [limits.ask() for _ in range(2)] == [None, Cause.rate_limited]
    clock.now += 3600
    assert [limits.ask() for _ in range(5)] == [None] * 4 + [Cause.rate_limited]


def test_a_rate_below_one_a_second_lets_one_through_each_time() -> None:
    clock = Clock()
    limits = Key(clock, requests_per_second=0.5)
    assert [limits.ask() for _ in range(2)] == [None, Cause.rate_limited]
    clock.now += 2
    assert [limits.ask() for _ in range(2)] == [None, Cause.rate_limited]


def test_who_comes_after_the_time_that_a_refusal_names_gets_through() -> None:
    clock = Clock()
    limits = Key(clock, requests_per_second=0.4)
    assert [limits.ask() for _ in range(2)] == [None, Cause.rate_limited]
    told = limits.told
    assert told == (Cause.rate_limited, "This key may make at most 0.4 requests a second.", 3)
    clock.now += told.retry_after
    assert limits.ask() is None


def test_who_has_as_many_as_it_may_waits_for_an_answer() -> None:
    limits = Key(requests_at_once=2)
    assert [limits.ask() for _ in range(3)] == [None, None, Cause.too_many_at_once]
    limits.answer()
    assert limits.ask() is None


def test_what_is_refused_counts_for_nothing() -> None:
    clock = Clock()
    limits = Key(clock, requests_per_second=2, requests_at_once=1)
    assert [limits.ask() for _ in range(3)] == [None, Cause.too_many_at_once, Cause.too_many_at_once]
    limits.answer()
    assert limits.ask() is None, "the two that were refused have used up nothing of the second"


def test_what_runs_counts_against_new_limits() -> None:
    limits = Key(requests_at_once=5)
    assert [limits.ask() for _ in range(3)] == [None] * 3
    limits.change(LimitsEntry(requests_at_once=2))
    assert limits.ask() is Cause.too_many_at_once
    limits.change(LimitsEntry())
    assert limits.ask() is None


@given(
    st.floats(0.1, 50),
    st.lists(st.floats(0, 3), min_size=1, max_size=60),
)
def test_no_window_has_more_than_its_rate_and_a_burst(rate: float, pauses: list[float]) -> None:
    clock, begun = Clock(), []
    limits = Key(clock, requests_per_second=rate)
    for pause in pauses:
        clock.now += pause
        if limits.ask() is None:
            begun.append(clock.now)
    for first, start in enumerate(begun):
        for last in range(first, len(begun)):
            assert last - first + 1 <= max(1.0, rate) + rate * (begun[last] - start) + 1e-6


def test_tokens_are_counted_when_answers_tell_them_and_what_was_too_much_is_waited_for() -> None:
    clock = Clock()
    key = Key(clock, tokens_per_second=10)
    assert [key.ask(), key.ask()] == [None, None]
    key.answer(b'{"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 30, "total_tokens": 35}}')
    assert key.ask() is Cause.too_many_tokens
    assert key.told == (Cause.too_many_tokens, "This key may have at most 10 tokens a second.", 3)
    clock.now += 2.7
    assert key.ask() is None


def test_each_part_of_a_stream_is_a_token_unless_the_answer_says_otherwise() -> None:
    key = Key()
    for _ in range(3):
        assert key.ask() is None
    key.answer(parts=6)
    key.answer(b'data: {"usage":{"total_tokens":40}}\n\ndata: [DONE]\n\n', parts=6)
    key.answer(error="it failed", parts=2)
    assert key.usage["m"] == KeyUsage(requests=3, failed=1, tokens=7 + 40 + 2, seconds=1.5)


def test_usage_never_becomes_less() -> None:
    """It is a counter: an answer may say that it has fewer tokens than parts."""
    key = Key()
    assert key.ask() is None
    job = key.running[0]
    assert job.part is not None
    job.part(Part("j", True, 200, "", [], b"", None))
    assert key.usage["m"].tokens == 0
    key.answer(b'{"usage": {"total_tokens": 2}}', parts=6)
    assert key.usage["m"].tokens == 2


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        (b'{"usage": {"total_tokens": 7}}', 7),
        (b"x" * 9000 + b'"usage":{"total_tokens":7,"prompt_tokens":3}', 7),
        (b'"usage"', None),
        (b'"usage": {"total_tokens": -7}', None),
        (b'"usage": {"total_tokens": 1e400}', None),
        (b'"usage": "much"', None),
        (b'"usage": ' + b"[" * 3000, None),
        (b"\xff\xfe", None),
    ],
)
def test_what_answers_say(body: bytes, tokens: int | None) -> None:
    assert tokens_in(body) == tokens


def test_no_more_sequences_are_open_than_may_be() -> None:
    key, still_open = Key(open_sequences=2), {"a", "b"}
    assert [key.ask(each, still_open) for each in ("a", "b", "a")] == [None] * 3
    assert key.ask("c", still_open) is Cause.too_many_sequences
    assert key.ask(None) is None, "no sequence"
    assert key.ask("b", still_open) is None


def test_one_that_has_ended_makes_room() -> None:
    open_ones = {"a", "b"}
    key = Key(open_sequences=2)
    assert [key.ask("a", open_ones), key.ask("b", open_ones)] == [None, None]
    open_ones.remove("a")
    assert key.ask("c", open_ones) is None
    open_ones.add("c")
    assert key.ask("a", open_ones) is Cause.too_many_sequences


def test_a_node_of_a_workflow_may_open_no_more_either() -> None:
    key, still_open = Key(open_sequences=1), {"a", "b"}
    assert key.ask("a", still_open) is None
    within = Call((), b"").within(b"", None, "workflow")
    within.sequence = SequenceRequest("b", False, False, ())
    refused = key.begin(within, "m", still_open.__contains__)
    assert isinstance(refused, Exceeded)
    assert refused.cause is Cause.too_many_sequences


def test_refusals_are_counted_apart() -> None:
    key = Key(requests_at_once=1)
    assert [key.ask(), key.ask(), key.ask()] == [None, Cause.too_many_at_once, Cause.too_many_at_once]
    key.answer()
    assert key.usage["m"] == KeyUsage(requests=1, refused=2, tokens=1, seconds=0.5)
