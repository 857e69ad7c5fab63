"""Documents whose examples can be run.

Of the fenced blocks of a document, in order and all in one directory,

* ``bash`` is run as a script: every command must succeed, and curl fails where HTTP does;
* ``console`` is a transcript: what stands behind ``$ `` is run, and must print the lines below it in that order, with
  others between them or not. ``...`` at the end of a line stands for the rest of it;
  A server that runs in the foreground (``torchserve-py serve``) goes on until the next one starts;
* a block whose first line is a comment with a path (``# folder/file``, ``# file.py``) becomes that file.

All others are for reading only.
"""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.running_server import DEADLINE, eventually
from tests.e2e.workplace import Workplace

_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# ([\w./-]+/[\w.-]+|[\w-]+\.py)\n")
_REST = "..."
#: Seconds that a command has to print what it should, counted from its end (a server goes on printing).
PATIENCE = 60.0
#: The tests run with what is to be tested, so nothing is installed.
_INSTALLATION = "pip install"
_FOREGROUND_COMMAND = re.compile(r"(env (\w+=\S+ )+)?torchserve-py serve ")
_START = " --start "


@dataclass(frozen=True)
class Block:
    """A fenced block; ``line`` is that of its fence."""

    language: str
    text: str
    line: int


@dataclass(frozen=True)
class Command:
    """A command of a transcript and what it prints."""

    text: str
    output: list[str]


def blocks(document: Path) -> list[Block]:
    """Return the fenced blocks of a document."""
    text = document.read_text()
    return [Block(found[1], found[2], text.count("\n", 0, found.start()) + 1) for found in _FENCE.finditer(text)]


def is_run(block: Block) -> bool:
    """Whether a block is more than something to read."""
    return block.language in ("bash", "console")


def commands(transcript: str) -> list[Command]:
    """Return the commands of a ``console`` block."""
    found: list[Command] = []
    continues = False
    for line in transcript.splitlines():
        if continues:
            found[-1] = Command(f"{found[-1].text}\n{line}", [])
        elif line.startswith("$ "):
            found.append(Command(line[2:], []))
        else:
            found[-1].output.append(line)
        continues = line.endswith("\\")
    return found


def run_all(document: Path, directory: Path) -> None:
    """Run the examples of a document in an empty directory. Raises AssertionError: one does something else."""
    with Workplace(directory) as workplace:
        if document.parent.parent.name != "handlers":  # pages start from an empty folder
            shutil.rmtree(directory / "handlers")
            (directory / "model_store").rmdir()
        for block in blocks(document):
            run(block, workplace)


def run(block: Block, workplace: Workplace) -> None:
    """Do what a block says.

    Raises:
        AssertionError: It does not do what the document says.
    """
    if file := _FILE.match(block.text):
        path = workplace.directory / file[1]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(workplace.localize(block.text))
    elif block.language == "bash":
        code, printed = workplace.run(f"set -e\n{block.text}", strict=True)
        assert code == 0, f"line {block.line}: exit code {code}\n{printed}"
    elif block.language == "console":
        for command in commands(block.text):
            if not command.text.startswith(_INSTALLATION):
                _run_command(command, block.line, workplace)


def _run_command(command: Command, line: int, workplace: Workplace) -> None:
    patience = PATIENCE
    if _FOREGROUND_COMMAND.match(command.text):
        workplace.begin(command.text)
        code, printed, patience = 0, "", DEADLINE
    else:
        if _START in command.text:
            workplace.end_foreground()
        code, printed = workplace.run(command.text)
    where = f"line {line}: {command.text}"
    assert code == 0, f"{where}\nexit code {code}\n{printed}"
    output = workplace.output  # to which a server goes on printing
    try:
        expected = [workplace.localize(each) for each in command.output]
        eventually(lambda: _contains(output.read_text(errors="replace"), expected), "the output", patience)
    except AssertionError:
        wanted = "\n".join(command.output)
        raise AssertionError(f"{where}\nprints\n{output.read_text()}\nand not\n{wanted}") from None


def _contains(printed: str, expected: list[str]) -> bool:
    """Whether the expected lines are among those printed, in that order."""
    lines = iter(printed.splitlines())
    return all(any(_matches(line.rstrip(), wanted) for line in lines) for wanted in expected)


def _matches(line: str, wanted: str) -> bool:
    return line.startswith(wanted.removesuffix(_REST)) if wanted.endswith(_REST) else line == wanted.rstrip()
