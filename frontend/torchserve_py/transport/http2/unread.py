"""Answers that clients have not fetched: how much of them one client, and all together, may leave with the server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

#: What a client may leave unread of more than one answer (bytes).
ROOM_OF_CLIENT: Final = 256 << 20
#: What all clients may leave unread (bytes).
ROOM_OF_ALL: Final = 1 << 30


class UnreadOfAll:
    """What all clients of a server have not fetched."""

    __slots__ = ("clients", "held", "room", "room_of_client")

    def __init__(self, room: int = ROOM_OF_ALL, room_of_client: int = ROOM_OF_CLIENT) -> None:
        self.held = 0
        self.room = room
        self.room_of_client = room_of_client
        self.clients: set[Unread] = set()

    def make_room(self) -> None:
        """Give up the clients that leave most unread; not a single one, which has one answer that is so large."""
        while self.held > self.room:
            most = max(self.clients, key=lambda each: each.held)
            if most.held == self.held:
                return
            most.give_up()


class Unread:
    """What one client has not fetched.

    Args:
        of_all: What it is a part of, until `leave`.
        give_up: Called to end the connection at once; what it held must be released when the call returns.
    """

    __slots__ = ("_of_all", "give_up", "held")

    def __init__(self, of_all: UnreadOfAll, give_up: Callable[[], None]) -> None:
        self.held = 0
        self.give_up = give_up
        self._of_all = of_all
        of_all.clients.add(self)

    def has_room(self, size: int) -> bool:
        """Whether the client may be left so many bytes more; the first answer always fits."""
        return not self.held or self.held + size <= self._of_all.room_of_client

    def take(self, size: int) -> None:
        """So many bytes more wait for the client; if that is too much for the server, it gives clients up."""
        self.held += size
        self._of_all.held += size
        if self._of_all.held > self._of_all.room:
            self._of_all.make_room()

    def release(self, size: int) -> None:
        """So many have left, or are not wanted any more."""
        self.held -= size
        self._of_all.held -= size

    def leave(self) -> None:
        """The connection is gone."""
        self._of_all.clients.discard(self)
