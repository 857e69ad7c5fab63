"""How large a message may be, and how much of large ones a server holds.

A limit for one message bounds little: a connection may have a thousand calls, each with a message. Messages up to a
size are small enough for that; those above it have a bound for all of them together, and what exceeds it is refused. So
a server may take messages of any size from those who need it without giving all of its memory to whoever wants it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from grpc import StatusCode

#: What protobuf can hold in one message, and what all large messages may have together (bytes).
LARGEST: Final = 2**31 - 1


class BadMessage(Exception):
    """A message that cannot be taken; the call ends with ``code``."""

    def __init__(self, code: StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class LargeMessages:
    """The room that all large messages of a server share.

    Args:
        above: Messages of more bytes than this are large.
        room: How many bytes they may have together.
    """

    def __init__(self, above: int, room: int = LARGEST) -> None:
        self.above = above
        self.held = 0
        self._room = room

    def check(self, size: int) -> None:
        """Look whether so many bytes more would fit at present.

        Raises:
            BadMessage: They would not.
        """
        if self.held + size > self._room:
            raise BadMessage(
                StatusCode.RESOURCE_EXHAUSTED,
                f"The server holds {self.held} bytes of messages larger than {self.above}, and takes {self._room} at a"
                f" time; there is no room for {size} more now. Try again later.",
            )

    def take(self, size: int) -> None:
        """Hold so many bytes more.

        Raises:
            BadMessage: They do not fit.
        """
        self.check(size)
        self.held += size

    def release(self, size: int) -> None:
        """Hold them no more."""
        self.held -= size


class MessageLimit(NamedTuple):
    """How many bytes a message may have, what says so, and where it is counted if it is large."""

    size: int
    origin: str
    large: LargeMessages

    def check(self, size: int) -> None:
        """Look at the size of a message.

        Raises:
            BadMessage: It is too large.
        """
        if size > self.size:
            message = f"Received message larger than max ({size} vs. {self.size}), which {self.origin}"
            raise BadMessage(StatusCode.RESOURCE_EXHAUSTED, message)
