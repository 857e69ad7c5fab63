"""One response of a conversation: from the items so far to the events of its text, its audio and its function calls.

The chat model's text is cut into sentences, which are spoken while the model writes on. The response can be cancelled
whenever it waits for a model; it then ends with the events of a cancelled response, and with what the user has heard.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from itertools import islice
from typing import Any, Final, TypeVar

from torchserve_py.apis.realtime.chat_chunks import BadAnswer, CallPiece, ChatChunks, Chunk, Usage, refusal_in
from torchserve_py.apis.realtime.client_events import BadEvent
from torchserve_py.apis.realtime.conversation_config import ResponseRequest
from torchserve_py.apis.realtime.conversation_events import ConversationEvents
from torchserve_py.apis.realtime.conversation_items import (
    Conversation,
    Item,
    SpokenPiece,
    answer_item,
    as_messages,
    call_item,
    newest,
)
from torchserve_py.apis.realtime.pipeline_calls import PipelineCalls
from torchserve_py.apis.realtime.sentences import Sentences
from torchserve_py.apis.realtime.server_events import Event, error_of
from torchserve_py.apis.realtime.session_config import described_format
from torchserve_py.apis.realtime.spoken_sentence import SpokenSentence
from torchserve_py.endpoints.client_call import ClientCall
from torchserve_py.endpoints.failures import EndpointError, Failure
from torchserve_py.net.running_time import running_time

T = TypeVar("T")
Tell = Callable[..., Awaitable[None]]
#: Stores an item of the conversation as it is now.
Keep = Callable[[Item], Awaitable[None]]

TURN_DETECTED: Final = "turn_detected"
CLIENT_CANCELLED: Final = "client_cancelled"
#: How many sentences are spoken at a time; the chat model writes on while fewer wait.
_AHEAD: Final = 2
#: Seconds of audio in one event.
_DELTA: Final = 0.2
_BAD_REQUEST: Final = 400
#: Why an answer is incomplete, by the chat model's reason.
_INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}


class _Cancelled(Exception):
    """The response was cancelled."""


class ResponseRun:
    """A response, from its beginning to its end."""

    def __init__(
        self,
        request: ResponseRequest,
        context: Sequence[Item],
        conversation: Conversation,
        calls: PipelineCalls,
        events: ConversationEvents,
        tell: Tell,
        keep: Keep,
        retained: float | None,
    ) -> None:
        self.id = f"resp_{secrets.token_hex(12)}"
        self._request = request
        self._context = context
        self._conversation = conversation
        self._calls = calls
        self._events = events
        self._tell = tell
        self._keep = keep
        self._retained = retained
        self._clock = running_time()
        self._reason: str | None = None
        self._waiting: asyncio.Future[Any] | None = None
        self._output: list[Item] = []
        #: The message that is written, and the calls by the chat model's index; they are open until they are done.
        self._message: Item | None = None
        self._functions: dict[int, Item] = {}
        self._sentences = Sentences()
        self._speeches = deque[SpokenSentence]()
        self._finish: str | None = None
        self._is_written = False
        self._usage: Usage | None = None
        #: The message whose audio is played to the user, and when that began.
        self.played: Item | None = None
        self.is_over = False
        self._played_since = 0.0

    # What the session asks.

    def cancel(self, reason: str) -> None:
        """End the response early; the reason is one of OpenAI's."""
        self._reason = self._reason or reason
        if self._waiting is not None:
            self._waiting.cancel()

    @property
    def is_cancelled(self) -> bool:
        """Whether it ends, or has ended, early."""
        return self._reason is not None

    @property
    def heard_seconds(self) -> float:
        """How much of the message that is played the user can have heard: audio is played no faster than it sounds."""
        return self._clock.now() - self._played_since

    # The response.

    async def run(self) -> None:
        """Make the response; its failure is told in its last event."""
        await self._tell(self._events.response("created", self._shown("in_progress")))
        status = "completed"
        details: dict[str, Any] | None = None
        try:
            await self._answer()
            if (reason := _INCOMPLETE.get(self._finish or "")) is not None:
                status, details = "incomplete", {"type": "incomplete", "reason": reason}
        except _Cancelled:
            status, details = "cancelled", {"type": "cancelled", "reason": self._reason}
        except EndpointError as error:
            status, details = "failed", {"type": "failed", "error": error_of(error.failure)}
        except BadAnswer as error:
            failure = Failure(500, "", f"The chat model: {error}.", "chat_model_answer")
            status, details = "failed", {"type": "failed", "error": error_of(failure)}
        except BadEvent as error:
            about = {"type": "invalid_request_error", "code": error.code, "message": str(error)}
            status, details = "failed", {"type": "failed", "error": about}
        await self._close_all(status)
        self.is_over = True
        await self._tell(self._events.response("done", self._shown(status, details)))

    async def _answer(self) -> None:
        for item in self._context:
            if item.heard is not None:
                await self._wait(asyncio.shield(item.heard))
        chat, begun = await self._ask()
        reading: asyncio.Future[list[Chunk]] | None = None
        speaking: asyncio.Future[bytes | None] | None = None
        try:
            await self._write(begun, is_last=chat.is_over)
            while not chat.is_over or self._speeches:
                for speech in islice(self._speeches, _AHEAD):
                    speech.start()
                if reading is None and not chat.is_over and len(self._speeches) < _AHEAD:
                    reading = asyncio.ensure_future(chat.next())
                if speaking is None and self._speeches:
                    speaking = asyncio.ensure_future(self._speeches[0].next())
                awaited = [each for each in (reading, speaking) if each is not None]
                await self._wait(asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED))
                if reading is not None and reading.done():
                    done, reading = reading, None
                    await self._write(done.result(), is_last=chat.is_over)
                if speaking is not None and speaking.done():
                    said, speaking = speaking, None
                    await self._sound(said.result())
        finally:
            for each in (reading, speaking):
                if each is not None:
                    each.add_done_callback(_look_at)
                    each.cancel()
            chat.cancel()
            for speech in self._speeches:
                speech.cancel()

    async def _ask(self) -> tuple[_ChatStream, list[Chunk]]:
        """Return the answer of the chat model and what it begins with; drop old items while they are too many for it.

        Raises EndpointError: there is no answer; BadAnswer, _Cancelled.
        """
        while True:
            answer = self._request.answer
            messages = as_messages(answer.instructions, self._context)
            chat = _ChatStream(self._calls.complete({"messages": messages, **answer.options()}))
            try:
                return chat, await self._wait(chat.next())
            except EndpointError as error:
                if not _is_too_long(error.failure) or not self._shorten():
                    raise
            finally:
                if not chat.has_begun:
                    chat.cancel()

    def _shorten(self) -> bool:
        """Drop the oldest items that the chat model gets; return whether that is wanted, and possible."""
        if self._retained is None or len(self._context) < 2:
            return False
        before, self._context = self._context, newest(self._context, self._retained)
        if self._request.items is None:
            self._conversation.dropped.update(item.id for item in before[: -len(self._context)])
        return True

    async def _wait(self, awaitable: Awaitable[T] | Coroutine[Any, Any, T]) -> T:
        """Wait for something. Raises _Cancelled: the response is cancelled first."""
        self._waiting = waiting = asyncio.ensure_future(awaitable)
        if self._reason is not None:
            waiting.cancel()
        try:
            return await waiting
        except asyncio.CancelledError:
            if self._reason is None:
                raise
            raise _Cancelled from None
        finally:
            self._waiting = None

    async def _write(self, chunks: Sequence[Chunk], *, is_last: bool) -> None:
        """Take what the chat model has written."""
        for chunk in chunks:
            self._usage = chunk.usage or self._usage
            self._finish = chunk.finish_reason or self._finish
            if chunk.text:
                await self._write_text(chunk.text)
            for piece in chunk.calls:
                await self._write_call(piece)
        if is_last:
            self._is_written = True
            self._speak(self._sentences.finish())
            if not self._speeches and self._message is not None:
                await self._close_message("completed")

    async def _write_text(self, text: str) -> None:
        message = self._message or await self._open_message()
        part, speaks = message.members["content"][0], self._request.answer.speaks
        if speaks:
            part["transcript"] += text
            self._speak(self._sentences.write(text))
        else:
            part["text"] += text
        kind = "output_audio_transcript" if speaks else "output_text"
        await self._tell(self._of_item(f"{kind}.delta", message, content_index=0, delta=text))

    def _speak(self, sentences: Sequence[str]) -> None:
        answer = self._request.answer
        for text in sentences:
            self._speeches.append(SpokenSentence(text, answer.voice, answer.format, self._calls))
            assert self._message is not None, "its text"
            self._message.spoken.append(SpokenPiece(text, 0.0))

    async def _sound(self, audio: bytes | None) -> None:
        """Pass audio of the first sentence on; None: it is over."""
        message = self._message
        assert message is not None, "it is spoken"
        if audio is None:
            self._speeches.popleft()
            if not self._speeches and self._is_written:
                await self._close_message("completed")
            return
        answer = self._request.answer
        piece = message.spoken[-len(self._speeches)]
        size = int(_DELTA * answer.format.rate) * answer.format.sample_size
        for begin in range(0, len(audio), size):
            delta = audio[begin : begin + size]
            if self.played is not message:
                self.played, self._played_since = message, self._clock.now()
            piece.seconds += answer.format.seconds(len(delta))
            message.made += answer.format.seconds(len(delta))
            encoded = base64.b64encode(delta).decode()
            await self._tell(self._of_item("output_audio.delta", message, content_index=0, delta=encoded))
            if self._reason is not None:
                raise _Cancelled

    async def _write_call(self, piece: CallPiece) -> None:
        item = self._functions.get(piece.index)
        if item is None:
            item = call_item(piece.function.name or "", piece.id or f"call_{secrets.token_hex(8)}")
            self._functions[piece.index] = item
            await self._open(item)
        if piece.function.arguments:
            item.members["arguments"] += piece.function.arguments
            about = {"call_id": item.members["call_id"], "delta": piece.function.arguments}
            await self._tell(self._of_item("function_call_arguments.delta", item, **about))

    # Items.

    async def _open_message(self) -> Item:
        self._message = message = answer_item(is_audio=self._request.answer.speaks)
        self._sentences = Sentences()
        await self._open(message)
        await self._tell(self._of_item("content_part.added", message, content_index=0, part=_part_of(message)))
        return message

    async def _open(self, item: Item) -> None:
        self._output.append(item)
        index = len(self._output) - 1
        previous = None
        if self._request.joins:
            self._conversation.add(item)
            previous = self._conversation.before(item)
        await self._tell(self._events.output_item("added", self.id, index, item))
        if self._request.joins:
            await self._tell(self._events.item("added", item, previous))

    async def _close_all(self, status: str) -> None:
        item_status = "completed" if status == "completed" else "incomplete"
        self._speeches.clear()
        if self._message is not None:
            await self._close_message(item_status)
        for item in self._functions.values():
            about = {name: item.members[name] for name in ("call_id", "name", "arguments")}
            await self._tell(self._of_item("function_call_arguments.done", item, **about))
            await self._close(item, item_status)
        self._functions.clear()

    async def _close_message(self, status: str) -> None:
        message, self._message = self._message, None
        assert message is not None, "it is open"
        if self._request.answer.speaks:
            await self._close_spoken(message, status)
        else:
            text = message.members["content"][0]["text"]
            await self._tell(self._of_item("output_text.done", message, content_index=0, text=text))
        await self._tell(self._of_item("content_part.done", message, content_index=0, part=_part_of(message)))
        await self._close(message, status)

    async def _close_spoken(self, message: Item, status: str) -> None:
        is_cut = status != "completed"
        if is_cut:
            heard = self.heard_seconds if self._reason == TURN_DETECTED and self.played is message else message.made
            message.truncate(min(heard, message.made))
        transcript = message.members["content"][0]["transcript"]
        await self._tell(
            self._of_item("output_audio.done", message, content_index=0),
            self._of_item("output_audio_transcript.done", message, content_index=0, transcript=transcript),
        )
        if is_cut and self._reason == TURN_DETECTED and self._request.joins:
            await self._tell(self._events.truncated(message.id, message.seconds))

    async def _close(self, item: Item, status: str) -> None:
        item.status = status
        if self._request.joins and self._conversation.has(item):
            await self._keep(item)
        if self._request.joins and self._conversation.has(item):
            await self._tell(self._events.item("done", item, self._conversation.before(item)))
        await self._tell(self._events.output_item("done", self.id, self._output.index(item), item))

    def _of_item(self, kind: str, item: Item, **more: Any) -> Event:
        return self._events.of_item(kind, self.id, self._output.index(item), item, **more)

    def _shown(self, status: str, details: dict[str, Any] | None = None) -> dict[str, Any]:
        answer = self._request.answer
        return {
            "object": "realtime.response",
            "id": self.id,
            "status": status,
            "status_details": details,
            "output": [item.shown() for item in self._output],
            "conversation_id": self._events.conversation_id if self._request.joins else None,
            "output_modalities": answer.modalities,
            "audio": {"output": {"format": described_format(answer.format), "voice": answer.voice}},
            "max_output_tokens": answer.most_tokens or "inf",
            "usage": None if self._usage is None else _usage(self._usage),
            "metadata": None if self._request.metadata is None else dict(self._request.metadata),
        }


