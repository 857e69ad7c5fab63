"""Commits that a replica has as well survive a primary that dies, or freezes and wakes up; others may not."""

import pytest
from tests.chaos.failover import Plan, run
from tests.programs import need_program


@pytest.mark.parametrize("freeze", [False, True])
def test_no_acknowledged_commit_is_lost_with_a_replica_that_has_it(freeze: bool) -> None:
    need_program("redis-server")
    outcome = run(1, Plan(replicas=1, lag=True, freeze=freeze, seconds=0.5))
    assert outcome.acknowledged
    assert outcome.lost == 0


def test_what_replicas_lag_is_lost_unless_answers_wait_for_them() -> None:
    need_program("redis-server")
    outcome = run(1, Plan(replicas=0, lag=True, seconds=0.5))
    assert 0 < outcome.lost < outcome.acknowledged
