"""Shells complete the commands, as a user sees it who types and presses the tab key."""

import os
import pty
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.e2e.running_server import DEADLINE
from tests.e2e.workplace import Workplace
from tests.programs import need_program

#: How each shell is started without a user's own files, and how it takes the functions.
SHELLS = {
    "bash": (["bash", "--norc", "-i"], 'eval "$(torchserve-py completion bash)"'),
    "zsh": (["zsh", "-f", "-i"], 'autoload -U compinit; compinit -u; eval "$(torchserve-py completion zsh)"'),
}


class Terminal:
    """A shell at a terminal."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._descriptor, text.encode())

    def wait_for(self, text: str) -> None:
        """Wait until the shell has shown a text."""
        shown, end = "", time.monotonic() + DEADLINE
        while text not in shown:
            assert time.monotonic() < end, f"{text} is not shown:\n{shown}"
            if select.select([self._descriptor], [], [], 0.1)[0]:
                shown += os.read(self._descriptor, 65536).decode(errors="replace")


@contextmanager
def shell(command: list[str], workplace: Workplace) -> Iterator[Terminal]:
    """Run a shell while the context lasts."""
    mine, its = pty.openpty()
    process = subprocess.Popen(
        command,
        cwd=workplace.directory,
        env={**workplace.environment, "TERM": "dumb", "PS1": "> ", "HOME": str(workplace.directory)},
        stdin=its,
        stdout=its,
        stderr=its,
        start_new_session=True,
    )
    os.close(its)
    try:
        yield Terminal(mine)
    finally:
        process.kill()
        process.wait(DEADLINE)
        os.close(mine)


#: What is typed before the tab key, and what is added to it.
COMPLETED = {
    "torchserve-py comple": "tion",
    "torchserve-py serve --wat": "ch",
    "torchserve --model-st": "ore",
    "torch-model-archiver --serialized": "-file",
}


@pytest.mark.parametrize("name", SHELLS)
def test_a_shell_completes_what_is_typed(name: str, tmp_path: Path) -> None:
    need_program(name)
    command, load = SHELLS[name]
    with Workplace(tmp_path) as workplace, shell(command, workplace) as terminal:
        terminal.type(f"{load}; echo loa''ded\n")
        terminal.wait_for("loaded")
        for typed, added in COMPLETED.items():
            terminal.type(f"{typed}\t")
            terminal.wait_for(f"{typed}{added} ")
            terminal.type("\x15")  # begins the line anew


def test_fish_completes_what_is_typed(tmp_path: Path) -> None:
    need_program("fish")
    with Workplace(tmp_path) as workplace:
        asked = "; ".join(f"complete --do-complete '{typed}'" for typed in COMPLETED)
        code, printed = workplace.run(f'fish --no-config -c "torchserve-py completion fish | source; {asked}"')
        assert code == 0
        expected = [typed.split()[-1] + added for typed, added in COMPLETED.items()]
        assert [line.split("\t")[0].strip() for line in printed.splitlines()] == expected
