"""The checker finds every planted defect."""

import pytest
from tests.simulation.mutants import MUTANTS
from tests.simulation.test_simulation import simulation

#: Within so many worlds each is found, from the first one on, or from where a rare one shows.
MOST_SEEDS = 600
FIRST_SEEDS = {"no_fence": 100, "half_a_step_in_memory": 100, "wall_clock_for_leases": 370, "log_of_two_versions": 725}


@pytest.mark.parametrize("mutant", [each for each in MUTANTS if each])
def test_a_mutant_is_found(mutant: str) -> None:
    run = simulation(FIRST_SEEDS.get(mutant, 1), MOST_SEEDS, mutant)
    assert run.returncode == 1, run.stdout + run.stderr
    assert "seed " in run.stdout
