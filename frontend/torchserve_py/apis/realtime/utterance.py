"""An utterance: the audio from one commit to the next, and its transcript, or why it has none."""

from __future__ import annotations

import secrets
from typing import Final

from torchserve_py.core.jobs.parts import Part
from torchserve_py.endpoints.failures import EndpointError, Failure, handler_failure

_BAD_REQUEST: Final = 400
#: The response header by which a handler says that its text is the whole transcript.
_WHOLE: Final = "realtime_whole_transcript"


class Utterance:
    """What a transcriber has heard of it so far; ``id`` is that of its item."""

    __slots__ = ("_said", "failure", "id", "seconds")

    def __init__(self) -> None:
        self.id = f"item_{secrets.token_hex(12)}"
        self.seconds = 0.0
        self.failure: Failure | None = None
        self._said: list[str] = []

    def heard(self, part: Part) -> str:
        """Take a part of what the handler sends; return what the client gets. Raises EndpointError: it is an error."""
        text = bytes(part.body).decode("utf-8", "replace")
        if part.status >= _BAD_REQUEST:
            raise EndpointError(handler_failure(part.status, text))
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
