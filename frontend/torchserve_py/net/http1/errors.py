"""Errors that clients cause by what they send, or do not read."""


class BadHttpMessage(Exception):
    """The bytes are not an HTTP request within the limits; the text, written for the client, names the broken rule."""


class BadQuery(ValueError):
    """The query of a request is no text; the message, written for the client, names what is not."""


class BodyError(Exception):
    """The body of a request cannot be read completely."""


class BodyTooLarge(BodyError):
    """The body is larger than allowed, or its Content-Length is."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"The request body is larger than {limit} bytes.")
        self.limit = limit


class BodyTooSlow(BodyError):
    """The body arrives too slowly, or not at all; the text says how slowly."""


class BodyMalformed(BodyError):
    """The rest of the body is not framed as HTTP requires."""


class ReaderStalled(Exception):
    """The client does not read, or reads too slowly."""


class BadResponse(ValueError):
    """HTTP does not allow a status, a reason phrase or a header; the text names it and says why."""
