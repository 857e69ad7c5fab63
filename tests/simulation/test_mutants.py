"""The checker finds every planted defect."""

import pytest
from tests.simulation.mutants import MUTANTS
from tests.simulation.test_simulation import simulation

#: Within so many worlds each is found.
MOST_SEEDS = 600


@pytest.mark.parametrize("mutant", [each for each in MUTANTS if each])
def test_a_mutant_is_found(mutant: str) -> None:
    run = simulation(1, MOST_SEEDS, mutant)
    assert run.returncode == 1, run.stdout + run.stderr
    assert "seed " in run.stdout
