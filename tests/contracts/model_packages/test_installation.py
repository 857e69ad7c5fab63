"""Installing a model's packages: what is run, and what is told when it fails. pip itself is in the end-to-end tests."""

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from torchserve_py.contracts.model_packages import installation
from torchserve_py.contracts.model_packages.installation import install_dependencies
from torchserve_py.core.archive.manifest import describe
from torchserve_py.core.archive.model_files import ModelFiles
from torchserve_py.core.serving.errors import DependencyError
from torchserve_py.core.workers.launch_command import Launch

DEADLINE = 60.0
FAKE_PYTHON = """#!{python}
import pathlib, sys, time
pathlib.Path("{home}/calls").open("a").write(" ".join(sys.argv[1:]) + "\\n")
"""


@pytest.fixture
def files(tmp_path: Path) -> ModelFiles:
    """A model with a requirements file."""
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "requirements.txt").write_text("x\n")
    return ModelFiles("m", folder, describe(model_name="m", requirements_file="requirements.txt"))


@pytest.fixture
def fake_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An interpreter that notes what it is called with; the test appends what else it does."""
    path = tmp_path / "python"
    path.write_text(FAKE_PYTHON.format(python=sys.executable, home=tmp_path))
    path.chmod(0o755)
    monkeypatch.setattr(installation, "interpreter", lambda _: str(path))
    return path


def give_body(fake_python: Path, body: str) -> None:
    fake_python.write_text(fake_python.read_text() + body)


async def install(
    files: ModelFiles,
    tmp_path: Path,
    *,
    use_venv: bool = False,
    requirements: bool = True,
    listed: Sequence[str] = (),
) -> ModelFiles:
    return await install_dependencies(
        files,
        "m",
        tmp_path,
        use_venv=use_venv,
        requirements=requirements,
        runtime="python",
        file=files.manifest.requirements_file,
        listed=listed,
    )


def folders(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "models").glob("*"))


async def test_packages_go_to_a_folder_of_the_models_own(files: ModelFiles, tmp_path: Path, fake_python: Path) -> None:
    installed = await install(files, tmp_path)
    assert folders(tmp_path) == [installed.dependencies_dir]
    call = (tmp_path / "calls").read_text().strip()
    assert call.startswith("-m pip install ")
    assert call.endswith(f" -U -t {installed.packages_dir} -r {files.model_dir / 'requirements.txt'}")


async def test_requirements_that_are_listed_are_installed_too(
    files: ModelFiles, tmp_path: Path, fake_python: Path
) -> None:
    installed = (await install(files, tmp_path, listed=["a==1", "b"])).dependencies_dir
    assert installed is not None
    of_the_file, listed = (tmp_path / "calls").read_text().strip().split(" -r ")[1:]
    assert of_the_file == str(files.model_dir / "requirements.txt")
    assert Path(listed).read_text() == "a==1\nb\n"
    assert Path(listed).parent == installed


@pytest.mark.parametrize("requirements", [True, False])
async def test_without_anything_to_do_nothing_is_done(
    requirements: bool, files: ModelFiles, tmp_path: Path, fake_python: Path
) -> None:
    if requirements:
        files = ModelFiles("m", files.model_dir, describe(model_name="m"))
    assert await install(files, tmp_path, requirements=requirements) is files
    assert not (tmp_path / "calls").exists()
    assert folders(tmp_path) == []


async def test_what_pip_says_is_logged_and_its_error_is_told(
    files: ModelFiles, tmp_path: Path, fake_python: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    give_body(fake_python, "print('Looking in links')\nprint('ERROR: No matching distribution')\nsys.exit(1)\n")
    expected = r"^Custom pip package installation failed for model m: No matching distribution$"
    with pytest.raises(DependencyError, match=expected):
        await install(files, tmp_path)
    assert "m: Looking in links" in caplog.text
    assert folders(tmp_path) == []


async def test_an_environment_that_cannot_be_made_is_told(files: ModelFiles, tmp_path: Path, fake_python: Path) -> None:
    give_body(fake_python, "print('no venv here')\nsys.exit(1)\n")
    with pytest.raises(DependencyError, match=r"^Virtual environment creation failed for model m: no venv here$"):
        await install(files, tmp_path, use_venv=True)
    assert folders(tmp_path) == []


async def test_an_installation_that_takes_too_long_is_ended(
    files: ModelFiles, tmp_path: Path, fake_python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installation, "_LIMIT", 0.2)
    give_body(fake_python, "time.sleep(60)\n")
    with pytest.raises(DependencyError, match=r"model m: it took longer than 0\.2 s$"):
        await install(files, tmp_path)
    assert folders(tmp_path) == []


async def test_an_installation_that_is_given_up_is_ended_with_what_it_started(
    files: ModelFiles, tmp_path: Path, fake_python: Path
) -> None:
    note = tmp_path / "pid"
    give_body(
        fake_python,
        "import subprocess\n"
        "child = subprocess.Popen(['sleep', '60'])\n"
        f"pathlib.Path('{note}.part').write_text(str(child.pid))\n"
        f"pathlib.Path('{note}.part').rename('{note}')\n"
        "time.sleep(60)\n",
    )
    installing = asyncio.create_task(install(files, tmp_path))
    async with asyncio.timeout(DEADLINE):
        while not note.exists():
            await asyncio.sleep(0.01)
    child = psutil.Process(int(note.read_text()))
    installing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await installing
    psutil.wait_procs([child], timeout=DEADLINE)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    assert folders(tmp_path) == []


async def test_a_virtual_environment_finds_its_own_packages_first_then_the_servers(
    files: ModelFiles, tmp_path: Path
) -> None:
    found = await install(files, tmp_path, use_venv=True, requirements=False)
    installed = found.dependencies_dir
    assert installed is not None
    python = found.venv_python
    assert python is not None
    launch = Launch(files.model_dir, venv_python=python)
    assert launch.command(tmp_path)[0] == str(python)
    (site,) = (installed / "venv" / "lib").glob("python*/site-packages")
    (site / "typing_extensions.py").write_text("VERSION = 'own'\n")
    environment = {**launch.worker_environment("token")}
    environment["PYTHONPATH"] = str(files.model_dir)  # this test's own has the sources in front
    program = "import typing_extensions, psutil, ts.process.worker; print(typing_extensions.VERSION, psutil.__name__)"
    output = subprocess.run(
        [python, "-P", "-c", program], env=environment, capture_output=True, text=True, check=False, timeout=DEADLINE
    )
    assert output.stdout.split() == ["own", "psutil"], output.stderr


def test_a_folder_of_packages_is_searched_behind_the_model_and_before_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    launch = Launch(tmp_path / "m", packages_dir=tmp_path / "packages")
    environment = launch.worker_environment("token")
    assert environment["TS_WORKER_FOLDERS"].split(":") == [str(tmp_path / "m"), str(tmp_path / "packages")]
    packages, server = environment["PYTHONPATH"].split(":")
    assert packages == str(tmp_path / "packages")
    assert (Path(server) / "ts").is_dir()
