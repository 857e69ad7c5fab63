"""livekit-agents' realtime model, unmodified, asks a question again and again: URL SECONDS QUESTION.pcm.

Prints a JSON object for each answer, with what was heard, for what it was told of losses, and at the end the items that
it has, with the conversation's id. Needs livekit-agents and livekit-plugins-openai, in an environment of their own.
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from livekit import rtc
from livekit.agents import APIConnectOptions
from livekit.plugins import openai
from openai.types.realtime import AudioTranscription
from openai.types.realtime.realtime_audio_input_turn_detection import ServerVad

RATE = 24_000
PIECE = RATE // 20


def tell(event: str, **about: Any) -> None:
    print(json.dumps({"event": event, **about}), flush=True)


def model_of(url: str) -> Any:
    """Return livekit's model, as an agent has it."""
    return openai.realtime.RealtimeModel(
        base_url=f"{url}/v1",
        api_key="none",
        model="chat",
        voice="en-us",
        input_audio_transcription=AudioTranscription(model="whisper-1"),
        turn_detection=ServerVad(type="server_vad", create_response=True, interrupt_response=True),
        conn_options=APIConnectOptions(max_retry=100, retry_interval=0.5),
    )


class Talk:
    """A session, and what it tells."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.sound = bytearray()
        self.answered = asyncio.Event()
        self.conversation_id = self._heard = ""
        self._tasks = set[asyncio.Future[None]]()
        session.on("openai_server_event_received", self._note)
        session.on("input_audio_transcription_completed", self._transcribed)
        session.on("generation_created", self._created)
        session.on("error", lambda error: tell("told", what=str(error.error)))
        session.on("session_reconnected", lambda _: tell("told", what="reconnected"))

    def _note(self, event: Any) -> None:
        if event.get("type") == "session.created":
            self.conversation_id = event["session"]["conversation_id"]

    def _transcribed(self, event: Any) -> None:
        if event.is_final:
            self._heard = event.transcript

    def _created(self, event: Any) -> None:
        task = asyncio.ensure_future(self._listen(event))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _listen(self, event: Any) -> None:
        async for message in event.message_stream:
            texts = asyncio.ensure_future(collected(message.text_stream))
            size = sum([frame.samples_per_channel async for frame in message.audio_stream])
            tell("answer", heard=self._heard.strip(), answer="".join(await texts).strip(), seconds=size / RATE)
            await asyncio.sleep(size / RATE)
        self.answered.set()

    async def speak(self) -> None:
        """Send what is said, and silence in between."""
        while True:
            piece = bytes(self.sound[: 2 * PIECE]).ljust(2 * PIECE, b"\0")
            del self.sound[: 2 * PIECE]
            self.session.push_audio(rtc.AudioFrame(piece, RATE, 1, PIECE))
            await asyncio.sleep(PIECE / RATE)


async def collected(stream: Any) -> list[str]:
    return [str(each) async for each in stream]


async def main(url: str, seconds: float, question: bytes) -> None:
    model = model_of(url)
    talk = Talk(model.session())
    speaking = asyncio.ensure_future(talk.speak())
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        talk.answered.clear()
        talk.sound += question
        try:
            await asyncio.wait_for(talk.answered.wait(), 40)
        except TimeoutError:
            tell("silence")
        await asyncio.sleep(1)
    await asyncio.sleep(5)
    speaking.cancel()
    messages = [each for each in talk.session.chat_ctx.items if each.type == "message"]
    items = [[each.id, each.role, each.text_content or ""] for each in messages]
    tell("items", conversation_id=talk.conversation_id, items=items)
    await talk.session.aclose()
    await model.aclose()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2]), Path(sys.argv[3]).read_bytes()))
