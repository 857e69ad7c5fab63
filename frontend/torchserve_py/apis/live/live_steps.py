"""The steps of live sessions: what all steps of a session share, and a submitted step."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from torchserve_py.apis.live.message_forms import LiveStep
from torchserve_py.base.causes import Cause
from torchserve_py.base.settings.table import Settings
from torchserve_py.core.jobs.call import Call, SequenceRequest
from torchserve_py.core.jobs.parts import Part
from torchserve_py.core.serving.errors import ModelNotFound
from torchserve_py.core.serving.serving import ServedModel, Serving
from torchserve_py.endpoints.client_call import ClientCall, Dialect
from torchserve_py.endpoints.sequences import SequenceHeaders

#: The most steps of a session that may be without an answer; the model's `maxSequenceJobQueueSize` may allow fewer.
_MOST_STEPS: Final = 32
SendPart = Callable[["Part"], Awaitable[None]]


class StepTemplate(NamedTuple):
    """What all steps of a session share; ``call`` has their headers, content type and priority."""

    serving: Serving
    settings: Settings
    headers: SequenceHeaders
    model: ServedModel
    version: str | None
    call: Call

    @property
    def window(self) -> int:
        """How many steps may be without an answer."""
        return min(_MOST_STEPS, self.model.config.max_sequence_job_queue_size)

    @property
    def model_now(self) -> ServedModel:
        """The version that the next step is meant for: another one may be the default since the session began."""
        if self.version is None:
            with contextlib.suppress(ModelNotFound):  # then nothing of that name is served any more
                return self.serving.get(self.model.name)
        return self.model

    @property
    def max_message_size(self) -> int:
        """Bytes allowed in a message, and in all steps without an answer together if there are several."""
        return self.settings.max_request_size

    @property
    def max_idle(self) -> float:
        """Seconds without a step after which the sequence expires."""
        return self.model.config.sequence_max_idle_ms / 1000 or math.inf

    @property
    def drops_late_steps(self) -> bool:
        """Whether a step that cannot be in time is dropped: it is missing then without a gap."""
        return self.call.timing is not None and self.call.timing.drops

    def _keep_time(self, call: Call, step: LiveStep) -> None:
        """Give a step its own deadline, or that of the session, if there is one."""
        timing = self.call.timing
        within = step.deadline or (math.inf if timing is None else timing.within)
        if within == math.inf:
            return
        if timing is None:
            call.keep_time(within)
        else:
            call.timing = replace(timing, within=within)

    def submit(
        self,
        sequence_id: str,
        step: LiveStep,
        send: SendPart,
        *,
        starts: bool = False,
        token: str | None,
        ids: str = "",
        only_ask: bool = False,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> StepCall:
        """Submit a step; by its number a repetition of the step is recognized.

        ``send`` sends a part of the answer, and waits for a client that reads slowly. ``token`` names the sequence
        among all with its id: a step after its end is refused. Without a token the number, behind ``ids``, is only the
        request's id, and the sequence may be anybody's. With ``only_ask`` the step does not run, and has the answer
        that it had before; its empty body has no type, so no worker decodes it. The handler gets ``headers`` as well.
        """
        sequence = self.headers.of_step(sequence_id, starts, step.ends, step.number, token, ids)
        common, model = self.call, self.model_now
        call = StepCall(
            (*common.headers, *headers, *sequence.headers),
            step.body,
            None if only_ask else step.content_type or common.content_type,
            common.protocol,
            sequence=sequence,
            by_default=common.by_default,
            priority=common.priority,
            via=common.via,
            client=common.client,
            account=None if only_ask else common.account,
            only_ask=only_ask,
        )
        call.dialect, call.model, call.version = _DIALECT, model, self.version
        call.number, call.size, call.send = step.number, len(step.body), send
        call.ends, call.last_applied = sequence.ends, 0
        if not only_ask:
            self._keep_time(call, step)
        self.serving.submit(model, call)
        return call


_DIALECT: Final = Dialect()


class StepCall(ClientCall):
    """A submitted step; each part of its answer is sent as a message, with ``send``.

    Attributes:
        number: That of the step in its session.
        size: The bytes of its body.
        ends: Whether the sequence ends with this step, as the client or the handler says.
        last_applied: The number of the last step that was applied, if this one was applied before; else 0.
    """

    __slots__ = ("ends", "last_applied", "number", "send", "size")

    sequence: SequenceRequest
    number: int
    size: int
    send: SendPart
    ends: bool
    last_applied: int

    async def write(self, parts: Sequence[Part]) -> None:
        """Send parts; waits for a client that reads slowly."""
        for part in parts:
            self._note_end(part)
            await self.send(part)

    def usable(self, outcome: Part | Cause) -> Part:
        """Return the outcome as `ClientCall.usable` does; note whether the sequence ends with it.

        `write` notes this, too, but not every part is written: errors are not, and no answer that the client has.
        """
        if not isinstance(outcome, Cause):
            self._note_end(outcome)
        return super().usable(outcome)

    def _note_end(self, part: Part) -> None:
        if part.news is not None:
            if part.news.last:  # the step was applied before, perhaps without an end
                self.ends, self.last_applied = False, part.news.last
            self.ends |= self.sequence.id in part.news.ended
