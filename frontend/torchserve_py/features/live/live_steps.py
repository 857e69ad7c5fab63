"""The steps of live sessions: what all steps of a session share, and a submitted step."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from torchserve_py.doors.exchange import Dialect, Exchange
from torchserve_py.doors.sequences import SequenceHeaders
from torchserve_py.features.live.message_forms import Step
from torchserve_py.jobs.inference_request import InferenceRequest, SequenceRequest
from torchserve_py.jobs.parts import Part
from torchserve_py.scheduling.effects import Cause
from torchserve_py.serving.errors import ModelNotFound
from torchserve_py.serving.serving import ServedModel, Serving
from torchserve_py.settings.table import Settings

#: The most steps of a session that may be without an answer; the model's `maxSequenceJobQueueSize` may allow fewer.
_MOST_STEPS: Final = 32
SendPart = Callable[["Part"], Awaitable[None]]


class StepTemplate(NamedTuple):
    """What all steps of a session share; ``request`` has their headers, content type and priority."""

    serving: Serving
    settings: Settings
    headers: SequenceHeaders
    model: ServedModel
    version: str | None
    request: InferenceRequest

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

    def submit(
        self,
        sequence_id: str,
        step: Step,
        send: SendPart,
        *,
        starts: bool = False,
        token: str | None,
        ids: str = "",
        only_ask: bool = False,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> StepExchange:
        """Submit a step; by its number a repetition of the step is recognized.

        ``send`` sends a part of the answer, and waits for a client that reads slowly. ``token`` names the sequence
        among all with its id: a step after its end is refused. Without a token the number, behind ``ids``, is only the
        request's id, and the sequence may be anybody's. With ``only_ask`` the step does not run, and has the answer
        that it had before. The handler gets ``headers`` as well.
        """
        sequence = self.headers.of_step(sequence_id, starts, step.ends, step.number, token, ids)
        inference = replace(
            self.request,
            headers=(*self.request.headers, *headers, *sequence.headers),
            body=step.body,
            content_type=step.content_type or self.request.content_type,
            sequence=sequence,
            only_ask=only_ask,
            account=None if only_ask else self.request.account,
        )
        model = self.model_now
        common = (_DIALECT, model, model.name, sequence, self.serving.submit(model, inference), self.version)
        return StepExchange(*common, step.number, len(step.body), send)


_DIALECT: Final = Dialect()


@dataclass(slots=True, eq=False)
class StepExchange(Exchange):
    """A submitted step; each part of its answer is sent as a message, with ``send``.

    ``number`` is that of the step in its sequence, ``size`` the bytes of its body.
    """

    sequence: SequenceRequest
    number: int
    size: int
    send: SendPart
    #: Whether the sequence ends with this step, as the client or the handler says.
    ends: bool = field(init=False)
    #: The number of the last step that was applied, if this one was applied before; else 0.
    last_applied: int = 0

    def __post_init__(self) -> None:
        self.ends = self.sequence.ends

    async def write(self, parts: Sequence[Part]) -> None:
        """Send parts; waits for a client that reads slowly."""
        for part in parts:
            self._note_end(part)
            await self.send(part)

    def usable(self, outcome: Part | Cause) -> Part:
        """Return the outcome as `Exchange.usable` does; note whether the sequence ends with it.

        `write` notes this, too, but not every part is written: errors are not, and no answer that the client has.
        """
        if not isinstance(outcome, Cause):
            self._note_end(outcome)
        return Exchange.usable(self, outcome)  # `super()` would mean the class before it had slots

    def _note_end(self, part: Part) -> None:
        if part.news is not None:
            if part.news.last:  # the step was applied before, perhaps without an end
                self.ends, self.last_applied = False, part.news.last
            self.ends |= self.sequence.id in part.news.ended
