"""The answer that a client got and that of the shadow: copies of both as they arrive, and what differs. Bounded."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Final

from torchserve_py.base.causes import Cause
from torchserve_py.core.jobs.call import Call
from torchserve_py.core.jobs.parts import JobFailed, Part
from torchserve_py.core.serving.serving import ServedModel, Serving
from torchserve_py.versions.traffic.answer_comparison import Comparison
from torchserve_py.versions.traffic.traffic_keys import TrafficKeys
from ts.protocol.messages import COMPARED_ANSWERS

#: Bytes of an answer that are kept; a longer one is not compared.
MOST_BYTES: Final = 1 << 20
#: Bytes or characters of an answer that are shown.
_MOST_BEGINS: Final = 200
#: Seconds that the model's own comparison may take.
_LONGEST: Final = 60.0
#: Characters of its reason that are shown.
_MOST_SHOWN: Final = 500


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
        text = (
            bytes(self.body[:_MOST_BEGINS]).decode(errors="replace") if self.text is None else self.text[:_MOST_BEGINS]
        )
        return {"status": self.status, "begins": text}


class NotCompared(Exception):
    """The model's own comparison gave no answer."""


async def differences(
    serving: Serving, shadow: ServedModel, live: AnswerCopy, ours: AnswerCopy, tolerance: float | None
) -> Sequence[str]:
    """Return what differs, empty if the answers are the same.

    A function of the shadow's model decides if it names one, in one of its workers; else numbers in JSON may differ by
    the ``tolerance``; without one, all bytes count. Raises NotCompared.
    """
    if (live.status, live.text, live.body) == (ours.status, ours.text, ours.body):
        return []
    if live.status != ours.status:
        return [f"the status {live.status} became {ours.status}"]
    if live.text != ours.text:
        return ["the messages of the errors differ"]
    if shadow.config.plugin_keys.of(TrafficKeys).compare_answers:
        return await _asked(serving, shadow, live, ours)
    return await asyncio.to_thread(_of_bodies, bytes(live.body), bytes(ours.body), tolerance)


def _of_bodies(live: bytes, ours: bytes, tolerance: float | None) -> Sequence[str]:
    found = Comparison(tolerance or 0.0).differences(live, ours)
    return found if found or tolerance is not None else ["only the layout of the JSON differs"]


async def _asked(serving: Serving, shadow: ServedModel, live: AnswerCopy, ours: AnswerCopy) -> Sequence[str]:
    body = [("live", None, bytes(live.body)), ("shadow", None, bytes(ours.body))]
    call = Call((), body, protocol=COMPARED_ANSWERS, unbatched=True, via="server")
    serving.submit(shadow, call)
    try:
        async with asyncio.timeout(_LONGEST):
            part = await call.next()
        why = json.loads(part.body)["why"] if part.error is None else part.error
    except (JobFailed, TimeoutError, ValueError, KeyError, TypeError) as error:
        raise NotCompared(str(error)) from error
    finally:
        call.cancel()
    return [str(why)[:_MOST_SHOWN]] if why else []
