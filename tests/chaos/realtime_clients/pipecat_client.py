"""pipecat's realtime service, unmodified, asks a question again and again: URL SECONDS QUESTION.pcm.

Prints the same as `livekit_client`, with items that have no ids. pipecat does not connect again by itself: the
application resets the conversation, and the server's begins anew, while its own context goes on. Needs pipecat-ai, in
an environment of its own.
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from pipecat.frames.frames import (
    EndFrame,
    Frame,
    InputAudioRawFrame,
    LLMFullResponseEndFrame,
    LLMRunFrame,
    TranscriptionFrame,
    TTSAudioRawFrame,
    TTSTextFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.openai.realtime import events
from pipecat.services.openai.realtime.events import (
    AudioConfiguration,
    AudioInput,
    InputAudioNoiseReduction,
    InputAudioTranscription,
    SemanticTurnDetection,
    SessionProperties,
)
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService
from pipecat.workers.runner import WorkerRunner

RATE = 24_000
PIECE = RATE // 20


def tell(event: str, **about: Any) -> None:
    print(json.dumps({"event": event, **about}), flush=True)


class Ear(FrameProcessor):
    """Hears the answers, and what the user has said; ``answered`` is set once an answer is over."""

    def __init__(self) -> None:
        super().__init__()
        self.answered = asyncio.Event()
        self.heard = self._text = ""
        self._samples = 0

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, TTSTextFrame):
            self._text += frame.text
        elif isinstance(frame, TTSAudioRawFrame):
            self._samples += len(frame.audio) // 2
        elif isinstance(frame, LLMFullResponseEndFrame) and self._text:
            tell("answer", heard=self.heard, answer=self._text.strip(), seconds=self._samples / RATE)
            self._text, self._samples = "", 0
            self.answered.set()
        await self.push_frame(frame, direction)


class Before(FrameProcessor):
    """Hears the transcripts, which go upstream."""

    def __init__(self, ear: Ear) -> None:
        super().__init__()
        self._ear = ear

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, TranscriptionFrame):
            self._ear.heard = frame.text.strip()
        await self.push_frame(frame, direction)


def look_at_sessions() -> list[str]:
    """Return a list that gets the id of each conversation: pipecat's own events do not have it."""
    ids: list[str] = []
    parse = events.parse_server_event

    def look_and_parse(message: str) -> Any:
        event = json.loads(message)
        if event["type"] == "session.created":
            ids.append(event["session"]["conversation_id"])
        return parse(message)

    events.parse_server_event = look_and_parse
    return ids


def service_of(url: str) -> OpenAIRealtimeLLMService:
    """Return pipecat's service, as its own examples have it."""
    heard = AudioInput(
        transcription=InputAudioTranscription(),
        turn_detection=SemanticTurnDetection(),
        noise_reduction=InputAudioNoiseReduction(type="near_field"),
    )
    settings = OpenAIRealtimeLLMService.Settings(
        session_properties=SessionProperties(audio=AudioConfiguration(input=heard)),
        system_instruction="You are a parrot.",
    )
    address = f"{url.replace('http', 'ws', 1)}/v1/realtime"
    return OpenAIRealtimeLLMService(api_key="none", base_url=address, settings=settings)


class Talk:
    """A pipeline with the service, and the user who talks to it."""

    def __init__(self, service: OpenAIRealtimeLLMService) -> None:
        self._service = service
        self.context = LLMContext([{"role": "user", "content": "greetings"}])
        pair = LLMContextAggregatorPair(self.context)
        self._ear = Ear()
        self.worker = PipelineWorker(
            Pipeline([pair.user(), Before(self._ear), service, self._ear, pair.assistant()]),
            params=PipelineParams(audio_in_sample_rate=RATE, audio_out_sample_rate=RATE),
            cancel_on_idle_timeout=False,
            cancel_runner_on_idle_timeout=False,
            enable_rtvi=False,
        )
        self._failed = asyncio.Event()
        self._sound = bytearray()
        service.add_event_handler("on_error", self._on_error)

    async def _on_error(self, _: Any, frame: Any) -> None:
        if not self._failed.is_set():
            tell("told", what=str(frame.error))
        self._failed.set()

    async def _speak(self) -> None:
        while True:
            piece = bytes(self._sound[: 2 * PIECE]).ljust(2 * PIECE, b"\0")
            del self._sound[: 2 * PIECE]
            await self.worker.queue_frame(InputAudioRawFrame(piece, RATE, 1))
            await asyncio.sleep(PIECE / RATE)

    async def run(self, seconds: float, question: bytes) -> None:
        """Ask, to the end of the time."""
        await self.worker.queue_frame(LLMRunFrame())
        await asyncio.wait_for(self._ear.answered.wait(), 60)
        speaking = asyncio.ensure_future(self._speak())
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await self._ask(question)
            await asyncio.sleep(2)
        await asyncio.sleep(5)
        speaking.cancel()

    async def _ask(self, question: bytes) -> None:
        self._ear.answered.clear()
        self._sound.extend(question)
        waiting = [asyncio.ensure_future(each.wait()) for each in (self._ear.answered, self._failed)]
        await asyncio.wait(waiting, timeout=40, return_when=asyncio.FIRST_COMPLETED)
        for each in waiting:
            each.cancel()
        receiving = self._service._receive_task
        if self._failed.is_set() or receiving is None or receiving.done():
            self._sound.clear()
            await asyncio.sleep(1)
            self._failed.clear()
            await self._service.reset_conversation()
            tell("told", what="reset")
        elif not self._ear.answered.is_set():
            tell("silence")


async def main(url: str, seconds: float, question: bytes) -> None:
    conversations = look_at_sessions()
    talk = Talk(service_of(url))
    talking = asyncio.ensure_future(talk.run(seconds, question))
    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(talk.worker)
    await asyncio.wait([talking, asyncio.ensure_future(runner.run())], return_when=asyncio.FIRST_COMPLETED)
    await talking
    items = [["", each["role"], each["content"]] for each in talk.context.get_messages()]
    tell("items", conversation_id=conversations[-1], items=items)
    await talk.worker.queue_frame(EndFrame())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2]), Path(sys.argv[3]).read_bytes()))
