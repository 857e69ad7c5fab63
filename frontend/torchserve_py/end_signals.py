"""The signals that end the server, and how none is lost between the launcher and the server that it becomes.

The launcher holds them back. What comes meanwhile waits in the kernel, also while one program replaces the other, until
the server has its handlers and releases them. Without that, one that comes too early would kill a half-started server,
or as process 1 of a container be lost.
"""

from __future__ import annotations

import signal
from typing import Final

#: What a shell, a service manager, and a terminal that goes away send.
END_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def hold() -> None:
    """Let none of the signals reach this process for now, nor the program that it becomes."""
    signal.pthread_sigmask(signal.SIG_BLOCK, END_SIGNALS)


def release() -> None:
    """Let them through, those first that have come meanwhile."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, END_SIGNALS)


def heeded() -> tuple[signal.Signals, ...]:
    """Return those that whoever started this process did not ask to ignore, as `nohup` does."""
    return tuple(number for number in END_SIGNALS if signal.getsignal(number) != signal.SIG_IGN)
