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


async def main(url: str, seconds: float, question: bytes) -> None:
    conversations = look_at_sessions()
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
    service = OpenAIRealtimeLLMService(api_key="none", base_url=address, settings=settings)
    context = LLMContext([{"role": "user", "content": "greetings"}])
    pair = LLMContextAggregatorPair(context)
    ear = Ear()
    worker = PipelineWorker(
        Pipeline([pair.user(), Before(ear), service, ear, pair.assistant()]),
        params=PipelineParams(audio_in_sample_rate=RATE, audio_out_sample_rate=RATE),
        cancel_on_idle_timeout=False,
        cancel_runner_on_idle_timeout=False,
        enable_rtvi=False,
    )
    failed = asyncio.Event()

    @service.event_handler("on_error")
    async def on_error(_: Any, frame: Any) -> None:
        if not failed.is_set():
            tell("told", what=str(frame.error))
        failed.set()

    sound = bytearray()

    async def microphone() -> None:
        while True:
            piece = bytes(sound[: 2 * PIECE]).ljust(2 * PIECE, b"\0")
            del sound[: 2 * PIECE]
            await worker.queue_frame(InputAudioRawFrame(piece, RATE, 1))
            await asyncio.sleep(PIECE / RATE)

    async def talk() -> None:
        await worker.queue_frame(LLMRunFrame())
        await asyncio.wait_for(ear.answered.wait(), 60)
        speaking = asyncio.ensure_future(microphone())
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            ear.answered.clear()
            sound.extend(question)
            waiting = [asyncio.ensure_future(each.wait()) for each in (ear.answered, failed)]
            await asyncio.wait(waiting, timeout=40, return_when=asyncio.FIRST_COMPLETED)
            for each in waiting:
                each.cancel()
            if failed.is_set() or service._receive_task is None or service._receive_task.done():
                sound.clear()
                await asyncio.sleep(1)
                failed.clear()
                await service.reset_conversation()
                tell("told", what="reset")
            elif not ear.answered.is_set():
                tell("silence")
            await asyncio.sleep(2)
        await asyncio.sleep(5)
        speaking.cancel()
        items = [["", each["role"], each["content"]] for each in context.get_messages()]
        tell("items", conversation_id=conversations[-1], items=items)
        await worker.queue_frame(EndFrame())

    talking = asyncio.ensure_future(talk())
    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    await asyncio.wait([talking, asyncio.ensure_future(runner.run())], return_when=asyncio.FIRST_COMPLETED)
    await talking


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2]), Path(sys.argv[3]).read_bytes()))
