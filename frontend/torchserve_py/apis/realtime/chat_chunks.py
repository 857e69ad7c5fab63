"""Reads the answer of a chat model: the stream of a chat completion, as server-sent events of OpenAI's form."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from torchserve_py.endpoints.failures import Failure, handler_failure

_DONE: Final = b"[DONE]"
#: Bytes that an event of the stream can have.
_MOST: Final = 16 << 20
#: How much of a refusal is shown.
_SHOWN: Final = 1000


class BadAnswer(Exception):
    """The model has answered with something else than such a stream."""


class CalledFunction(msgspec.Struct):
    """What a chunk has of a function's name and arguments."""

    name: str | None = None
    arguments: str | None = None


class CallPiece(msgspec.Struct):
    """A piece of the call of a function; pieces of one call have the same index."""

    index: int = 0
    id: str | None = None
    function: CalledFunction = msgspec.field(default_factory=CalledFunction)


class _Delta(msgspec.Struct):
    content: str | None = None
    tool_calls: list[CallPiece] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)
    finish_reason: str | None = None


class Usage(msgspec.Struct):
    """Tokens that an answer has used."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: dict[str, Any] | None = None


class Chunk(msgspec.Struct):
    """One event: a piece of the answer, or how it ends."""

    choices: list[_Choice] = []
    usage: Usage | None = None
    error: dict[str, Any] | None = None

    @property
    def text(self) -> str:
        """The next piece of the text."""
        return (self.choices[0].delta.content or "") if self.choices else ""

    @property
    def calls(self) -> list[CallPiece]:
        """The next pieces of calls."""
        return (self.choices[0].delta.tool_calls or []) if self.choices else []

    @property
    def finish_reason(self) -> str | None:
        """Why the answer ends, if it does."""
        return self.choices[0].finish_reason if self.choices else None


class _Error(msgspec.Struct):
    message: str
    code: str | int | None = None


class _Refusal(msgspec.Struct):
    error: _Error


def refusal_in(status: int, body: bytes | bytearray) -> Failure:
    """Return the failure in an answer with an error status: an error of OpenAI's form, or any text."""
    try:
        error = msgspec.json.decode(body, type=_Refusal).error
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return handler_failure(status, bytes(body[:_SHOWN]).decode("utf-8", "replace"))
    failure = handler_failure(status, error.message[:_SHOWN])
    return failure._replace(cause=error.code) if isinstance(error.code, str) else failure


class ChatChunks:
    """Puts the events of a stream together, wherever its parts are cut."""

    def __init__(self) -> None:
        self._rest = b""

    def read(self, part: bytes | bytearray) -> list[Chunk]:
        """Return the events that end in a part. Raises BadAnswer: they are none of a chat completion."""
        *lines, self._rest = (self._rest + part).replace(b"\r\n", b"\n").split(b"\n")
        if len(self._rest) > _MOST:
            raise BadAnswer(f"an event of its stream has more than {_MOST} bytes")
        chunks: list[Chunk] = []
        for line in lines:
            if line.startswith(b"data:"):
                data = line[5:].strip()
                if data != _DONE:
                    chunks.append(_chunk(data))
            elif line and not line.startswith((b":", b"event:", b"id:", b"retry:")):
                raise _no_stream(line)
        return chunks

    def finish(self) -> None:
        """Check that the stream has ended with an event. Raises BadAnswer: it has not."""
        if self._rest.strip():
            raise _no_stream(self._rest)


def _chunk(data: bytes) -> Chunk:
    try:
        chunk = msgspec.json.decode(data, type=Chunk)
    except msgspec.MsgspecError as error:
        raise BadAnswer(f"{data[:80]!a} is no chunk of a chat completion: {error}") from error
    if chunk.error is not None:
        raise BadAnswer(str(chunk.error.get("message", "it failed")))
    return chunk


def _no_stream(text: bytes) -> BadAnswer:
    return BadAnswer(f"it has not answered with the stream of a chat completion, but with {text[:80]!a}")