class _ChatStream:
    """The answer of the chat model."""

    def __init__(self, call: ClientCall) -> None:
        self._call = call
        self._chunks = ChatChunks()
        self.has_begun = self.is_over = False

    async def next(self) -> list[Chunk]:
        """Return what comes next. Raises EndpointError: the call has failed; BadAnswer: it is no chat completion."""
        part = await self._call.next_usable()
        if part.status >= _BAD_REQUEST:
            raise EndpointError(refusal_in(part.status, part.body))
        chunks = self._chunks.read(part.body)
        self.has_begun = True
        self.is_over = not part.more
        if self.is_over:
            self._chunks.finish()
        return chunks

    def cancel(self) -> None:
        """Give up; does nothing once the answer has ended."""
        self._call.cancel()


def _is_too_long(failure: Failure) -> bool:
    """Return whether a chat model has refused a conversation because of its length, as vLLM's and our own word it."""
    return failure.cause == "context_length_exceeded" or "maximum context length" in failure.message


def _look_at(done: asyncio.Future[Any]) -> None:
    """Take notice of a failure that nobody waits for any more."""
    if not done.cancelled():
        done.exception()


def _part_of(message: Item) -> dict[str, Any]:
    """Return the content of a message as the events of its part have it."""
    content = message.members["content"][0]
    if "text" in content:
        return {"type": "text", "text": content["text"]}
    return {"type": "audio", "transcript": content["transcript"]}


def _usage(usage: Usage) -> dict[str, Any]:
    cached = (usage.prompt_tokens_details or {}).get("cached_tokens") or 0
    return {
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.completion_tokens,
        "input_token_details": {"text_tokens": usage.prompt_tokens, "audio_tokens": 0, "cached_tokens": cached},
        "output_token_details": {"text_tokens": usage.completion_tokens, "audio_tokens": 0},
    }
