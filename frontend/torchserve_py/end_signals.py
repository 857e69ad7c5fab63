"""The signals that end the server, and how they are preserved while the launcher becomes the server.

The launcher blocks the signals. A blocked signal stays pending in the kernel, even across exec, until the server has
installed its handlers and unblocks the signals. Otherwise an early signal would kill a half-started server or, for
process 1 of a container, be lost.
"""

import signal
from typing import Final

#: The signals of a shell, of a service manager, and of a terminal that is closed.
END_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def hold() -> None:
    """Block the signals for this process, and for the program that it becomes."""
    signal.pthread_sigmask(signal.SIG_BLOCK, END_SIGNALS)


def release() -> None:
    """Unblock the signals; pending ones are delivered first."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, END_SIGNALS)


def heeded() -> tuple[signal.Signals, ...]:
    """Return the signals that this process does not ignore; a parent may make it ignore some, as `nohup` does."""
    return tuple(number for number in END_SIGNALS if signal.getsignal(number) != signal.SIG_IGN)
