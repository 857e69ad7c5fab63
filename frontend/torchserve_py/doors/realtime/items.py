"""An item of a realtime session: the audio from one commit to the next, and its transcript."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

from torchserve_py.doors.failures import DoorError, Failure, handler_failure

if TYPE_CHECKING:
    from torchserve_py.jobs.parts import Part

_BAD_REQUEST: Final = 400
#: The response header by which a handler says that its text is the whole transcript.
_WHOLE: Final = "realtime_whole_transcript"


class Item:
    """The audio from one commit to the next.

    Attributes:
        id: Its id.
        seconds: How long the audio is.
        failure: Why it has no transcript, if that is known.
    """

    __slots__ = ("_said", "failure", "id", "seconds")

    def __init__(self) -> None:
        self.id = f"item_{secrets.token_hex(12)}"
        self.seconds = 0.0
        self.failure: Failure | None = None
        self._said: list[str] = []

    def heard(self, part: Part) -> str:
        """Take a part of what the handler says; return what the client is told of it now.

        Raises DoorError: the handler has set an error status.
        """
        text = _text(part)
        if self.failure is not None:
            return ""
        if any(name.lower() == _WHOLE for name, _ in part.headers):
            self._said = [text]
            return ""
        self._said.append(text)
        return text

    @property
    def transcript(self) -> str:
        """All that the handler has said, or what it has said last if that replaces the rest."""
        return "".join(self._said)


def _text(part: Part) -> str:
    text = bytes(part.body).decode("utf-8", "replace")
    if part.status >= _BAD_REQUEST:
        raise DoorError(handler_failure(part.status, text))
    return text
