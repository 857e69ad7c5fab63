"""Where the server listens: which settings share a listener, binding, and why an address cannot be used."""

import asyncio
import errno
import os
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from torchserve_py.base.settings.addresses import Address
from torchserve_py.base.settings.table import Settings
from torchserve_py.net.acceptor import listening_sockets

#: The settings that name addresses of HTTP listeners.
HTTP_ADDRESSES: Final = ("inference_address", "management_address", "metrics_address")
_BACKLOG: Final = 1024


class ListenError(OSError):
    """The server cannot listen at an address; the message names the address and its setting."""


def http_addresses(settings: Settings) -> list[tuple[list[str], Address]]:
    """Return the addresses of the HTTP listeners, each with the settings that name it."""
    merged: list[tuple[list[str], Address]] = []
    for name in HTTP_ADDRESSES:
        if name == "metrics_address" and not settings.enable_metrics_api:
            continue
        address: Address = getattr(settings, name)
        for names, other in merged:
            if address.shares_listener(other):
                names.append(name)
                break
        else:
            merged.append(([name], address))
    return merged


async def bind(names: Sequence[str], address: Address) -> tuple[Sequence[socket.socket], Address]:
    """Return sockets that listen at an address, and the address with the port that port 0 became.

    Raises ListenError: the address cannot be used.
    """
    try:
        if not address.is_unix:
            sockets = await listening_sockets(address.host, address.port, _BACKLOG)
            return sockets, replace(address, port=sockets[0].getsockname()[1])
        return [await _bind_path(Path(address.path))], address
    except OSError as error:
        raise ListenError(_why_not(names, address, error)) from error


async def check_free(names: Sequence[str], address: Address) -> Sequence[socket.socket]:
    """Return sockets that hold an address; a Unix socket is not made.

    Raises ListenError: the address cannot be used.
    """
    if not address.is_unix:
        return (await bind(names, address))[0]
    path = Path(address.path)
    try:
        if await _is_stale(path):
            return ()
        if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
            raise OSError(errno.EACCES, f"the folder {path.parent} cannot be written to")
        if path.exists():
            raise OSError(errno.EEXIST, "there is something else than a socket")
    except OSError as error:
        raise ListenError(_why_not(names, address, error)) from error
    return ()


async def _bind_path(path: Path) -> socket.socket:
    if await _is_stale(path):
        path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX)
    try:
        listening.bind(str(path))
        listening.listen(_BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening


async def _is_stale(path: Path) -> bool:
    """Return whether an earlier server has left its socket behind. Raises OSError: a server listens there."""
    if not path.is_socket():
        return False
    try:
        _, writer = await asyncio.open_unix_connection(path)
    except ConnectionRefusedError:
        return True
    writer.close()
    raise OSError(errno.EADDRINUSE, "the socket is in use")


def _why_not(names: Sequence[str], address: Address, error: OSError) -> str:
    where = f"{' and '.join(names)}: cannot listen at {address}"
    if error.errno == errno.EADDRINUSE:
        return (
            f"{where}: the address is in use; stop what uses it (another server?) or choose another address"
            " (torchserve-py serve: --port, where 0 is a free one)"
        )
    return f"{where}: {error.strerror or error}"
