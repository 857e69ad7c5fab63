"""Simulated worlds from the command line.

    python -m tests.simulation SEED                     one world, with its story
    python -m tests.simulation SEED COUNT               COUNT worlds, with what contradicts the promise
    python -m tests.simulation SEED COUNT MUTANT        with a planted defect (see `mutants`), until it shows

Exits with 1 if something contradicts the promise.
"""

import os
import sys
import time

if os.environ.get("PYTHONHASHSEED") != "0":  # the order of a set of texts depends on it
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    os.execve(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]], environment)

from tests.simulation.mutants import MUTANTS
from tests.simulation.simulation import simulate


def main(first: int, count: int = 1, mutant: str = "") -> int:
    """Run worlds; return the exit code."""
    began, failed = time.perf_counter(), 0
    with MUTANTS[mutant]():
        for seed in range(first, first + count):
            outcome = simulate(seed)
            if count == 1:
                print(outcome.story())
            elif outcome.violations:
                print(f"seed {seed} ({outcome.plan.store}): {outcome.violations[0][:300]}", flush=True)
            failed += bool(outcome.violations)
            if failed and mutant:
                break
        if count > 1 and not (failed and mutant):
            pace = count / (time.perf_counter() - began)
            print(f"{failed} of {count} worlds contradict the promise; {pace:.0f} worlds a second")
    return failed and 1


if __name__ == "__main__":
    given = sys.argv[1:]
    sys.exit(main(*map(int, given[:2]), *given[2:]))
