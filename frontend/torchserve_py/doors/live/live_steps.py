"""The steps of live sessions: what all steps of a session share, and a submitted step."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from torchserve_py.core.serving import ServedModel, Serving
from torchserve_py.doors.live.message_forms import Step
from torchserve_py.doors.pipeline import Dialect, Exchange
from torchserve_py.doors.sequences import SequenceHeaders
from torchserve_py.jobs.inference_request import InferenceRequest, SequenceRequest
from torchserve_py.jobs.parts import Part
from torchserve_py.scheduling.effects import Cause
from torchserve_py.settings.table import Settings
from ts.protocol.messages import ended_sequences

#: The most steps of a session that may be without an answer; the model's `maxSequenceJobQueueSize` may allow fewer.
_MOST_STEPS: Final = 32
SendPart = Callable[["Part"], Awaitable[None]]


class Terms(NamedTuple):
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
        only_ask: bool = False,
        once: bool = True,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> StepExchange:
        """Submit a step; by its number a repetition of the step is recognized.

        ``send`` sends a part of the answer, and waits for a client that reads slowly. With ``only_ask`` the step does
        not run, and has the answer that it had before. ``once``: the step is refused if the sequence has ended, instead
        of beginning it anew. The handler gets ``headers`` as well.
        """
        sequence = self.headers.of_step(sequence_id, starts, step.ends, step.number)._replace(once=once)
        inference = replace(
            self.request,
            headers=(*self.request.headers, *headers, *sequence.headers),
            body=step.body,
            content_type=step.content_type or self.request.content_type,
            sequence=sequence,
            only_ask=only_ask,
        )
        return StepExchange(self, inference, sequence, step.number, send)


_DIALECT: Final = Dialect()


class StepExchange(Exchange):
    """A submitted step; each part of its answer is sent as a message."""

    __slots__ = ("_end_header", "_send", "ends", "number", "sequence_id", "size")

    def __init__(
        self, terms: Terms, inference: InferenceRequest, sequence: SequenceRequest, number: int, send: SendPart
    ) -> None:
        parts = terms.serving.submit(terms.model, inference)
        super().__init__(_DIALECT, terms.model, terms.model.name, inference, parts, terms.version)
        self.number = number
        self.size = len(inference.body)
        #: Whether the sequence ends with this step, as the client or the handler says.
        self.ends = sequence.ends
        self.sequence_id = sequence.id
        self._end_header = terms.headers.end_name.lower()
        self._send = send

    async def write(self, parts: Sequence[Part]) -> None:
        """Send parts; waits for a client that reads slowly."""
        for part in parts:
            self._note_end(part)
            await self._send(part)

    def usable(self, outcome: Part | Cause) -> Part:
        """Return the outcome as `Exchange.usable` does; note whether the sequence ends with it.

        `write` notes this, too, but not every part is written: errors are not, and no answer that the client has.
        """
        if not isinstance(outcome, Cause):
            self._note_end(outcome)
        return super().usable(outcome)

    def _note_end(self, part: Part) -> None:
        if part.headers:
            self.ends |= self.sequence_id in ended_sequences(part.headers, self._end_header)
