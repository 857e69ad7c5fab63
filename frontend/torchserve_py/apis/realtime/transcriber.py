"""Writes down what the user says: the utterances of a session are steps of the transcriber's sequence, one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from torchserve_py.apis.live.live_steps import StepCall, StepTemplate
from torchserve_py.apis.realtime.audio_sequence import APPEND, CLEAR, COMMIT, AudioSequence
from torchserve_py.apis.realtime.session_config import AudioFormat
from torchserve_py.apis.realtime.utterance import Utterance
from torchserve_py.core.jobs.parts import Part
from torchserve_py.endpoints.failures import EndpointError, Failure

#: Is told of words of an utterance, as they are recognised.
OnWords = Callable[[Utterance, str], Awaitable[None]]
#: Is told that the transcript of a committed utterance is complete, or has failed.
OnEnd = Callable[[Utterance], Awaitable[None]]
#: Is told of the first failure in an utterance.
OnFailure = Callable[[Utterance, Failure], Awaitable[None]]


class Transcriber:
    """Sends audio in the order in which it comes; a slow model slows the session down, as only some steps may run."""

    def __init__(self, template: StepTemplate, on_words: OnWords, on_end: OnEnd, on_failure: OnFailure) -> None:
        self._sequence = AudioSequence(template)
        self._on_words, self._on_end, self._on_failure = on_words, on_end, on_failure
        self._room = asyncio.Semaphore(template.window)
        self._steps = asyncio.Queue[tuple[str, StepCall, Utterance]]()
        self.format: AudioFormat | None = None
        self.hints: Mapping[str, Any] = {}

    async def append(self, utterance: Utterance, audio: bytes) -> None:
        """Add audio to an utterance."""
        if audio:
            if not utterance.seconds:
                self._sequence.renew()
            utterance.seconds += self._known_format.seconds(len(audio))
            await self._submit(APPEND, utterance, audio)

    async def commit(self, utterance: Utterance) -> None:
        """End an utterance; ``on_end`` is called for it."""
        await self._submit(COMMIT, utterance)

    async def clear(self, utterance: Utterance) -> None:
        """Drop an utterance."""
        await self._submit(CLEAR, utterance)

    @property
    def _known_format(self) -> AudioFormat:
        assert self.format is not None, "the session sets it"
        return self.format

    async def _submit(self, kind: str, utterance: Utterance, audio: bytes = b"") -> None:
        await self._room.acquire()
        send = _drop if kind == CLEAR else partial(self._hear, utterance)
        step = self._sequence.submit(kind, audio, self._known_format, self.hints, send)
        self._steps.put_nowait((kind, step, utterance))

    async def run(self) -> None:
        """Pass the answers on, to the end of the session."""
        while True:
            kind, step, utterance = await self._steps.get()
            failure = await self._answer(step)
            self._room.release()
            if failure is not None and kind != CLEAR and utterance.failure is None:
                utterance.failure = failure
                await self._on_failure(utterance, failure)
            if kind == COMMIT:
                await self._on_end(utterance)

    async def _answer(self, step: StepCall) -> Failure | None:
        failure: Failure | None = None
        try:
            await step.relay(await step.next_usable())
        except EndpointError as error:
            failure = error.failure
            step.cancel()  # the handler may have answered with an error status, and go on
        self._sequence.answered(step, failure)
        return failure

    async def _hear(self, utterance: Utterance, part: Part) -> None:
        if text := utterance.heard(part):
            await self._on_words(utterance, text)

    def leave(self) -> None:
        """End with the session."""
        while not self._steps.empty():
            self._steps.get_nowait()[1].cancel()
        self._sequence.leave()


async def _drop(part: Part) -> None:
    """Take no notice of an answer."""
