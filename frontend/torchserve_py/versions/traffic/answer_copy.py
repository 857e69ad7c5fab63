"""A copy of a model's answer to one request, as it arrives. Bounded."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from torchserve_py.base.causes import Cause
from torchserve_py.core.jobs.parts import Part

#: Bytes of an answer that are kept; a longer one is not compared.
MOST_BYTES: Final = 1 << 20
#: Bytes of an answer that are shown.
_MOST_SHOWN: Final = 200


class AnswerCopy:
    """Collects the parts of an answer.

    Attributes:
        ended: Is done once nothing more comes.
        answered: Whether the model has answered, were it with an error.
        status: The status of the answer.
        text: The message of an error that the handler or the worker reported; else None.
        body: All parts of it.
        is_too_large: Whether ``body`` was given up.
        seconds: From the making of this object until the last part came.
    """

    def __init__(self) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.answered = False
        self.status = 0
        self.text: str | None = None
        self.body = bytearray()
        self.is_too_large = False
        self.seconds = 0.0
        self._began = time.monotonic()

    def take(self, part: Part | Cause | None) -> None:
        """Take the next part, the cause of a failure, or None if the reader of the answer has left."""
        if isinstance(part, Part):
            self.status, self.text = part.status, part.error
            if len(self.body) + len(part.body) > MOST_BYTES:
                self.is_too_large = True
                self.body.clear()
            if not self.is_too_large:
                self.body += part.body
            if part.more:
                return
            self.answered = True
        self.seconds = time.monotonic() - self._began
        if not self.ended.done():
            self.ended.set_result(None)

    @property
    def failed(self) -> bool:
        """Whether there is no answer, or one that says that the model has failed."""
        return not self.answered or self.status >= 500

    def shown(self) -> dict[str, object]:
        """Return what people are shown of the answer."""
        if not self.answered:
            return {"status": None}
        text = bytes(self.body[:_MOST_SHOWN]).decode(errors="replace") if self.text is None else self.text[:_MOST_SHOWN]
        return {"status": self.status, "begins": text}
