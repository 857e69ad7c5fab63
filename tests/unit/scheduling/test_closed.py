"""What is remembered of closed sequences."""

import pytest

from torchserve_py.scheduling import closed
from torchserve_py.scheduling.closed import REMEMBERED_SECONDS, ClosedIds
from torchserve_py.scheduling.effects import Cause, EndReason


@pytest.mark.parametrize("reason", [EndReason.ended, EndReason.unregistered, EndReason.drained])
def test_a_sequence_that_simply_ended_is_not_remembered(reason):
    ids = ClosedIds()
    ids.remember("s", reason, 0.0)
    assert ids.refusal("s", 0.0) is None
    assert len(ids) == 0


def test_an_id_is_remembered_for_a_time():
    ids = ClosedIds()
    ids.remember("s", EndReason.idle, 0.0)
    assert ids.refusal("s", REMEMBERED_SECONDS) is Cause.sequence_expired
    assert ids.refusal("s", REMEMBERED_SECONDS + 1) is None
    ids.remember("t", EndReason.worker_lost, REMEMBERED_SECONDS + 1)
    assert len(ids) == 1


def test_only_so_many_ids_are_remembered_the_last_ones(monkeypatch):
    monkeypatch.setattr(closed, "REMEMBERED_IDS", 3)
    ids = ClosedIds()
    for name in "abcab":
        ids.remember(name, EndReason.evicted, 0.0)
    ids.remember("d", EndReason.evicted, 0.0)
    assert [name for name in "abcd" if ids.refusal(name, 0.0)] == ["a", "b", "d"]


def test_an_id_that_is_open_again_is_forgotten():
    ids = ClosedIds()
    ids.remember("s", EndReason.idle, 0.0)
    ids.forget("s")
    ids.forget("never known")
    assert ids.refusal("s", 0.0) is None
