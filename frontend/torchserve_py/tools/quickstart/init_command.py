"""`torchserve-py init [DIR]`: writes the files of a first model, which serves as it is and whose test passes."""

import argparse
import shlex
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Final

from torchserve_py.base.terminal import tell
from torchserve_py.tools.quickstart.image_package import NAME, ImagePackage, installed, named

_STARTER: Final = "starter"
_PACKAGE_LINE: Final = "ARG TORCHSERVE_PY="


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="torchserve-py init",
        description="Write a model to begin with: a handler, its configuration, its test and a Dockerfile.",
    )
    parser.add_argument("folder", nargs="?", default=".", metavar="DIR", help="where to, made if missing; here if none")
    parser.add_argument(
        "--package",
        metavar="PACKAGE",
        help="what the image installs: a wheel, which is copied, or an address or version for pip; "
        "if none, what this server was installed from",
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    arguments = parser().parse_args(argv)
    folder = Path(arguments.folder)
    if folder.suffix == ".py":
        tell(f"{folder} is the name of a file; a folder is written: {folder.with_suffix('')}", to_stderr=True)
        return 1
    try:
        package = installed() if arguments.package is None else named(arguments.package)
    except ValueError as error:
        tell(f"--package: {error}", to_stderr=True)
        return 2
    written = _files(package)
    try:
        taken = [name for name in written if (folder / name).exists()]
        if taken:
            tell(f"{folder} has {', '.join(taken)} already; nothing is written. Name another folder.", to_stderr=True)
            return 1
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in written.items():
            (folder / name).write_bytes(content)
    except OSError as error:
        tell(f"{error.filename}: {error.strerror}", to_stderr=True)
        return 1
    tell(f"Written to {folder.absolute()}: {', '.join(written)}")
    typed = shlex.quote(str(folder))
    tell(f"\n  torchserve-py serve {typed} --watch\n  python -m pytest {typed}")
    if missing := package.what_is_missing(folder):
        tell(f"\n{missing}")
    return 0


def _files(package: ImagePackage) -> dict[str, bytes]:
    """Return the files to write, by name: those of the package, and the wheel that the image installs."""
    starter = {each.name: each.read_bytes() for each in (files(__package__) / _STARTER).iterdir() if each.is_file()}
    if package.wheel is not None:
        starter[package.wheel.name] = package.wheel.read_bytes()
    starter["Dockerfile"] = starter["Dockerfile"].replace(
        f"{_PACKAGE_LINE}{NAME}".encode(), f"{_PACKAGE_LINE}{package.requirement}".encode()
    )
    return dict(sorted(starter.items()))
