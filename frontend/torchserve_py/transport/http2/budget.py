"""Limits the size of a message, and the bytes of all requests that a server holds.

A limit per message is not enough: a connection may have a thousand calls, each with a message. So all bytes that calls
hold for their clients (heads, incomplete messages, messages that wait or are being served, decompressed messages) count
towards one budget of the server; messages beyond it are refused.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from grpc import StatusCode

#: What protobuf can hold in one message, and what all calls may hold together (bytes).
LARGEST: Final = 2**31 - 1
#: What a call takes besides the bytes of its client, about (bytes).
CALL_COST: Final = 8192


class BadMessage(Exception):
    """A message or a call that cannot be taken; the call ends with ``code``."""

    def __init__(self, code: StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class Budget:
    """The room that all calls of a server share.

    Args:
        room: How many bytes they may hold together.
    """

    __slots__ = ("held", "room")

    def __init__(self, room: int = LARGEST) -> None:
        self.held = 0
        self.room = room

    def check(self, size: int) -> None:
        """Look whether so many bytes more would fit at present.

        Raises:
            BadMessage: They would not.
        """
        if self.held + size > self.room:
            raise BadMessage(
                StatusCode.RESOURCE_EXHAUSTED,
                f"The server holds {self.held} bytes of requests, and takes {self.room} at a time; there is no room for"
                f" {size} more now. Try again later.",
            )

    def take(self, size: int) -> None:
        """Hold so many bytes more.

        Raises:
            BadMessage: They do not fit.
        """
        if self.held + size > self.room:
            self.check(size)
        self.held += size

    def release(self, size: int) -> None:
        """Hold them no more."""
        self.held -= size


class MessageLimit(NamedTuple):
    """How many bytes a message of a method may have, and what says so."""

    size: int
    origin: str

    def check(self, size: int) -> None:
        """Look at the size of a message.

        Raises:
            BadMessage: It is too large.
        """
        if size > self.size:
            message = f"Received message larger than max ({size} vs. {self.size}), which {self.origin}"
            raise BadMessage(StatusCode.RESOURCE_EXHAUSTED, message)
