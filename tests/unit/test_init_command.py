"""`torchserve-py init`: what it writes, and that it replaces nothing. docs/first-minute.md shows that it serves."""

import configparser
from pathlib import Path

import pytest

from torchserve_py.cli import main
from torchserve_py.core.archive.model_files import open_model
from torchserve_py.core.plans.contracts import configuration_of

ROOT = Path(__file__).parents[2]
STARTER = ROOT / "frontend" / "torchserve_py" / "tools" / "quickstart" / "starter"
FILES = ["Dockerfile", "Dockerfile.dockerignore", "handler.py", "model-config.yaml", "test_handler.py"]


def test_a_first_model_is_written_with_a_configuration_without_warnings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new" / "model"
    assert main(["init", str(folder)]) == 0
    assert sorted(file.name for file in folder.iterdir()) == FILES
    assert str(folder) in capsys.readouterr().out
    files = open_model(folder, tmp_path)
    assert (files.name, files.manifest.handler) == ("model", "handler.py")
    assert files.source is not None
    assert configuration_of(files).config.warnings == ()


def test_the_commands_that_follow_can_be_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "my model"]) == 0
    assert "torchserve-py serve 'my model' --watch\n  python -m pytest 'my model'\n" in capsys.readouterr().out


def test_no_folder_gets_the_name_of_a_python_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", str(tmp_path / "shout.py")]) == 1
    assert capsys.readouterr().err.endswith(f"a folder is written: {tmp_path / 'shout'}\n")
    assert list(tmp_path.iterdir()) == []


def test_files_that_are_there_stay_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "handler.py").write_text("mine")
    assert main(["init"]) == 1
    assert "has handler.py already; nothing is written" in capsys.readouterr().err
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("handler.py", "mine")]


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["init", str(tmp_path / "file" / "model")]) == 1
    assert "Not a directory" in capsys.readouterr().err


def test_the_files_are_part_of_the_package() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert setup["options.package_data"]["torchserve_py.tools.quickstart"] == "starter/*"
    assert sorted(file.name for file in STARTER.iterdir() if file.is_file()) == FILES
