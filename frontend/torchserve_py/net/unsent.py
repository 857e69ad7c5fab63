"""How much of what was written to a client has not arrived there."""

import asyncio
import struct
import sys
from fcntl import ioctl
from termios import TIOCOUTQ
from typing import Final

_INT: Final = struct.Struct("i")


def unsent_size(transport: asyncio.Transport) -> int:
    """Return the bytes that wait in the transport and, on Linux, in the kernel.

    The kernel takes up to some megabytes and asks for more only when it has sent a third of them, so the transport
    alone does not show that a slow client reads.
    """
    size = transport.get_write_buffer_size()
    connection = transport.get_extra_info("socket")
    if sys.platform == "linux" and connection is not None and connection.fileno() >= 0:
        size += _INT.unpack(ioctl(connection.fileno(), TIOCOUTQ, _INT.pack(0)))[0]
    return size
