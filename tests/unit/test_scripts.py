"""The scripts of developers say what is wrong with their arguments."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_quick_checks_take_no_other_argument() -> None:
    command = [ROOT / "scripts" / "test", "tests/unit", "--quick"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stdout) == (2, "")
    assert "--quick chooses the tests itself" in run.stderr
    assert "tests/unit --quick" in run.stderr
