"""When a server may truly say that a sequence was idle for too long."""

import time

import pytest
from tests.chaos.ledger import Ledger
from tests.chaos.timeline import Timeline

LIMIT = 2.0


@pytest.mark.parametrize(
    ("gap", "acknowledged", "failed", "copied", "worked", "may_expire"),
    [
        (3.0, 3.5, None, None, None, True),
        (0.5, 3.5, None, None, None, False),  # its holder knows what waits there
        (0.5, 3.5, 3.0, None, 3.0, True),  # nobody holds it after a failure
        (0.5, 3.5, None, 3.0, 3.0, True),  # another server may hold it for a copy
        (0.5, 3.5, None, 1.0, 3.0, True),
        (0.5, 1.8, 1.0, 1.0, 1.0, False),  # that server counts from the moment at which its worker refused the copy
        (0.5, 1.4, 0.2, None, 0.5, False),
        (0.5, 3.5, 5.0, 5.0, 5.0, False),  # both were before the step that was acknowledged last
    ],
)
def test_it_may_expire_where_no_worker_has_had_a_step_and_nobody_may_hold_it(
    gap: float, acknowledged: float, failed: float | None, copied: float | None, worked: float | None, may_expire: bool
) -> None:
    """All times are seconds ago."""
    now, ledger = time.monotonic(), Ledger("s")
    ledger.longest_gap, ledger.acknowledged_at = gap, now - acknowledged
    ledger.failed_at = 0.0 if failed is None else now - failed
    ledger.copied_at = None if copied is None else now - copied
    ledger.worked_at = 0.0 if worked is None else now - worked
    assert bool(Timeline(LIMIT).why_expired(ledger)) == may_expire


def test_a_copy_that_comes_after_the_idle_time_ends_the_sequence() -> None:
    ledger = Ledger("s")
    ledger.acknowledged_at = ledger.active_until = time.monotonic() - 3.0
    ledger.failed_at = ledger.acknowledged_at + 0.5
    ledger.worked()
    assert Timeline(LIMIT).why_expired(ledger)


def test_a_step_that_was_acknowledged_while_another_waited_counts_from_its_answer() -> None:
    ledger, now = Ledger("s"), time.monotonic()
    ledger.failed_at = ledger.worked_at = now  # the other one, sent together with it, has failed just now
    ledger.acknowledged(now - 7.0)
    assert Timeline(LIMIT).why_expired(ledger)
    ledger.acknowledged(now + 0.1)
    assert not Timeline(LIMIT).why_expired(ledger)


@pytest.mark.parametrize(("read_after", "may_expire"), [(0.0, True), (0.5, False)])
def test_an_answer_that_clients_read_late_may_be_as_much_older(read_after: float, may_expire: bool) -> None:
    """``read_after`` is how many seconds after they had come late they read it."""
    timeline, ledger = Timeline(LIMIT), Ledger("s")
    timeline.was_late(1.6)
    ledger.acknowledged(time.monotonic() + read_after)
    assert bool(timeline.why_expired(ledger)) == may_expire
