"""What a release publishes: complete, fit for the package index, enough to serve, and installed as the pages say."""

import importlib.metadata
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.e2e import documents
from tests.e2e.running_server import DEADLINE, ROOT, RunningServer, model_folder
from tests.e2e.workplace import Workplace

from torchserve_py.version import __version__

SOURCES = ("frontend", "backend")
SHOUT = """
def handle(data, context):
    if data is not None:
        return [row["body"].upper() for row in data]
"""
REPOSITORY = "https://host.example/team/torchserve-py"
#: Those with pages, besides the one on top.
FOLDERS = ("docs", "handlers", "clients")
#: Every link of a README, those within a page aside.
LINK = re.compile(r"\]\((?!#)([^)]+)\)")
#: What an installation of this project names in a page: a checkout with extras, or a folder of it.
INSTALLED = re.compile(r"pip install ([^`\n#]*)")
MADE_BY_PYTHON = shutil.ignore_patterns("__pycache__", "*.py[cod]", "*.egg-info")


def run(*command: str | Path, directory: Path | None = None, errors: bool = False) -> str:
    """Run a command, which must succeed; return what it prints, with or without its errors."""
    ran = subprocess.run(
        [str(each) for each in command],
        cwd=directory,
        env={**{key: value for key, value in os.environ.items() if key != "PYTHONPATH"}, "PIP_NO_COMPILE": "1"},
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr if errors else ran.stdout


@dataclass(frozen=True)
class Built:
    """What ``scripts/release`` makes; a wheel is made of its sdist."""

    sdist: Path
    wheel: Path
    client: Path
    folder: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    made = tmp_path_factory.mktemp("made")
    run(sys.executable, ROOT / "scripts" / "release", REPOSITORY, "--outdir", made)
    (sdist,), (wheel,) = made.glob("torchserve_py-0*.tar.gz"), made.glob("torchserve_py-0*.whl")
    (client,) = made.glob("torchserve_py_client-*.whl")
    return Built(sdist, wheel, client, made)


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


def test_a_release_has_the_packages_of_server_and_clients(built: Built) -> None:
    made = {path.name for path in built.folder.iterdir()}
    assert made - {f"torchserve-py-client-{__version__}.tgz"} == {  # made if there is npm
        f"torchserve_py-{__version__}-py3-none-any.whl",
        f"torchserve_py-{__version__}.tar.gz",
        f"torchserve_py_client-{__version__}-py3-none-any.whl",
        f"torchserve_py_client-{__version__}.tar.gz",
    }


def test_the_pages_of_the_index_link_to_the_repository(built: Built) -> None:
    for wheel in (built.wheel, built.client):
        with zipfile.ZipFile(wheel) as opened:
            (name,) = [name for name in opened.namelist() if name.endswith(".dist-info/METADATA")]
            metadata = opened.read(name).decode()
        links = LINK.findall(metadata)
        assert links
        assert [each for each in links if not each.startswith("https://")] == []
        assert f"Project-URL: Source, {REPOSITORY}\n" in metadata
        for path in re.findall(rf"{REPOSITORY}/(?:raw|blob)/v{re.escape(__version__)}/([^)\s]+)", metadata):
            assert (ROOT / path.partition("#")[0]).is_file(), path


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


def test_the_wheel_has_the_examples_of_the_pages(environment: Path, tmp_path: Path) -> None:
    run(environment / "bin" / "torchserve-py", "example", "stateful", "gallery", "deploy", directory=tmp_path)
    for name in ("handlers/stateful", "handlers/gallery", "deploy/chart", "deploy/prometheus", "deploy/grafana"):
        sources = [path for path in (ROOT / name).rglob("*.*") if "__pycache__" not in path.parts]
        assert sources
        for path in sources:
            assert (tmp_path / path.relative_to(ROOT)).read_bytes() == path.read_bytes()


def install_lines() -> list[tuple[str, str]]:
    """Return every line of a page that installs a package, with the page's name."""
    pages = [*ROOT.glob("*.md"), *(page for name in FOLDERS for page in (ROOT / name).rglob("*.md"))]
    pages.remove(ROOT / "CHANGELOG.md")
    return [
        (str(page.relative_to(ROOT)), line.strip())
        for page in sorted(pages)
        for line in INSTALLED.findall(page.read_text())
    ]


@pytest.fixture(scope="module")
def would_install(environment: Path) -> Callable[..., str]:
    """Return what pip prints about installing requirements, without any index.

    What extras require is taken from the environment of the tests, which pip has made of the same extras.
    """
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "tests.pth").write_text(str(Path(pytest.__file__).parents[1]))
    install = (sys.executable, "-m", "pip", "--python", environment, "install", "--dry-run", "--no-index")
    return lambda *requirements: run(*install, *sorted(requirements), errors=True)


