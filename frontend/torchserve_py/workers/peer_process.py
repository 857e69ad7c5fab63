"""The process at the other end of a Unix socket, as the kernel knows it."""

from __future__ import annotations

import socket
import struct
import sys
from typing import Final, Protocol

#: ``struct ucred`` of Linux: process, user and group.
_CREDENTIALS: Final = struct.Struct("3i")
#: macOS, <sys/un.h>: the level ``SOL_LOCAL`` and the option ``LOCAL_PEERPID``.
_SOL_LOCAL, _LOCAL_PEERPID = 0, 2
_INT: Final = struct.Struct("i")


class HasOptions(Protocol):
    """What is needed of a socket; event loops hand out sockets of their own classes."""

    def getsockopt(self, level: int, optname: int, buflen: int, /) -> bytes:
        """Return the value of an option."""


def peer_pid(connected: HasOptions) -> int | None:
    """Return the id of the process that connected, as this process's namespace has it.

    None where the system does not tell it, or the process is outside this namespace.
    """
    if sys.platform == "linux":
        pid, _, _ = _CREDENTIALS.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    elif sys.platform == "darwin":
        (pid,) = _INT.unpack(connected.getsockopt(_SOL_LOCAL, _LOCAL_PEERPID, _INT.size))
    else:
        return None
    return int(pid) if pid > 1 else None  # 0: outside; 1 never is a worker, and -1 would mean every process
