"""What is remembered of closed sequences."""

import pytest

from torchserve_py.base.causes import Cause, CloseReason
from torchserve_py.core.scheduling.closed import ClosedIds, ClosedSequences, ClosedTokens
from torchserve_py.core.scheduling.remembered import MOST_REMEMBERED, Remembered

REMEMBERED_SECONDS = 3600.0


@pytest.mark.parametrize("reason", [CloseReason.ended, CloseReason.unregistered, CloseReason.drained])
def test_a_sequence_that_simply_ended_is_not_remembered(reason):
    ids = ClosedIds(Remembered(REMEMBERED_SECONDS))
    ids.remember("s", reason, 0.0)
    assert ids.refusal("s", 0.0) is None
    assert len(ids.names) == 0


def test_an_id_is_remembered_for_a_time():
    ids = ClosedIds(Remembered(REMEMBERED_SECONDS))
    ids.remember("s", CloseReason.idle, 0.0)
    assert ids.refusal("s", REMEMBERED_SECONDS) is Cause.sequence_expired
    assert ids.refusal("s", REMEMBERED_SECONDS + 1) is None
    ids.remember("t", CloseReason.worker_lost, REMEMBERED_SECONDS + 1)
    assert len(ids.names) == 1


def test_only_so_many_ids_are_remembered_the_last_ones():
    ids = ClosedIds(Remembered(REMEMBERED_SECONDS, most=3, segment=1))
    for name in "abcab":
        ids.remember(name, CloseReason.evicted, 0.0)
    ids.remember("d", CloseReason.evicted, 0.0)
    assert [name for name in "abcd" if ids.refusal(name, 0.0)] == ["a", "b", "d"]
    assert ids.names.forgotten == 3


def test_an_id_that_is_open_again_is_forgotten():
    ids = ClosedIds(Remembered(REMEMBERED_SECONDS))
    ids.remember("s", CloseReason.idle, 0.0)
    ids.forget("s", 0.0)
    ids.forget("never known", 0.0)
    assert ids.refusal("s", 0.0) is None


def test_the_token_of_a_sequence_that_is_over_is_remembered_with_its_id():
    tokens = ClosedTokens(Remembered(REMEMBERED_SECONDS))
    tokens.remember("s", "t", CloseReason.ended, 0.0)
    tokens.remember("s", "u", CloseReason.worker_lost, 0.0)
    assert tokens.refusal("s", "t", REMEMBERED_SECONDS) is Cause.sequence_ended
    assert tokens.refusal("s", "u", REMEMBERED_SECONDS) is Cause.sequence_lost
    assert tokens.refusal("other", "t", 0.0) is None
    assert tokens.refusal("s", "t", REMEMBERED_SECONDS + 1) is None


def test_only_so_many_tokens_are_remembered_the_last_ones():
    tokens = ClosedTokens(Remembered(REMEMBERED_SECONDS, most=2, segment=1))
    for token in "abc":
        tokens.remember("s", token, CloseReason.ended, 0.0)
    assert [token for token in "abc" if tokens.refusal("s", token, 0.0)] == ["b", "c"]


def test_a_name_is_remembered_for_as_long_as_was_asked_for_whatever_came_since():
    names = Remembered(100.0, most=1_000, segment=10)
    noted = {}
    for number in range(400):
        now = float(number)
        names.note(f"s{number}", 1 + number % 3, now)
        noted[f"s{number}"] = (1 + number % 3, now)
        for name, (mark, moment) in noted.items():
            if now - moment <= 100.0:
                assert names.mark(name, now) == mark
            elif now - moment > 120.0:
                assert names.mark(name, now) == 0
        assert len(names) <= 120
    assert names.forgotten == 0


def test_what_is_forgotten_before_its_time_is_counted():
    names = Remembered(100.0, most=50, segment=10)
    for number in range(100):
        names.note(str(number), 1, 0.0)
    assert names.forgotten == sum(not names.mark(str(number), 0.0) for number in range(100)) == 50


def test_a_name_that_is_noted_again_has_its_latest_mark():
    names = Remembered(100.0, segment=2)
    for mark in (1, 2, 3, 0, 2):
        names.note("s", mark, 0.0)
        names.note(f"other {mark}", 1, 0.0)
        assert names.mark("s", 0.0) == mark


def test_a_model_remembers_more_sequences_that_are_over_than_a_busy_hour_has():
    over = ClosedSequences(REMEMBERED_SECONDS)
    for number in range(150_000):
        over.tokens.remember(f"s{number}", "t", CloseReason.ended, number / 100)
    assert over.tokens.refusal("s0", "t", 1500.0) is Cause.sequence_ended
    assert over.tokens.refusal("s150000", "t", 1500.0) is None
    assert over.forgotten == 0
    assert MOST_REMEMBERED >= 1_000_000
