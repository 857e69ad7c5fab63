"""Clients of language models, as their users run them, against handlers/chat with a model that has a script.

Those in Python run in the interpreter that TS_CLIENTS_PYTHON names, in that of `scripts/test-clients`, or in this
one, if they are installed there; the one in JavaScript with what `scripts/test-clients` has installed. `CLIENTS` is
the table of docs/llm.md.
"""

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.e2e.running_server import DEADLINE, RunningServer

pytest.importorskip("llguidance")
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

HERE = Path(__file__).with_name("openai_clients")
DOCS = Path(__file__).parents[2] / "docs" / "llm.md"
INSTALLED = Path(__file__).parents[2] / ".venv-clients"
_PYTHON = INSTALLED / "bin" / "python"
PYTHON = os.environ.get("TS_CLIENTS_PYTHON") or (str(_PYTHON) if _PYTHON.exists() else sys.executable)
#: The clients, each with its package and its file; the file's functions are named by columns of the table.
CLIENTS = {
    "openai": ("openai", "openai_client.py"),
    "OpenAI Agents": ("agents", "openai_agents.py"),
    "litellm": ("litellm", "litellm_client.py"),
    "pydantic-ai": ("pydantic_ai", "pydantic_ai_client.py"),
    "instructor": ("instructor", "instructor_client.py"),
    "LangChain": ("langchain_openai", "langchain_client.py"),
    "LlamaIndex": ("llama_index", "llama_index_client.py"),
    "Vercel AI SDK": ("ai", "vercel_client.mjs"),
}
#: What LlamaIndex needs in other versions than the rest.
_LLAMA_INDEX = str(INSTALLED / "llama-index")
COLUMNS = {
    "tools": "tools",
    "structured output": "structured",
    "streams": "stream",
    "streamed tools": "stream_tools",
    "handoffs": "handoff",
    "Responses": "responses",
}


def environment_of(package: str) -> dict[str, str]:
    # They were installed without being compiled: what a client imports is compiled once.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return environment | ({"PYTHONPATH": _LLAMA_INDEX} if package == "llama_index" else {})


@functools.cache
def missing(package: str, file: str) -> str:
    """Return what a client needs and this machine has not, or nothing."""
    if file.endswith(".mjs"):
        if shutil.which("node") is None:
            return "needs Node.js"
        return "" if (INSTALLED / "node_modules" / package).exists() else "scripts/test-clients has not installed it"
    look = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    found = subprocess.run([PYTHON, "-c", look], env=environment_of(package), check=False, capture_output=True)
    return "" if found.returncode == 0 else f"{PYTHON} has no {package}"


def functions_of(file: str) -> list[str]:
    defined = re.findall(r"^(?:def|async function) (\w+)", (HERE / file).read_text(), re.M)
    return [name for name in defined if name in COLUMNS.values()]


def table() -> list[str]:
    """Return the table of the documentation: what the files here show."""
    rows = [f"| client | {' | '.join(COLUMNS)} |", f"|---|{'---|' * len(COLUMNS)}"]
    for client, (_, file) in CLIENTS.items():
        shown = functions_of(file)
        rows.append(f"| {client} | {' | '.join('yes' if name in shown else '' for name in COLUMNS.values())} |")
    return [re.sub(r" +", " ", row) for row in rows]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    from tests.contracts.scripted_chat import make_folder

    with RunningServer({"chat": make_folder(tmp_path_factory.mktemp("scripted"))}) as server:
        server.wait_ready()
        yield server.inference


@pytest.fixture(scope="module")
def shown(url: str) -> Callable[[str, str], dict[str, str]]:
    """Return what runs all functions of a client once, in one process: some take seconds to be imported."""

    @functools.cache
    def run(package: str, file: str) -> dict[str, str]:
        with (HERE / file).open() as source:
            done = subprocess.run(
                # A module that Node.js reads from its standard input finds the packages in its folder.
                ["node", "--input-type=module", "-", url, *functions_of(file)]
                if file.endswith(".mjs")
                else [PYTHON, str(HERE / file), url, *functions_of(file)],
                stdin=source,
                cwd=INSTALLED if file.endswith(".mjs") else None,
                env=environment_of(package),
                check=False,
                capture_output=True,
                text=True,
                timeout=DEADLINE,
            )
        assert done.returncode == 0, done.stdout + done.stderr
        found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
        return found

    return run


@pytest.mark.parametrize(
    ("package", "file", "function"),
    [(package, file, name) for package, file in CLIENTS.values() for name in functions_of(file)],
)
def test_a_client_gets_what_its_users_expect(
    shown: Callable[[str, str], dict[str, str]], package: str, file: str, function: str
) -> None:
    if missing(package, file):
        pytest.skip(missing(package, file))
    assert not shown(package, file)[function]


def test_the_documentation_has_the_table() -> None:
    assert "\n".join(table()) in DOCS.read_text()
