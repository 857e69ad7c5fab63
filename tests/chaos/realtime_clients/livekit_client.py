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


async def main(url: str, seconds: float, question: bytes) -> None:
    model = openai.realtime.RealtimeModel(
        base_url=f"{url}/v1",
        api_key="none",
        model="chat",
        voice="en-us",
        input_audio_transcription=AudioTranscription(model="whisper-1"),
        turn_detection=ServerVad(type="server_vad", create_response=True, interrupt_response=True),
        conn_options=APIConnectOptions(max_retry=100, retry_interval=0.5),
    )
    session = model.session()
    sound = bytearray()
    answered, heard, conversation = asyncio.Event(), [""], [""]
    tasks = set()

    def note(event: Any) -> None:
        if event.get("type") == "session.created":
            conversation[0] = event["session"]["conversation_id"]

    def transcribed(event: Any) -> None:
        if event.is_final:
            heard[0] = event.transcript

    def created(event: Any) -> None:
        task = asyncio.ensure_future(answer(event))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def answer(event: Any) -> None:
        async for message in event.message_stream:
            texts = asyncio.ensure_future(collected(message.text_stream))
            size = sum([frame.samples_per_channel async for frame in message.audio_stream])
            text = "".join(await texts).strip()
            tell("answer", heard=heard[0].strip(), answer=text, seconds=size / RATE)
            await asyncio.sleep(size / RATE)
        answered.set()

    async def collected(stream: Any) -> list[str]:
        return [str(each) async for each in stream]

    session.on("openai_server_event_received", note)
    session.on("input_audio_transcription_completed", transcribed)
    session.on("generation_created", created)
    session.on("error", lambda error: tell("told", what=str(error.error)))
    session.on("session_reconnected", lambda _: tell("told", what="reconnected"))

    async def microphone() -> None:
        while True:
            piece = bytes(sound[: 2 * PIECE]).ljust(2 * PIECE, b"\0")
            del sound[: 2 * PIECE]
            session.push_audio(rtc.AudioFrame(piece, RATE, 1, PIECE))
            await asyncio.sleep(PIECE / RATE)

    speaking = asyncio.ensure_future(microphone())
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        answered.clear()
        sound += question
        try:
            await asyncio.wait_for(answered.wait(), 40)
        except TimeoutError:
            tell("silence")
        await asyncio.sleep(1)
    await asyncio.sleep(5)
    speaking.cancel()
    items = [[each.id, each.role, each.text_content or ""] for each in session.chat_ctx.items if each.type == "message"]
    tell("items", conversation_id=conversation[0], items=items)
    await session.aclose()
    await model.aclose()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2]), Path(sys.argv[3]).read_bytes()))
