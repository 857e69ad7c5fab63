"""An item of a realtime session: the audio from one commit to the next, and its transcript."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

from torchserve_py.doors.failures import DoorError, Failure, handler_failure

if TYPE_CHECKING:
    from torchserve_py.jobs.parts import Part

_BAD_REQUEST: Final = 400


class Item:
    """The audio from one commit to the next.

    Attributes:
        id: Its id.
        seconds: How long the audio is.
        failure: Why it has no transcript, if that is known.
    """

    __slots__ = ("_final", "_said", "failure", "id", "seconds")

    def __init__(self) -> None:
        self.id = f"item_{secrets.token_hex(12)}"
        self.seconds = 0.0
        self.failure: Failure | None = None
        self._said: list[str] = []
        self._final = ""

    def heard(self, part: Part) -> str:
        """Take a part of what the handler says, and return its text; empty if the item has failed.

        Raises:
            DoorError: The handler has set an error status.
        """
        text = _text(part)
        if self.failure is not None:
            return ""
        self._said.append(text)
        return text

    def concluded(self, part: Part) -> None:
        """Take the last part of the answer to the commit.

        Raises:
            DoorError: The handler has set an error status.
        """
        self._final = _text(part)

    @property
    def transcript(self) -> str:
        """The handler's last word; if that is empty, all that it has said."""
        return self._final or "".join(self._said)


def _text(part: Part) -> str:
    text = bytes(part.body).decode("utf-8", "replace")
    if part.status >= _BAD_REQUEST:
        raise DoorError(handler_failure(part.status, text))
    return text
