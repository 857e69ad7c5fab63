"""Limits the bytes of answers that clients leave unread: one client, and all clients together."""

from collections.abc import Callable
from typing import Final

#: What a client may leave unread of more than one answer (bytes).
ROOM_OF_CLIENT: Final = 256 << 20
#: What all clients may leave unread (bytes).
ROOM_OF_ALL: Final = 1 << 30


class UnreadOfAll:
    """The unread bytes of all clients of a server."""

    __slots__ = ("clients", "held", "room", "room_of_client")

    def __init__(self, room: int = ROOM_OF_ALL, room_of_client: int = ROOM_OF_CLIENT) -> None:
        self.held = 0
        self.room = room
        self.room_of_client = room_of_client
        self.clients: set[Unread] = set()

    def make_room(self) -> None:
        """Give up the clients that leave most unread, but not a single client: its one answer may be so large."""
        while self.held > self.room:
            most = max(self.clients, key=lambda each: each.held)
            if most.held == self.held:
                return
            most.give_up()


class Unread:
    """The unread bytes of one client; ``give_up`` ends its connection and releases its bytes before it returns."""

    __slots__ = ("_of_all", "give_up", "held")

    def __init__(self, of_all: UnreadOfAll, give_up: Callable[[], None]) -> None:
        self.held = 0
        self.give_up = give_up
        self._of_all = of_all
        of_all.clients.add(self)

    def has_room(self, size: int) -> bool:
        """Whether ``size`` more bytes may wait for the client; the first answer always fits."""
        return not self.held or self.held + size <= self._of_all.room_of_client

    def take(self, size: int) -> None:
        """Count ``size`` more unread bytes; give clients up if the total is too large."""
        self.held += size
        self._of_all.held += size
        if self._of_all.held > self._of_all.room:
            self._of_all.make_room()

    def set(self, size: int) -> None:
        """Count ``size`` unread bytes in all."""
        if size > self.held:
            self.take(size - self.held)
        else:
            self.release(self.held - size)

    def release(self, size: int) -> None:
        """Stop counting ``size`` bytes, which were sent or discarded."""
        self.held -= size
        self._of_all.held -= size

    def leave(self) -> None:
        """Forget the client: its connection is gone, or it has caught up."""
        self.release(self.held)
        self._of_all.clients.discard(self)
        self.give_up = _gone


def _gone() -> None:
    """There is no connection to end."""
