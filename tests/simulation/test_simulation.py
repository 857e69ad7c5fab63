"""Simulated worlds keep the promise; a world is the same each time.

A world that does not is told in full by ``python -m tests.simulation SEED``.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SEEDS, CHUNK = 60, 20
COMMAND = [sys.executable, "-m", "tests.simulation"]


def environment() -> dict[str, str]:
    """Return the environment of `COMMAND`."""
    path = os.pathsep.join(str(ROOT / folder) for folder in ("", "frontend", "backend"))
    return {**os.environ, "PYTHONPATH": path}


def simulation(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run ``python -m tests.simulation`` with these arguments."""
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=550, check=False)


@pytest.mark.parametrize("first", range(1, SEEDS, CHUNK))
def test_worlds_keep_the_promise(first: int) -> None:
    run = simulation(first, CHUNK)
    assert run.returncode == 0, run.stdout + run.stderr


def test_a_seed_tells_one_story() -> None:
    first, second = simulation(7), simulation(7)
    assert first.stdout.startswith("seed 7: ")
    assert first.stdout == second.stdout
