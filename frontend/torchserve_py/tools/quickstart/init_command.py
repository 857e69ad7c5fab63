"""`torchserve-py init [DIR]`: writes the files of a first model, which serves as it is and whose test passes."""

import argparse
import shlex
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Final

from torchserve_py.base.terminal import tell

_STARTER: Final = "starter"


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="torchserve-py init",
        description="Write a model to begin with: a handler, its configuration, its test and a Dockerfile.",
    )
    parser.add_argument("folder", nargs="?", default=".", metavar="DIR", help="where to, made if missing; here if none")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    folder = Path(parser().parse_args(argv).folder)
    if folder.suffix == ".py":
        tell(f"{folder} is the name of a file; a folder is written: {folder.with_suffix('')}", to_stderr=True)
        return 1
    starter = sorted(
        (each for each in (files(__package__) / _STARTER).iterdir() if each.is_file()), key=lambda f: f.name
    )
    taken = [each.name for each in starter if (folder / each.name).exists()]
    if taken:
        tell(f"{folder} has {', '.join(taken)} already; nothing is written. Name another folder.", to_stderr=True)
        return 1
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for each in starter:
            (folder / each.name).write_bytes(each.read_bytes())
    except OSError as error:
        tell(f"{error.filename}: {error.strerror}", to_stderr=True)
        return 1
    tell(f"Written to {folder.absolute()}: {', '.join(each.name for each in starter)}")
    typed = shlex.quote(str(folder))
    tell(f"\n  torchserve-py serve {typed} --watch\n  python -m pytest {typed}")
    return 0
