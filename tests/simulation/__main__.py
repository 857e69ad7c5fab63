"""Simulated worlds from the command line.

    python -m tests.simulation SEED                     one world, with its story
    python -m tests.simulation SEED COUNT               COUNT worlds, with what contradicts the promise
    python -m tests.simulation SEED COUNT MUTANT        with a planted defect (see `mutants`), until it shows
    python -m tests.simulation -                        for each line of the input, a list of such arguments in JSON, a
                                                        line with the list of the exit code and what was printed

Exits with 1 if something contradicts the promise.
"""

import gc
import json
import os
import sys
import tempfile
import time
import traceback

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


def answer_lines() -> None:
    """Run each line's worlds in a fork: what they need is imported once, and no defect outlives its worlds."""
    gc.freeze()
    for line in sys.stdin:
        with tempfile.TemporaryFile() as printed:
            child = os.fork()
            if not child:
                os.dup2(printed.fileno(), 1)
                os.dup2(printed.fileno(), 2)
                code = 2
                try:
                    code = main(*json.loads(line))
                except Exception:
                    traceback.print_exc()
                finally:
                    sys.stdout.flush()
                    os._exit(code)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            printed.seek(0)
            print(json.dumps([code, printed.read().decode()]), flush=True)


if __name__ == "__main__":
    given = sys.argv[1:]
    if given == ["-"]:
        answer_lines()
    else:
        sys.exit(main(*map(int, given[:2]), *given[2:]))
