"""The bytes that a server holds for its clients, over HTTP, WebSockets and gRPC together.

A limit per request is not enough: each of a thousand connections may have a request, or a thousand. So all bytes that
are held for clients count towards one budget: heads of gRPC calls; bodies and messages that are incomplete, that wait,
or that are being served; and what they are decompressed to. Requests beyond the budget are refused, and a WebSocket is
closed. Answers that clients leave unread have a budget of their own, see `unread`.
"""

from typing import Final

from torchserve_py.net.unread import UnreadOfAll

#: What all requests may hold together (bytes): as much as protobuf can hold in one message.
ROOM: Final = 2**31 - 1
#: The same for requests of management and metrics, which are small and have a budget of their own (bytes).
ROOM_OF_OPERATORS: Final = 1 << 28


class NoRoomError(Exception):
    """The server holds as many bytes of requests as it may; the text, written for the client, says how many."""


class RequestBudget:
    """The room that all requests of a server share (bytes), and what their clients leave unread of the answers."""

    __slots__ = ("held", "room", "unread")

    def __init__(self, room: int = ROOM) -> None:
        self.held = 0
        self.room = room
        self.unread = UnreadOfAll()

    def check(self, size: int) -> None:
        """Check that ``size`` more bytes would fit at present. Raises NoRoomError: they would not fit."""
        if self.held + size > self.room:
            raise NoRoomError(
                f"The server holds {self.held} bytes of requests, and takes {self.room} at a time; there is no room for"
                f" {size} more now. Try again later."
            )

    def take(self, size: int) -> None:
        """Hold ``size`` more bytes. Raises NoRoomError: they do not fit."""
        if self.held + size > self.room:
            self.check(size)
        self.held += size

    def release(self, size: int) -> None:
        """Give ``size`` bytes back."""
        self.held -= size
