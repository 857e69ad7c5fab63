"""The checker finds every planted defect."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator

import pytest
from tests.simulation.mutants import MUTANTS
from tests.simulation.test_simulation import COMMAND, environment

#: Within so many worlds each is found …
MOST_SEEDS = 600
#: … from the first one on, or from a cheap one in which it shows.
FIRST_SEEDS = {
    "a_failed_end_ends": 13,
    "answer_before_commit": 71,
    "checkpoint_ahead_of_the_log": 80,
    "earlier_state": 96,
    "entry_applied_twice": 7,
    "ghost_after_the_end": 13,
    "giver_goes_on": 33,
    "half_a_step_in_memory": 195,
    "idle_too_soon_in_files": 122,
    "ids_left_behind": 37,
    "journal_as_a_whole": 23,
    "left_twice": 33,
    "let_go_too_soon": 240,
    "listed_too_late": 161,
    "log_of_two_versions": 732,
    "lost_entry": 7,
    "migrated_state_of_the_old_version": 13,
    "no_digest": 10,
    "no_fence": 109,
    "no_number_check": 10,
    "reopened_too_soon": 3840,
    "silent_loss": 10,
    "state_as_it_was_sent_ahead": 297,
    "state_before_its_step": 33,
    "taken_before_all_has_come": 5,
    "taken_without_migration": 58,
    "token_left_behind": 33,
    "unseen_lists": 33,
    "wall_clock_for_leases": 378,
    "window_of_ids": 19,
}


@pytest.fixture(scope="module")
def simulations() -> Iterator[subprocess.Popen[str]]:
    """``python -m tests.simulation -``: to import what worlds need takes longer than most worlds."""
    with subprocess.Popen(
        [*COMMAND, "-"],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        yield process
        os.killpg(process.pid, signal.SIGKILL)  # with the worlds that a test has waited for too long


@pytest.mark.parametrize("mutant", [each for each in MUTANTS if each])
def test_a_mutant_is_found(simulations: subprocess.Popen[str], mutant: str) -> None:
    assert simulations.stdin
    assert simulations.stdout
    print(json.dumps([FIRST_SEEDS.get(mutant, 1), MOST_SEEDS, mutant]), file=simulations.stdin, flush=True)
    code, printed = json.loads(simulations.stdout.readline())
    assert code == 1, printed
    assert "seed " in printed
