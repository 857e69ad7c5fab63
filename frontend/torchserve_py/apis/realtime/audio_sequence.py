"""The audio of a session as steps of a model's sequence; after a loss another sequence begins."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from torchserve_py.apis.live.live_steps import SendPart, StepCall, StepTemplate
from torchserve_py.apis.live.message_forms import LiveStep
from torchserve_py.apis.realtime.session_config import AudioFormat
from torchserve_py.base.causes import Cause
from torchserve_py.core.jobs.parts import Part
from torchserve_py.endpoints.failures import EndpointError, Failure
from torchserve_py.net.running_time import running_time

APPEND: Final = "append"
COMMIT: Final = "commit"
CLEAR: Final = "clear"
#: After these the sequence is over; after those of the second set if its state is not stored.
_OVER: Final = (Cause.sequence_lost, Cause.sequence_expired)
_IF_NOT_STORED: Final = (Cause.worker_died, Cause.response_timeout)
#: Causes with which the state is gone, and the audio of the step may be sent to another sequence.
LOSSES: Final = (*_OVER, Cause.worker_died)
#: What the content type of every step is; its headers tell the encoding.
_AUDIO: Final = "audio/pcm"


class AudioSequence:
    """The steps that one model gets. Handlers read what a step is from its headers (``docs/speech.md``)."""

    def __init__(self, template: StepTemplate) -> None:
        self._template = template
        self._clock = running_time()
        self._running = 0
        self._begin()

    def _begin(self) -> None:
        self.id = f"realtime-{secrets.token_hex(16)}"
        #: The number of the last step.
        self.last = 0
        self._used_at = self._clock.now()

    def renew(self) -> None:
        """Begin another sequence if this one is about to expire; for moments in which no step needs its state."""
        if self.last and not self._running and self._clock.now() - self._used_at > self._template.max_idle / 2:
            self.leave()
            self._begin()

    def submit(
        self, kind: str, audio: bytes, audio_format: AudioFormat, hints: Mapping[str, Any], send: SendPart
    ) -> StepCall:
        """Submit a step; `relay` its answer, or call `answered` once it has one."""
        headers = (
            ("realtime_event", kind),
            ("realtime_encoding", audio_format.encoding),
            ("realtime_rate", str(audio_format.rate)),
            ("realtime_transcription", msgspec.json.encode(hints).decode()),
        )
        self.last += 1
        self._used_at = self._clock.now()
        step = self._template.submit(
            self.id,
            LiveStep(self.last, audio, _AUDIO),
            send,
            starts=self.last == 1,
            token=None,  # a handler may end its sequence at a commit, and the next utterance has arrived already
            headers=headers,
        )
        self._running += 1
        return step

    async def relay(self, step: StepCall) -> Failure | None:
        """Pass the answer to a step on, and note its end; return why there is none, if so."""
        failure: Failure | None = None
        try:
            await step.relay(await step.next_usable())
        except EndpointError as error:
            failure = error.failure
            step.cancel()  # the handler may have answered with an error status, and go on
        self.answered(step, failure)
        return failure

    def answered(self, step: StepCall, failure: Failure | None) -> None:
        """Note the end of a step, with which the sequence may be over.

        Steps behind an end by the handler begin the sequence anew under its id; those after them belong to that.
        """
        self._running -= 1
        is_over = step.ends and not self._running if failure is None else self._is_lost(failure)
        if is_over and step.sequence.id == self.id:
            self._begin()

    def _is_lost(self, failure: Failure) -> bool:
        return failure.cause in _OVER or (failure.cause in _IF_NOT_STORED and not self._template.model.is_durable)

    def leave(self) -> None:
        """Let the sequence end, because its session ends."""
        self._template.serving.release_sequence(self._template.model, self.id)


async def drop_answer(part: Part) -> None:
    """Take no notice of an answer: what a step without words passes it on to."""
