"""`scripts/release --publish`: in which order it publishes, what it refuses, and that it can be repeated."""

import subprocess
import sys
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

from torchserve_py.version import __version__

ROOT = Path(__file__).parents[2]
REPOSITORY = "https://host.example/team/torchserve-py"


@pytest.fixture
def release() -> ModuleType:
    loader = SourceFileLoader("release_script", str(ROOT / "scripts" / "release"))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


class Commands:
    """Stands in for the commands of a release; ``answers`` are what some of them print."""

    def __init__(self, **answers: str) -> None:
        self.answers = answers
        self.run: list[str] = []

    def __call__(self, *command: object, folder: Path = ROOT) -> str:
        words = ["python" if each == sys.executable else str(each) for each in command]
        self.run.append(" ".join(words))
        return next((answer for name, answer in self.answers.items() if name in words), "")


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    for name in ("torchserve_py-0.whl", "torchserve_py_client-0.whl", "torchserve-py-client-0.tgz"):
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize("repeated", [False, True])
def test_a_publication_can_be_repeated(
    release: ModuleType, dist: Path, monkeypatch: pytest.MonkeyPatch, repeated: bool
) -> None:
    commands = Commands(tag=f"v{__version__}\n" if repeated else "")
    monkeypatch.setattr(release, "run", commands)
    monkeypatch.setattr(release, "is_on_npm", lambda: repeated)
    release.publish(dist)
    said = [each.split(" ")[:3] for each in commands.run]
    again = [["git", "push", "origin"], ["python", "-m", "twine"], ["mike", "deploy", "--push"]]
    first = [again[0], again[1], ["npm", "publish", str(dist / "torchserve-py-client-0.tgz")], again[2]]
    assert said[0] == ["git", "tag", "--list"]
    assert said[1:] == (again if repeated else [["git", "tag", f"v{__version__}"], *first])
    assert any("--skip-existing" in each and "torchserve_py_client-0.whl" in each for each in commands.run)


def refused(*arguments: str, environment: dict[str, str] | None = None) -> str:
    command = [sys.executable, str(ROOT / "scripts" / "release"), *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False, env=environment)
    assert ran.returncode == 2, ran.stdout
    return ran.stderr


@pytest.mark.parametrize(
    "address", ["http://host.example/x", "git@host.example:x", "https://host.example/x/", "https://x"]
)
def test_the_address_has_to_be_that_of_a_repository(address: str) -> None:
    assert f"{address} is not the https address of a repository" in refused(address)


def test_a_commit_that_differs_from_the_files_is_not_published(
    release: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    built: list[Sequence[object]] = []
    monkeypatch.setattr(release, "run", Commands(status=" M setup.cfg\n"))
    monkeypatch.setattr(release, "build", lambda *arguments: built.append(arguments))
    monkeypatch.setattr(sys, "argv", ["release", REPOSITORY, "--publish"])
    with pytest.raises(SystemExit):
        release.main()
    assert "M setup.cfg" in capsys.readouterr().err
    assert built == []
