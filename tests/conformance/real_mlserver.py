"""The real MLServer, in an environment of its own: its pins contradict those of this project's environment."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.e2e.running_server import ROOT

ENVIRONMENT = ROOT / ".mlserver-venv"
PYTHON = ENVIRONMENT / "bin" / "python"
SCRIPTS = Path(__file__).parent / "mlserver_scripts"


def install() -> None:
    """Install it, with what a worker of this server needs there, unless it is.

    It was made when there was no pandas 3, whose columns of text it cannot encode.
    """
    if not (ENVIRONMENT / "bin" / "mlserver").exists():
        subprocess.run([str(ROOT / "scripts" / "install-mlserver")], check=True)
    check = "import msgpack, pandas, sys; sys.exit(int(pandas.__version__.partition('.')[0]) > 2)"
    if subprocess.run([str(PYTHON), "-c", check], stderr=subprocess.DEVNULL, check=False).returncode:
        subprocess.run([str(PYTHON), "-m", "pip", "install", "--quiet", "msgpack", "pandas<3"], check=True)


def run(script: str, *arguments: str, deadline: float = 100) -> str:
    """Run one of our scripts with it and return what it prints."""
    ended = subprocess.run(
        [str(PYTHON), str(SCRIPTS / script), *arguments],
        capture_output=True,
        text=True,
        timeout=deadline,
        env=_environment(),
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


class Comparison:
    """A process that has both MLServer's codecs and ours, and does with both what it is told; a context manager."""

    def __enter__(self) -> Comparison:
        command = [str(PYTHON), str(SCRIPTS / "compare_codecs.py")]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=_environment()
        )
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(20)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def __call__(self, kind: str, value: Any, **more: Any) -> tuple[Any, Any]:
        """Return what MLServer and what our own codec makes of a value."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"kind": kind, "value": value, **more}) + "\n")
        self._process.stdin.flush()
        real, ours = json.loads(self._process.stdout.readline())
        return real, ours


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "backend")}
