"""The wheel and the sdist: complete, accepted by the package index, and enough to serve a request."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.e2e.running_server import DEADLINE, ROOT, RunningServer, model_folder

from torchserve_py.version import __version__

SOURCES = ("frontend", "backend")
SHOUT = """
def handle(data, context):
    if data is not None:
        return [row["body"].upper() for row in data]
"""
MADE_BY_PYTHON = shutil.ignore_patterns("__pycache__", "*.py[cod]", "*.egg-info")


def run(*command: str | Path, directory: Path | None = None) -> str:
    ran = subprocess.run(
        [str(each) for each in command],
        cwd=directory,
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@dataclass(frozen=True)
class Built:
    """What ``python -m build`` makes: the wheel is made of the sdist."""

    sdist: Path
    wheel: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    source, made = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("made")
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, source)
    for name in SOURCES:
        shutil.copytree(ROOT / name, source / name, ignore=MADE_BY_PYTHON)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", made, source)
    (sdist,), (wheel,) = made.glob("*.tar.gz"), made.glob("*.whl")
    return Built(sdist, wheel)


@pytest.fixture(scope="module")
def environment(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and what it requires, taken from the environment of the tests, and nothing else."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    run(sys.executable, "-m", "pip", "--python", folder, "install", "--quiet", "--no-deps", built.wheel)
    (installed,) = importlib.metadata.distributions(path=[str(packages)])
    for distribution in required(installed):
        for name in {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}:
            if not (packages / name).exists():
                (packages / name).symlink_to(Path(str(distribution.locate_file(name))))
    return folder


def required(distribution: importlib.metadata.Distribution) -> list[importlib.metadata.Distribution]:
    """Return the distributions that one needs without its extras, directly or not."""
    found: dict[str, importlib.metadata.Distribution] = {}
    waiting = [distribution]
    while waiting:
        for line in waiting.pop().requires or ():
            name = re.split(r"[^\w.-]", line)[0]
            if "extra ==" in line or name in found:
                continue
            try:
                found[name] = importlib.metadata.distribution(name)
            except importlib.metadata.PackageNotFoundError:
                continue  # for another platform or Python; `pip check` finds others that are missing
            waiting.append(found[name])
    return list(found.values())


def test_the_package_index_takes_both(built: Built) -> None:
    assert built.wheel.name == f"torchserve_py-{__version__}-py3-none-any.whl"
    checked = run(sys.executable, "-m", "twine", "--no-color", "check", "--strict", built.wheel, built.sdist)
    assert checked.count("PASSED") == 2


def test_both_have_every_file_of_the_packages(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel, tarfile.open(built.sdist) as sdist:
        in_wheel, in_sdist = set(wheel.namelist()), {name.partition("/")[2] for name in sdist.getnames()}
    for source in SOURCES:
        for path in (ROOT / source).rglob("*"):
            if path.is_file() and not MADE_BY_PYTHON("", list(path.relative_to(ROOT).parts)):
                assert path.relative_to(ROOT / source).as_posix() in in_wheel
                assert path.relative_to(ROOT).as_posix() in in_sdist
    assert {"LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "constraints.txt"} <= in_sdist
    assert f"torchserve_py-{__version__}.dist-info/licenses/LICENSE" in in_wheel


def test_the_wheel_serves_a_request_with_nothing_but_what_it_requires(environment: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "pip", "--python", environment, "check")
    imported = "import torchserve_py, ts; print(torchserve_py.__file__, ts.__file__)"
    where = run(environment / "bin" / "python", "-c", imported).split()
    assert all(each.startswith(str(environment)) for each in where)

    server = RunningServer({"shout": model_folder(tmp_path, "shout", SHOUT)})
    server.started_by(str(environment / "bin" / "torchserve-py"))
    del server.environment["PYTHONPATH"]
    with server:
        server.wait_ready()
        assert server.predict("shout", "hello").text == "HELLO"


def test_the_installed_commands_name_their_version(environment: Path) -> None:
    for command in ("torchserve-py", "torchserve"):
        assert __version__ in run(environment / "bin" / command, "--version")
    for command in ("torch-model-archiver", "torch-workflow-archiver"):
        assert "usage" in run(environment / "bin" / command, "--help")
