"""Whether a shadow's answer is the same as the one that the client got, and if not, why."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Final

from torchserve_py.core.jobs.call import Call
from torchserve_py.core.jobs.parts import JobFailed
from torchserve_py.core.serving.serving import ServedModel, Serving
from torchserve_py.versions.traffic.answer_comparison import Comparison
from torchserve_py.versions.traffic.answer_copy import AnswerCopy
from torchserve_py.versions.traffic.traffic_keys import TrafficKeys
from ts.protocol.messages import COMPARED_ANSWERS

#: Seconds that the model's own comparison may take.
_LONGEST: Final = 60.0
_MOST_SHOWN: Final = 500


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
