"""Accepts connections of one listening socket: counts each before anything else, and limits its TLS handshake."""

import asyncio
import errno
import logging
import socket
import ssl
from asyncio import BaseProtocol
from collections.abc import Callable
from functools import partial
from typing import Final

from torchserve_py.net.admission import Admission, ConnectionPlace, NoPlace
from torchserve_py.net.refusal_counts import RefusalReason

logger = logging.getLogger(__name__)

#: Makes the protocol of a connection; the protocol gives the place back when the connection has ended.
Factory = Callable[[ConnectionPlace], BaseProtocol]

_HANDSHAKE_SECONDS: Final = 30.0
#: The same for a connection above the limit, which may only ask for a probe.
_PROBE_HANDSHAKE_SECONDS: Final = 5.0
#: How long accepting pauses when the process has run out of file descriptors (seconds).
_REST_SECONDS: Final = 0.5
_ACCEPT_AT_ONCE: Final = 64
_NO_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_TLS_HANDSHAKE: Final = b"\x16"
_DEFER_SECONDS: Final = 5


class Acceptor:
    """Accepts connections until it is closed.

    ``make`` makes the protocol of a connection; with TLS, ``plain`` that of a connection without. ``probe`` makes that
    of a connection beyond the limit; without it such a connection is closed. A handshake beyond ``most_handshakes``
    ends the oldest.
    """

    def __init__(
        self,
        listening: socket.socket,
        admission: Admission,
        make: Factory,
        probe: Factory | None = None,
        context: ssl.SSLContext | None = None,
        plain: Factory | None = None,
        most_handshakes: int | None = None,
    ) -> None:
        self._listening = listening
        self._admission = admission
        self._make = make
        self._probe = probe
        self._context = context
        self._plain = plain
        self._most_handshakes = most_handshakes
        self._loop = asyncio.get_running_loop()
        #: Handshakes, oldest first.
        self._connecting: dict[asyncio.Task[None], None] = {}
        self._rest: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        if plain is not None and hasattr(socket, "TCP_DEFER_ACCEPT"):  # so that the first byte has arrived
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, _DEFER_SECONDS)
        self._loop.add_reader(listening, self._accept)

    def close(self) -> None:
        """Accept no more connections, and drop connections during their handshake."""
        if self._listening.fileno() < 0:
            return
        self._loop.remove_reader(self._listening)
        if self._rest is not None:
            self._rest.cancel()
        self._listening.close()
        for task in list(self._connecting):
            task.cancel()

    def _accept(self) -> None:
        for _ in range(_ACCEPT_AT_ONCE):
            try:
                connection, peer = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                self._admission.refusals.note(RefusalReason.accept_failed, None, error)
                self._loop.remove_reader(self._listening)
                self._rest = self._loop.call_later(_REST_SECONDS, self._resume)
                return
            connection.setblocking(False)
            if connection.family != socket.AF_UNIX:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # or dead clients would stay for ever
            place = self._admission.enter(peer)
            if isinstance(place, NoPlace):
                self._admission.refusals.note(place.reason, peer)
                if self._probe is None:
                    connection.close()
                    continue
                place = self._admission.enter_for_probe(place)
            if self._most_handshakes is not None and len(self._connecting) >= self._most_handshakes:
                oldest = next(iter(self._connecting))
                del self._connecting[oldest]
                oldest.cancel()
            task = self._loop.create_task(self._connect(connection, place))
            self._connecting[task] = None
            if place.refused:
                place.give_up = task.cancel
            task.add_done_callback(partial(self._connected, connection, place))

    def _connected(self, connection: socket.socket, place: ConnectionPlace, task: asyncio.Task[None]) -> None:
        self._connecting.pop(task, None)
        if task.cancelled():  # perhaps before it had begun, so that nothing in it has run
            connection.close()
            place.leave()

    def _resume(self) -> None:
        self._rest = None
        self._loop.add_reader(self._listening, self._accept)

    async def _connect(self, connection: socket.socket, place: ConnectionPlace) -> None:
        """Give a connection its protocol, after the handshake."""
        make, context = self._make, self._context
        if place.refused and self._probe is not None:
            make = self._probe
        if context is not None and self._plain is not None and not _may_speak_tls(connection):
            make, context = self._plain, None
            self._admission.refusals.note(RefusalReason.tls_missing, _peer_of(connection))
            if place.refused:
                connection.close()
                place.leave()
                return
        limit = None if context is None else _PROBE_HANDSHAKE_SECONDS if place.refused else _HANDSHAKE_SECONDS
        try:
            await self._loop.connect_accepted_socket(
                lambda: make(place), connection, ssl=context, ssl_handshake_timeout=limit
            )
        except BaseException as error:
            peer = _peer_of(connection)
            connection.close()
            place.leave()
            if not isinstance(error, OSError):  # these include time-outs and TLS errors of clients
                raise
            if context is not None:
                self._admission.refusals.note(RefusalReason.tls_failed, peer, error)
            logger.debug("A connection did not come about: %s", error)


async def listening_sockets(host: str, port: int, backlog: int) -> list[socket.socket]:
    """Listen at every address that a host name has; with port 0 at one free port.

    The socket of ``::``, every IPv6 address, takes IPv4 as well, unless the name also has an IPv4 address. Where the
    machine has no IPv6, ``::`` is every IPv4 address.

    Raises OSError: one of the addresses cannot be bound; then no socket stays open.
    """
    loop = asyncio.get_running_loop()
    if host == "::" and not socket.has_dualstack_ipv6():
        host = "0.0.0.0"  # noqa: S104 - every address is what is asked for
    infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    found = dict.fromkeys((family, address) for family, _, _, _, address in infos)
    takes_both = socket.has_dualstack_ipv6() and [address[0] for _, address in found] == ["::"]
    sockets: list[socket.socket] = []
    try:
        for family, address in found:
            listening = socket.socket(family, socket.SOCK_STREAM)
            sockets.append(listening)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not takes_both)
            listening.bind((address[0], port, *address[2:]))
            listening.listen(backlog)
            port = port or listening.getsockname()[1]
    except BaseException:
        for listening in sockets:
            listening.close()
        raise
    return sockets


def _peer_of(connection: socket.socket) -> object:
    try:
        return connection.getpeername()
    except OSError:  # the client has left
        return ("a client that has left",)


def _may_speak_tls(connection: socket.socket) -> bool:
    """Return whether the first byte begins a TLS handshake, or has not arrived; the byte stays unread."""
    try:
        return connection.recv(1, socket.MSG_PEEK) in (_TLS_HANDSHAKE, b"")
    except BlockingIOError:
        return True
