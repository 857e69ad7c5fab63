"""How a process becomes the server: its command line and environment."""

import os
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

#: An option without effect: those who look for TorchServe's server among processes look for this, SageMaker's toolkit
#: for one.
_MARK: Final = ("-X", "org.pytorch.serve.ModelServer")
#: The C library keeps freed buffers of up to 16 MiB, 32 MiB in all, instead of giving them back to the system: to get
#: new pages for every large body and tensor costs a worker as much again as all else that it does with them.
_ALLOCATOR: Final = {"MALLOC_MMAP_THRESHOLD_": str(16 << 20), "MALLOC_TRIM_THRESHOLD_": str(32 << 20)}


def command_of(module: str, argv: Sequence[str]) -> list[str]:
    """Return the command line of a module that is a server."""
    return [sys.executable, "-P", *_MARK, "-m", module, *argv]


def environment() -> dict[str, str]:
    """Return the environment of a server."""
    return _ALLOCATOR | os.environ


def become(module: str, argv: Sequence[str]) -> NoReturn:
    """Go on as a module that is a server, with this process's number."""
    sys.stdout.flush()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.execve(sys.executable, command_of(module, argv), environment())  # noqa: S606 - there is no shell to want
