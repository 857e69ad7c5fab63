"""Clients of language models, as their users run them, against handlers/chat with a model that has a script.

They run in the interpreter that TS_CLIENTS_PYTHON names, in that of `scripts/test-clients`, or in this one, if they are
installed there. `CLIENTS` is the table of docs/llm.md.
"""

import functools
import json
import os
import re
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
_INSTALLED = Path(__file__).parents[2] / ".venv-clients" / "bin" / "python"
PYTHON = os.environ.get("TS_CLIENTS_PYTHON") or (str(_INSTALLED) if _INSTALLED.exists() else sys.executable)
#: The clients, each with its package, its file, and the columns of the table as names of functions.
CLIENTS = {
    "openai": ("openai", "openai_client"),
    "OpenAI Agents": ("agents", "openai_agents"),
    "litellm": ("litellm", "litellm_client"),
    "pydantic-ai": ("pydantic_ai", "pydantic_ai_client"),
    "instructor": ("instructor", "instructor_client"),
    "LangChain": ("langchain_openai", "langchain_client"),
}
COLUMNS = {
    "tools": "tools",
    "structured output": "structured",
    "streams": "stream",
    "streamed tools": "stream_tools",
    "handoffs": "handoff",
    "Responses": "responses",
}


@functools.cache
def is_installed(package: str) -> bool:
    look = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    return subprocess.run([PYTHON, "-c", look], check=False, capture_output=True).returncode == 0


def functions_of(file: str) -> list[str]:
    return [
        name for name in re.findall(r"^def (\w+)", (HERE / f"{file}.py").read_text(), re.M) if name in COLUMNS.values()
    ]


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
def shown(url: str) -> Callable[[str], dict[str, str]]:
    """Return what runs all functions of a client once, in one process: some take seconds to be imported."""

    @functools.cache
    def run(file: str) -> dict[str, str]:
        command = [PYTHON, str(HERE / f"{file}.py"), url, *functions_of(file)]
        # It was installed without being compiled: what a client imports is compiled once.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=DEADLINE)
        assert done.returncode == 0, done.stdout + done.stderr
        found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
        return found

    return run


@pytest.mark.parametrize(
    ("package", "file", "function"),
    [(package, file, name) for package, file in CLIENTS.values() for name in functions_of(file)],
)
def test_a_client_gets_what_its_users_expect(
    shown: Callable[[str], dict[str, str]], package: str, file: str, function: str
) -> None:
    if not is_installed(package):
        pytest.skip(f"{PYTHON} has no {package}")
    assert not shown(file)[function]


def test_the_documentation_has_the_table() -> None:
    assert "\n".join(table()) in DOCS.read_text()
