"""Limits the number of connections: one budget for the process counts each connection when it is accepted.

The scarce resource is file descriptors. All listeners share the budget; a part of it is reserved for the listeners that
operators need when the others are full (management, metrics). A listener that is full still lets a few connections ask
whether the server lives: otherwise a full server would be restarted, and lose the sequences that it serves.
"""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Callable
from ipaddress import IPv6Network
from typing import Any, Final, NamedTuple

from torchserve_py.net.refusal_counts import RefusalReason, Refusals

_SHARE_OF_DESCRIPTORS: Final = 0.75
_MOST: Final = 1 << 20
#: The part of the budget that only listeners for operators may use.
_RESERVE: Final = 16
#: How many connections above its limit a listener has for probes; a further one ends the oldest of them.
PROBES: Final = 16
#: How a socket for both writes an address of IPv4 (RFC 4291, 2.5.5.2).
_MAPPED: Final = "::ffff:"
_LENGTH_OF_IPV4: Final = 2


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


class ConnectionPlace:
    """The place of one connection; its holder calls `leave` once, when the connection has ended."""

    __slots__ = ("_admission", "_client", "give_up", "refused")

    def __init__(self, admission: Admission, client: str | None, refused: str = "") -> None:
        self._admission: Admission | None = admission
        self._client = client
        #: Why the connection may only ask for a probe; empty if it may ask for anything.
        self.refused = refused
        #: Ends a connection for probes, to make room for the next one.
        self.give_up: Callable[[], object] = _nothing

    def leave(self) -> None:
        """Give the place back: the connection has ended."""
        admission, self._admission = self._admission, None
        self.give_up = _nothing
        if admission is None:
            return
        if self.refused:
            admission.probe_left(self)
        else:
            admission.leave(self._client)


def _nothing() -> None:
    """There is no connection to end."""


class NoPlace(NamedTuple):
    """Why a connection has no place; the message is for its client."""

    reason: RefusalReason
    message: str


class Admission:
    """How many connections one listener may hold: in all, and from one address (for IPv6 one /64 network).

    ``is_reserved``: whether the listener may use the budget's reserve.
    """

    def __init__(
        self,
        budget: ConnectionBudget,
        total: int,
        per_client: int | None = None,
        *,
        is_reserved: bool = False,
        refusals: Refusals | None = None,
    ) -> None:
        self.refusals = refusals or Refusals()
        self._budget = budget
        self._most = budget.total if is_reserved else budget.shared
        self._total = total
        self._per_client = per_client
        #: How many connections the listener has, without those for probes.
        self.open = 0
        self._clients: Counter[str] = Counter()
        #: The connections for probes, oldest first.
        self._probes: dict[ConnectionPlace, None] = {}

    @property
    def limit(self) -> int:
        """The most connections that the listener may have."""
        return min(self._total, self._most)

    def enter(self, peer: object) -> ConnectionPlace | NoPlace:
        """Count a connection from ``peer``, as `socket.socket.getpeername` returns it, and return its place.

        A connection that exceeds a limit is not counted; return why.
        """
        client = client_of(peer)
        if self.open >= self._total:
            message = f"The server holds {self._total} connections, which is its limit."
            return NoPlace(RefusalReason.listener_full, message)
        if self._budget.taken >= self._most:
            message = f"The server holds {self._budget.taken} connections, as many as its file descriptors allow."
            return NoPlace(RefusalReason.descriptors_used, message)
        if client is not None and self._per_client is not None:
            if self._clients[client] >= self._per_client:
                message = f"Your address has {self._per_client} connections, which is the limit."
                return NoPlace(RefusalReason.address_full, message)
            self._clients[client] += 1
        self.open += 1
        self._budget.taken += 1
        return ConnectionPlace(self, client)

    def enter_for_probe(self, refused: NoPlace) -> ConnectionPlace:
        """Return a place for a connection that has none otherwise and may ask for a probe; end the oldest if needed."""
        place = ConnectionPlace(self, None, refused.message)
        if len(self._probes) >= PROBES:
            oldest = next(iter(self._probes))
            del self._probes[oldest]
            oldest.give_up()
        self._probes[place] = None
        return place

    def probe_left(self, place: ConnectionPlace) -> None:
        """Stop counting a connection for probes, which has ended."""
        self._probes.pop(place, None)

    def leave(self, client: str | None) -> None:
        """Stop counting a connection, which has ended."""
        self.open -= 1
        self._budget.taken -= 1
        if client is not None and client in self._clients:
            self._clients[client] -= 1
            if not self._clients[client]:
                del self._clients[client]


def peer_of(address: Any) -> Any:
    """Return the address of a transport's peer; an IPv4 one that a socket for both writes as IPv6 is as IPv4 has it."""
    if isinstance(address, tuple) and len(address) > _LENGTH_OF_IPV4 and address[0].startswith(_MAPPED):
        return address[0].removeprefix(_MAPPED), address[1]
    return address


def client_of(peer: object) -> str | None:
    """Return the name that all connections of one client share, see `client_at`; None for a client on a Unix socket."""
    return client_at(str(peer[0])) if isinstance(peer, tuple) else None


def client_at(host: str) -> str:
    """Return whom an address belongs to: itself, but for IPv6 its /64 network, which is the least that a site has."""
    if ":" not in host or host.startswith(_MAPPED):
        return host.removeprefix(_MAPPED)
    return str(IPv6Network((host.partition("%")[0], 64), strict=False))
