"""The scripts of developers say what is wrong with their arguments."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_quick_checks_take_no_other_argument() -> None:
    command = [ROOT / "scripts" / "test", "tests/unit", "--quick"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert (run.returncode, run.stdout) == (2, "")
    assert "--quick chooses the tests itself" in run.stderr
    assert "tests/unit --quick" in run.stderr


@pytest.mark.parametrize(
    "script", ["test", "test-python", "test-engines", "quickstart", "install-torchserve", "fuzz", "audit"]
)
def test_help_is_what_the_script_says_about_itself_and_nothing_is_installed(tmp_path: Path, script: str) -> None:
    copied = tmp_path / "scripts" / script
    copied.parent.mkdir()
    copied.write_bytes((ROOT / "scripts" / script).read_bytes())
    copied.chmod(0o755)
    run = subprocess.run([copied, "--help"], cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False)
    said = copied.read_text(encoding="utf-8").splitlines()[1].removeprefix("# ")
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith(said)
    assert "set -euo" not in run.stdout
    assert sorted(each.name for each in tmp_path.iterdir()) == ["scripts"]