def test_every_page_installs_from_a_checkout_and_names_extras_that_exist(
    built: Built, would_install: Callable[..., str]
) -> None:
    """Until there is a release, no index has the project."""
    lines, wanted = install_lines(), set()
    for page, line in lines:
        for word in shlex.split(line):
            assert not word.startswith("torchserve"), f"{page}: pip install {line}: no index has this"
            if word.startswith("."):
                wanted.add(f"{built.wheel}{word.removeprefix('.')}")
            elif "/" in word:
                folder, bracket, extras = word.partition("[")
                assert folder == "clients/python", f"{page}: pip install {line}"
                wanted.add(f"{built.client}{bracket}{extras}")
    assert len(wanted) > 10, lines
    assert "does not provide the extra" not in would_install(*wanted)


def test_what_messages_propose_adds_to_the_installed_server(would_install: Callable[..., str]) -> None:
    """`pip install 'torchserve-py[tls]'` finds the server installed and asks no index for it."""
    sources = [path.read_text() for name in SOURCES for path in (ROOT / name).rglob("*.py")]
    named = {each for text in sources for each in re.findall(r"pip install '?(torchserve-py\[\w+\])", text)}
    assert len(named) > 5
    assert "does not provide the extra" not in would_install(*named)


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with nothing but pip, in which the README's line has been typed in a checkout."""
    folder, checkout = tmp_path_factory.mktemp("stranger"), tmp_path_factory.mktemp("checkout") / "torchserve-py"
    checkout.mkdir()
    for name in run("git", "ls-files", "-zco", "--exclude-standard", directory=ROOT).split("\0"):
        if (ROOT / name).is_file() and not name.startswith("tests/"):
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, checkout / name)
    run(sys.executable, "-m", "venv", folder)
    (line,) = [line for page, line in install_lines() if page == "README.md" and "client" in line]
    run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", *shlex.split(line), directory=checkout)
    return folder


@pytest.fixture
def place(stranger: Path, tmp_path: Path) -> Iterator[Workplace]:
    """A folder where the stranger's commands are those on the path."""
    with Workplace(tmp_path) as workplace:
        del workplace.environment["PYTHONPATH"]
        workplace.environment["PATH"] = os.pathsep.join([str(stranger / "bin"), os.environ["PATH"]])
        yield workplace


@pytest.mark.timeout(1200)  # two processors with other work took four minutes to install everything
def test_the_readme_works_for_a_stranger(place: Workplace) -> None:
    for block in documents.blocks(ROOT / "README.md"):
        documents.run(block, place)


def test_the_image_of_a_first_model_installs_what_the_stranger_has(place: Workplace, stranger: Path) -> None:
    code, printed = place.run("torchserve-py init hello")
    assert code == 0, printed
    assert place.run(printed.splitlines()[-1])[0] == 0
    dockerfile = (place.directory / "hello" / "Dockerfile").read_text()
    (package,) = re.findall(r"^ARG TORCHSERVE_PY=(.+)$", dockerfile, re.MULTILINE)
    (command,) = re.findall(r"pip install [^&]+", dockerfile)
    code, printed = place.run(f"cd hello && TORCHSERVE_PY={package} && {command} --dry-run --no-deps --force-reinstall")
    assert (code, f"Would install torchserve-py-{__version__}" in printed) == (0, True), printed
    assert list(place.directory.glob("hello/*.whl"))
