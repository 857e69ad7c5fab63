"""Writes down what the user says: the utterances of a session are steps of the transcriber's sequence, one by one.

Audio that comes while a step runs waits, and becomes one step: a busy model gets fewer and larger pieces.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

from torchserve_py.apis.live.live_steps import StepCall, StepTemplate
from torchserve_py.apis.live.session_ends import check_server_stays
from torchserve_py.apis.realtime.audio_sequence import APPEND, CLEAR, COMMIT, AudioSequence, drop_answer
from torchserve_py.apis.realtime.session_config import AudioFormat
from torchserve_py.apis.realtime.utterance import Utterance
from torchserve_py.core.jobs.parts import Part

#: Is told of words of an utterance, as they are recognised.
OnWords = Callable[[Utterance, str], Awaitable[None]]
#: Is told that the transcript of a committed utterance is complete, or has failed.
OnEnd = Callable[[Utterance], Awaitable[None]]

#: Bytes of one step; bytes and steps that can wait, roughly: more makes the session wait.
_MOST_OF_A_STEP: Final = 240_000
_MOST_WAITING: Final = 1_000_000
_MOST_STEPS: Final = 64


class _Step:
    """A step that waits for its turn."""

    __slots__ = ("audio", "format", "kind", "utterance")

    def __init__(self, kind: str, utterance: Utterance, audio_format: AudioFormat) -> None:
        self.kind = kind
        self.utterance = utterance
        self.format = audio_format
        self.audio = bytearray()


class Transcriber:
    """Sends audio in the order in which it comes; ``hints`` are the client's settings of the transcription.

    A failure fails the rest of its utterance. It is told when that ends, and by no `error`, which ends some clients.
    """

    def __init__(self, template: StepTemplate, on_words: OnWords, on_end: OnEnd) -> None:
        self._sequence = AudioSequence(template)
        self._on_words, self._on_end = on_words, on_end
        self._waiting = deque[_Step]()
        self._size = 0
        #: Set when a step comes, and when one has been taken.
        self._came, self._taken = asyncio.Event(), asyncio.Event()
        self._running: StepCall | None = None
        self.hints: Mapping[str, Any] = {}

    async def append(self, utterance: Utterance, audio: bytes, audio_format: AudioFormat) -> None:
        """Add audio to an utterance; waits while the model is far behind."""
        if not audio:
            return
        while self._size > _MOST_WAITING or len(self._waiting) > _MOST_STEPS:
            self._taken.clear()
            await self._taken.wait()
        utterance.seconds += audio_format.seconds(len(audio))
        last = self._waiting[-1] if self._waiting else None
        is_full = last is None or len(last.audio) + len(audio) > _MOST_OF_A_STEP
        if last is None or is_full or last.kind != APPEND or last.utterance is not utterance:
            last = self._put(_Step(APPEND, utterance, audio_format))
        last.audio += audio
        self._size += len(audio)

    def commit(self, utterance: Utterance, audio_format: AudioFormat) -> None:
        """End an utterance; ``on_end`` is called for it."""
        self._put(_Step(COMMIT, utterance, audio_format))

    def clear(self, utterance: Utterance, audio_format: AudioFormat) -> None:
        """Drop an utterance."""
        self._put(_Step(CLEAR, utterance, audio_format))

    def _put(self, step: _Step) -> _Step:
        self._waiting.append(step)
        self._came.set()
        return step

    async def run(self) -> None:
        """Send the steps and pass their answers on, to the end of the session."""
        heard: Utterance | None = None
        while True:
            while not self._waiting:
                self._came.clear()
                await self._came.wait()
            step = self._waiting.popleft()
            self._size -= len(step.audio)
            self._taken.set()
            if step.utterance is not heard:
                self._sequence.renew()
                heard = step.utterance
            await self._run(step)

    async def _run(self, step: _Step) -> None:
        utterance, kind = step.utterance, step.kind
        send = drop_answer if kind == CLEAR else partial(self._hear, utterance)
        self._running = self._sequence.submit(kind, bytes(step.audio), step.format, self.hints, send)
        failure = await self._sequence.relay(self._running)
        self._running = None
        if failure is not None and kind != CLEAR:
            utterance.failure = utterance.failure or failure
            check_server_stays(failure)
        if kind == COMMIT:
            await self._on_end(utterance)

    async def _hear(self, utterance: Utterance, part: Part) -> None:
        if text := utterance.heard(part):
            await self._on_words(utterance, text)

    def leave(self) -> None:
        """End with the session."""
        if self._running is not None:
            self._running.cancel()
        self._sequence.leave()
