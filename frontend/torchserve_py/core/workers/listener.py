"""The sockets that worker processes connect to, and the tokens by which they identify themselves.

Workers of this machine use a Unix socket, workers on other machines TLS, with certificates of the server's own
`authority`.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import secrets
import shutil
import ssl
import sys
from pathlib import Path
from typing import Any, Protocol

from torchserve_py.core.workers.connection import WorkerConnection, token_of
from torchserve_py.net.acceptor import Acceptor, listening_sockets
from torchserve_py.net.admission import Admission, ConnectionBudget
from torchserve_py.net.running_time import Deadline
from ts.protocol.messages import HELLO, Hello

logger = logging.getLogger(__name__)

#: A connection that has not said hello by then is closed (seconds).
HELLO_LIMIT = 10.0
#: The longest path that a Unix socket address can hold on Linux, its final zero included.
_MAX_SOCKET_PATH = 108
#: How many connections may be open that have not said hello yet, and how many more may be in their TLS handshake. A
#: worker says hello at once, so that the one which has waited longest makes room for a further one.
_MAX_STRANGERS = 256
_BACKLOG = 128
#: A hello is small; nothing longer is read from a peer that is not known yet.
_MAX_HELLO = 4096


class Owner(Protocol):
    """What takes over the connections that show its token; it is `worker.Worker`."""

    def connected(self, connection: WorkerConnection, hello: Hello) -> None: ...


class WorkerListener:
    """Accepts the connections of worker processes on a socket in a private directory, of a group's processes, too."""

    def __init__(self, temp_dir: Path, group: int | None = None) -> None:
        self._temp_dir = temp_dir
        self._group = group
        self._directory: Path | None = None
        self._servers: list[asyncio.AbstractServer | Acceptor] = []
        self._expected: dict[str, Owner] = {}
        self._strangers: dict[WorkerConnection, Deadline] = {}

    @property
    def path(self) -> Path:
        """Where workers connect."""
        assert self._directory is not None, "the listener has not been started"
        return self._directory / "w"  # short, since the system limits the length of the path

    async def start(self) -> None:
        """Create the directory and listen. Raises OSError: the temporary directory cannot be used."""
        self._directory = self._temp_dir / "run"
        self._directory.mkdir(mode=0o700)
        if len(str(self.path)) >= _MAX_SOCKET_PATH:
            shutil.rmtree(self._directory)
            raise OSError(
                f"the path of the workers' socket, {self.path}, is longer than the {_MAX_SOCKET_PATH - 1} bytes that"
                " the system allows: choose a shorter temporary directory (environment variable TEMP)"
            )
        loop = asyncio.get_running_loop()
        self._servers.append(await loop.create_unix_server(self._accept, str(self.path)))
        if self._group is not None:
            for path, mode in ((self.path, 0o660), (self._directory, 0o710)):
                os.chown(path, -1, self._group)
                path.chmod(mode)

    async def listen(self, host: str, context: ssl.SSLContext) -> int:
        """Listen for workers on other machines, whose certificates name their tokens, too; return the port.

        Raises OSError: ``host`` is no address of this machine.
        """
        (listening, *others) = await listening_sockets(host, 0, _BACKLOG)
        for each in others:
            each.close()
        unlimited = Admission(ConnectionBudget(sys.maxsize), sys.maxsize)
        self._servers.append(
            Acceptor(
                listening, unlimited, lambda place: self._accept(), context=context, most_handshakes=_MAX_STRANGERS
            )
        )
        return int(listening.getsockname()[1])

    async def close(self) -> None:
        """Stop listening and remove the directory."""
        for connection in list(self._strangers):
            connection.close()
        for server in self._servers:
            server.close()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def expect(self, owner: Owner) -> str:
        """Return a fresh token; connections that show it are handed to ``owner`` until `forget`."""
        token = secrets.token_urlsafe(24)
        self._expected[token] = owner
        return token

    def forget(self, token: str) -> None:
        """Refuse ``token`` from now on."""
        self._expected.pop(token, None)

    def _accept(self) -> WorkerConnection:
        return WorkerConnection(self._hello, self._stranger_left, _MAX_HELLO, self._opened)

    def _opened(self, connection: WorkerConnection) -> None:
        if len(self._strangers) >= _MAX_STRANGERS:
            oldest = next(iter(self._strangers))
            self._stranger_left(oldest, f"made room: {_MAX_STRANGERS} had not identified themselves")
            oldest.close()
        limit = self._strangers[connection] = Deadline(asyncio.get_running_loop())
        limit.start(HELLO_LIMIT, connection.close)

    def _hello(self, connection: WorkerConnection, message: list[Any]) -> None:
        kind, said = message
        if kind != HELLO:
            raise ValueError(f"expected {HELLO!r} as the first message, got {kind!r}")
        token = str(said["token"]) if connection.tls is None else token_of(connection.tls)
        hello = Hello(token=token, channel=str(said["channel"]), rank=int(said["rank"]))
        # Compared in constant time against every expected token: a dictionary look-up would leak by timing.
        owner = None
        for expected, candidate in self._expected.items():
            if hmac.compare_digest(expected.encode(), token.encode()):
                owner = candidate
        if owner is None:
            raise ValueError("the token of its hello is not expected")
        self._strangers.pop(connection).close()
        owner.connected(connection, hello)

    def _stranger_left(self, connection: WorkerConnection, reason: str) -> None:
        limit = self._strangers.pop(connection, None)
        if limit is not None:
            limit.close()
            logger.warning("A connection to the workers' socket ended before it identified itself: it %s", reason)
