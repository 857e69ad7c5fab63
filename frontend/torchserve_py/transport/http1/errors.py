"""What can be wrong with the bytes of a client."""

from __future__ import annotations


class BadMessage(Exception):
    """The bytes are no HTTP request within the limits; the text says which rule they break, in a client's words."""


class BodyError(Exception):
    """The body of a request cannot be had."""


class BodyTooLarge(BodyError):
    """The body has, or announces, more bytes than allowed."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"The request body is larger than {limit} bytes.")
        self.limit = limit


class BodyTooSlow(BodyError):
    """The body arrives too slowly, or not at all; the text says how slowly."""


class BodyMalformed(BodyError):
    """The rest of the body is not framed as HTTP demands."""


class ReaderStalled(Exception):
    """The client does not read, or reads too slowly."""
