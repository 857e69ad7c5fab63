"""How a process becomes the server: its command line, its environment, and the signals that end it.

The launcher blocks these signals. A blocked signal stays pending in the kernel, even across exec, until the server has
installed its handlers and unblocks the signals. Otherwise an early signal would kill a half-started server or, for
process 1 of a container, be lost.
"""

import os
import signal
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

#: The module that is the server.
SERVER: Final = "torchserve_py.server"
#: An option without effect: those who look for TorchServe's server among processes look for this, SageMaker's toolkit
#: for one.
_MARK: Final = ("-X", "org.pytorch.serve.ModelServer")
#: The C library keeps freed buffers of up to 16 MiB, 32 MiB in all, instead of giving them back to the system: to get
#: new pages for every large body and tensor costs a worker as much again as all else that it does with them.
_ALLOCATOR: Final = {"MALLOC_MMAP_THRESHOLD_": str(16 << 20), "MALLOC_TRIM_THRESHOLD_": str(32 << 20)}
#: The signals of a shell, of a service manager, and of a terminal that is closed; without a terminal the last one asks
#: the server to read its files again.
_END_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


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


def hold_end_signals() -> None:
    """Block the signals for this process, and for the program that it becomes."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _END_SIGNALS)


def release_end_signals() -> None:
    """Unblock the signals; pending ones are delivered first."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _END_SIGNALS)


def heeded_end_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that this process does not ignore; a parent may make it ignore some, as `nohup` does."""
    return tuple(number for number in _END_SIGNALS if signal.getsignal(number) != signal.SIG_IGN)


def has_terminal() -> bool:
    """Return whether a terminal controls this process; if it is closed, the process gets SIGHUP."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True
