"""Limits the number of connections: one budget for the process counts each connection when it is accepted.

The scarce resource is file descriptors. All listeners share the budget; a part of it is reserved for the listeners that
operators need when the others are full (management, metrics).
"""

from __future__ import annotations

import resource
from collections import Counter
from ipaddress import IPv6Network
from typing import Final

_SHARE_OF_DESCRIPTORS: Final = 0.75
_MOST: Final = 1 << 20
#: The part of the budget that only listeners for operators may use.
_RESERVE: Final = 16


class ConnectionBudget:
    """How many connections all listeners together may hold."""

    def __init__(self, total: int) -> None:
        self.total = total
        #: The most connections of the listeners without access to the reserve.
        self.shared = total - total // _RESERVE
        self.taken = 0

    @classmethod
    def of_process(cls) -> ConnectionBudget:
        """Return the budget for this process's limit of file descriptors; workers, files and logs need the rest."""
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return cls(_MOST if descriptors == resource.RLIM_INFINITY else int(descriptors * _SHARE_OF_DESCRIPTORS))


class Place:
    """The place of one connection; its holder calls `leave` once, when the connection has ended."""

    __slots__ = ("_admission", "_client")

    def __init__(self, admission: Admission, client: str | None) -> None:
        self._admission: Admission | None = admission
        self._client = client

    def leave(self) -> None:
        """Give the place back: the connection has ended."""
        admission, self._admission = self._admission, None
        if admission is not None:
            admission.leave(self._client)


class Admission:
    """How many connections one listener may hold: in all, and from one address (for IPv6 one /64 network).

    ``is_reserved``: whether the listener may use the budget's reserve.
    """

    def __init__(
        self, budget: ConnectionBudget, total: int, per_client: int | None = None, *, is_reserved: bool = False
    ) -> None:
        self._budget = budget
        self._most = budget.total if is_reserved else budget.shared
        self._total = total
        self._per_client = per_client
        self._open = 0
        self._clients: Counter[str] = Counter()

    def enter(self, peer: object) -> Place | str:
        """Count a connection from ``peer``, as `socket.socket.getpeername` returns it, and return its place.

        A connection that exceeds a limit is not counted; return the message for its client.
        """
        client = client_of(peer)
        if self._open >= self._total:
            return f"The server holds {self._total} connections, which is its limit."
        if self._budget.taken >= self._most:
            return f"The server holds {self._budget.taken} connections, as many as its file descriptors allow."
        if client is not None and self._per_client is not None:
            if self._clients[client] >= self._per_client:
                return f"Your address has {self._per_client} connections, which is the limit."
            self._clients[client] += 1
        self._open += 1
        self._budget.taken += 1
        return Place(self, client)

    def leave(self, client: str | None) -> None:
        """Stop counting a connection, which has ended."""
        self._open -= 1
        self._budget.taken -= 1
        if client is not None and client in self._clients:
            self._clients[client] -= 1
            if not self._clients[client]:
                del self._clients[client]


def client_of(peer: object) -> str | None:
    """Return the name that all connections of one client share, see `client_at`; None for a client on a Unix socket."""
    return client_at(str(peer[0])) if isinstance(peer, tuple) else None


def client_at(host: str) -> str:
    """Return whom an address belongs to: itself, but for IPv6 its /64 network, which is the least that a site has."""
    if ":" not in host or host.startswith("::ffff:"):
        return host
    return str(IPv6Network((host.partition("%")[0], 64), strict=False))
