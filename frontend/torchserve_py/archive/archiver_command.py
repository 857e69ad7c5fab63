"""The common part of the two archivers' commands: they report success or failure."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path

from torchserve_py.archive.errors import PackError


def run(pack: Callable[[], Path], what: str) -> int:
    """Pack an archive of ``what`` and print its path; return the exit status: 0, or 1 after printing the error."""
    logging.basicConfig(format="%(levelname)s - %(message)s")
    try:
        archive = pack()
    except (PackError, OSError, ValueError) as error:
        print(f"ERROR - {error}", file=sys.stderr)
        return 1
    print(f"Successfully exported {what} to file {archive}")
    return 0
