"""Server identities: whether a server is still there."""

import subprocess
import sys
from pathlib import Path

from ts.sequences.steps.server_identity import is_gone, server_identity

BACKEND = Path(__file__).parents[4] / "backend"


def test_this_process_is_there() -> None:
    assert not is_gone(server_identity())


def test_one_that_has_ended_is_gone() -> None:
    code = "from ts.sequences.steps.server_identity import *; print(server_identity())"
    ended = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(BACKEND)}, capture_output=True, text=True, check=True
    )
    assert is_gone(ended.stdout.strip())


def test_another_process_with_the_same_number_is_another() -> None:
    place, pid, _ = server_identity().split("/")
    assert is_gone(f"{place}/{pid}/1")


def test_of_other_machines_nothing_is_known() -> None:
    assert not is_gone("another machine/1/1")
    assert not is_gone("nonsense")
    assert not is_gone("")
