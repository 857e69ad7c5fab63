"""`torchserve-py init`: what it writes, and that it replaces nothing. docs/first-minute.md shows that it serves."""

import configparser
import json
import shlex
from importlib.metadata import distribution
from pathlib import Path

import pytest

from torchserve_py.cli import main
from torchserve_py.core.archive.model_files import open_model
from torchserve_py.core.plans.contracts import configuration_of
from torchserve_py.tools.quickstart import image_package
from torchserve_py.version import __version__

ROOT = Path(__file__).parents[2]
STARTER = ROOT / "frontend" / "torchserve_py" / "tools" / "quickstart" / "starter"
WHEEL = f"torchserve_py-{__version__}-py3-none-any.whl"
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


def test_a_folder_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "x" * 300]) == 1
    assert capsys.readouterr().err.endswith("File name too long\n")


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


def installs(folder: Path) -> str:
    """What the image of a folder installs."""
    (line,) = [line for line in (folder / "Dockerfile").read_text().splitlines() if line.startswith("ARG ")]
    return line.removeprefix("ARG TORCHSERVE_PY=")


def test_a_wheel_is_copied_beside_the_dockerfile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wheel = tmp_path / WHEEL
    wheel.write_bytes(b"a wheel")
    assert main(["init", str(tmp_path / "model"), "--package", str(wheel)]) == 0
    assert (tmp_path / "model" / WHEEL).read_bytes() == b"a wheel"
    assert installs(tmp_path / "model") == f"./{WHEEL}"
    assert "docker build" not in capsys.readouterr().out, "nothing is left to do"


@pytest.mark.parametrize("package", [f"torchserve-py[torch]=={__version__}", f"https://host.example/{WHEEL}"])
def test_an_address_or_a_version_is_installed_as_it_is(tmp_path: Path, package: str) -> None:
    assert main(["init", str(tmp_path / "model"), "--package", package]) == 0
    assert installs(tmp_path / "model") == package
    assert sorted(file.name for file in (tmp_path / "model").iterdir()) == FILES


@pytest.mark.parametrize(
    ("package", "message"),
    [
        ("missing.whl", "there is no wheel at missing.whl"),
        ("../checkout", "there is no wheel at ../checkout"),
        ("", "'' is not a wheel"),
        ("x\nRUN true", "is not a wheel"),
        ("$(true)", "is not a wheel"),
        ("git+https://host.example/x", "the image has no git"),
    ],
)
def test_a_package_that_cannot_be_installed_is_refused(
    tmp_path: Path, package: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", str(tmp_path / "model"), "--package", package]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("origin", "requirement"),
    [
        (None, f"torchserve-py=={__version__}"),
        ({"url": f"https://host.example/{WHEEL}", "archive_info": {}}, f"https://host.example/{WHEEL}"),
        (
            {"url": "https://host.example/x", "vcs_info": {"vcs": "git", "commit_id": "0a1b"}},
            f"./{WHEEL}",
        ),
        ({"url": "file:///gone/x.whl", "archive_info": {}}, f"./{WHEEL}"),
    ],
)
def test_without_a_package_the_image_gets_what_this_server_came_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: object, requirement: str
) -> None:
    record = None if origin is None else json.dumps(origin)
    monkeypatch.setattr(type(distribution("torchserve-py")), "read_text", lambda *_: record)
    assert image_package.installed().requirement == requirement


def test_a_wheel_that_this_server_came_from_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = tmp_path / "of this server" / WHEEL
    wheel.parent.mkdir()
    wheel.write_bytes(b"a wheel")
    record = json.dumps({"url": wheel.as_uri(), "archive_info": {}})
    monkeypatch.setattr(type(distribution("torchserve-py")), "read_text", lambda *_: record)
    assert main(["init", str(tmp_path / "model")]) == 0
    assert (tmp_path / "model" / WHEEL).read_bytes() == b"a wheel"


def test_from_a_checkout_the_command_that_makes_the_wheel_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = json.dumps({"url": tmp_path.as_uri(), "dir_info": {}})
    monkeypatch.setattr(type(distribution("torchserve-py")), "read_text", lambda *_: record)
    folder = tmp_path / "my model"
    assert main(["init", str(folder)]) == 0
    command = shlex.split(capsys.readouterr().out.splitlines()[-1])
    assert command == ["python", "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(folder), str(tmp_path)]
    assert installs(folder) == f"./{WHEEL}"
