"""What is remembered of closed sequences."""

import pytest

from torchserve_py.scheduling import closed
from torchserve_py.scheduling.closed import ClosedIds, ClosedTokens
from torchserve_py.scheduling.effects import Cause, CloseReason

REMEMBERED_SECONDS = 3600.0


@pytest.mark.parametrize("reason", [CloseReason.ended, CloseReason.unregistered, CloseReason.drained])
def test_a_sequence_that_simply_ended_is_not_remembered(reason):
    ids = ClosedIds(REMEMBERED_SECONDS)
    ids.remember("s", reason, 0.0)
    assert ids.refusal("s", 0.0) is None
    assert len(ids) == 0


def test_an_id_is_remembered_for_a_time():
    ids = ClosedIds(REMEMBERED_SECONDS)
    ids.remember("s", CloseReason.idle, 0.0)
    assert ids.refusal("s", REMEMBERED_SECONDS) is Cause.sequence_expired
    assert ids.refusal("s", REMEMBERED_SECONDS + 1) is None
    ids.remember("t", CloseReason.worker_lost, REMEMBERED_SECONDS + 1)
    assert len(ids) == 1


def test_only_so_many_ids_are_remembered_the_last_ones(monkeypatch):
    monkeypatch.setattr(closed, "REMEMBERED_IDS", 3)
    ids = ClosedIds(REMEMBERED_SECONDS)
    for name in "abcab":
        ids.remember(name, CloseReason.evicted, 0.0)
    ids.remember("d", CloseReason.evicted, 0.0)
    assert [name for name in "abcd" if ids.refusal(name, 0.0)] == ["a", "b", "d"]


def test_an_id_that_is_open_again_is_forgotten():
    ids = ClosedIds(REMEMBERED_SECONDS)
    ids.remember("s", CloseReason.idle, 0.0)
    ids.forget("s")
    ids.forget("never known")
    assert ids.refusal("s", 0.0) is None


def test_the_token_of_a_sequence_that_is_over_is_remembered_with_its_id():
    tokens = ClosedTokens(REMEMBERED_SECONDS)
    tokens.remember("s", "t", CloseReason.ended, 0.0)
    tokens.remember("s", "u", CloseReason.worker_lost, 0.0)
    assert tokens.refusal("s", "t", REMEMBERED_SECONDS) is Cause.sequence_ended
    assert tokens.refusal("s", "u", REMEMBERED_SECONDS) is Cause.sequence_lost
    assert tokens.refusal("other", "t", 0.0) is None
    assert tokens.refusal("s", "t", REMEMBERED_SECONDS + 1) is None


def test_only_so_many_tokens_are_remembered_the_last_ones(monkeypatch):
    monkeypatch.setattr(closed, "REMEMBERED_IDS", 2)
    tokens = ClosedTokens(REMEMBERED_SECONDS)
    for token in "abc":
        tokens.remember("s", token, CloseReason.ended, 0.0)
    assert [token for token in "abc" if tokens.refusal("s", token, 0.0)] == ["b", "c"]
