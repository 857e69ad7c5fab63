"""What the schedulers of the versions of a model know of each other's sequences, and how one of them runs out."""

from dataclasses import replace

from tests.core.scheduling.play import Play, sequences

from torchserve_py.base.causes import Cause
from torchserve_py.core.scheduling.closed import ClosedSequences


def test_a_version_refuses_what_another_one_has_lost() -> None:
    over = ClosedSequences(60.0)
    before, after = (Play(sequences(batch_size=2, max_sequences=8), over=over) for _ in range(2))
    before.submit("a", "s")
    before.answer("a")
    before.scheduler.lose_states(before.now)
    assert after.submit("b", "s") == ["b: sequence_lost"]
    assert after.submit("c", "of no version before") != ["c: sequence_lost"]
    assert after.submit("d", "s", starts_sequence=True) != ["d: sequence_lost"]


def test_a_sequence_that_begins_again_ends_once_more_after_its_state_was_lost() -> None:
    over = ClosedSequences(60.0)
    before, after = (Play(sequences(batch_size=2, max_sequences=8), over=over) for _ in range(2))
    before.submit("a", "s")
    before.answer("a")
    before.scheduler.lose_states(before.now)
    after.submit("b", "s", starts_sequence=True, ends_sequence=True)
    before.scheduler.close(Cause.unregistered, before.now)
    after.answer("b")
    assert after.submit("c", "s") == ["w1 <- c"]


def test_a_version_remembers_what_has_expired_with_another_one() -> None:
    over = ClosedSequences(60.0)
    before, after = (Play(sequences(max_idle=10.0), over=over) for _ in range(2))
    before.submit("a", "s")
    before.answer("a")
    before.at(10.0).tick()
    assert after.submit("b", "s") == ["b: sequence_expired"]


def test_the_longest_time_holds_for_all_versions() -> None:
    over = ClosedSequences(1.0)
    policy = sequences(max_idle=10.0)
    before, after = Play(policy, over=over), Play(policy, over=over)
    before.submit("a", "s")
    before.answer("a")
    before.at(10.0).tick()
    after.at(3_000.0)
    assert after.submit("b", "s") == ["b: sequence_expired"]


def test_a_scheduler_that_runs_out_takes_jobs_of_open_sequences_and_waits_for_these() -> None:
    for durable in (False, True):
        policy = sequences(batch_size=2, max_sequences=8)
        play = Play(replace(policy, sequences=replace(policy.sequences, durable=durable)))
        play.submit("a", "s")
        play.answer("a")
        play.scheduler.drain(Cause.unregistered, play.now, runs_out=True)
        assert not play.scheduler.is_idle
        assert play.submit("b", "new") == ["b: unregistered"]
        assert play.submit("c", "s", ends_sequence=True) != ["c: unregistered"]
        play.answer("c")
        assert play.scheduler.is_idle


def test_a_shutdown_does_not_wait_for_stored_sequences_that_a_version_runs_out_with() -> None:
    policy = sequences(batch_size=2, max_sequences=8)
    play = Play(replace(policy, sequences=replace(policy.sequences, durable=True)))
    play.submit("a", "s")
    play.answer("a")
    play.scheduler.drain(Cause.unregistered, play.now, runs_out=True)
    play.scheduler.drain(Cause.draining, play.now)
    assert play.scheduler.is_idle
    assert play.submit("b", "s") == ["b: draining"]
