"""What a handler sends of a chat completion, as pieces: each has text of one kind, or of one call of a function."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from ts.jobs.errors import HandlerFailed, RowFailure

#: A part of the message of a chat completion: ``reasoning``, ``content`` (with ``logprobs``) or one of ``tool_calls``.
Piece: TypeAlias = dict[str, Any]

_DATA: Final = "data:"
_DONE: Final = "[DONE]"
#: What reading something else than a chat completion raises.
UNREADABLE: Final = (ValueError, TypeError, LookupError, AttributeError)
_DIFFERS: Final = "The model has generated something else than before it was interrupted."


class ChunkReader:
    """Reads a stream of chat completions.

    Attributes:
        reason: Why the answer has ended, once it has.
        usage: What it has used, once that is known.
        tokens: Those of its text so far, if the handler sends them (``token_ids`` of a choice, as vLLM does).
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self.usage: dict[str, Any] | None = None
        self.tokens: list[int] = []
        self._pending = ""

    def read(self, value: Any) -> list[Piece]:
        """Return the pieces in a part of the stream. Raises HandlerFailed: it is none."""
        try:
            return list(self._read(value if isinstance(value, str) else bytes(value).decode()))
        except UNREADABLE as error:
            raise HandlerFailed("The handler did not answer with a stream of chat completions.") from error

    def _read(self, text: str) -> Iterator[Piece]:
        *events, self._pending = (self._pending + text).split("\n\n")
        for event in events:
            data = event.strip().removeprefix(_DATA).strip()
            if not data or data == _DONE:
                continue
            chunk = json.loads(data)
            if "error" in chunk:
                raise RowFailure(500, str(chunk["error"].get("message", "The handler failed.")))
            self.usage = chunk.get("usage") or self.usage
            for choice in chunk.get("choices") or ():
                self.reason = choice.get("finish_reason") or self.reason
                self.tokens += choice.get("token_ids") or ()
                yield from pieces_of(choice.get("delta") or {}, choice.get("logprobs"))


def pieces_of(message: Mapping[str, Any], logprobs: Any = None) -> Iterator[Piece]:
    """Yield the pieces of a message, or of a part of it."""
    if thought := message.get("reasoning") or message.get("reasoning_content"):
        yield {"reasoning": thought}
    if text := message.get("content"):
        yield {"content": text, "logprobs": [*((logprobs or {}).get("content") or ())]}
    for place, call in enumerate(message.get("tool_calls") or ()):
        yield {"tool_calls": [{"index": place, **call, "function": dict(call.get("function") or {})}]}


def merged(pieces: Iterable[Piece]) -> list[Piece]:
    """Return the pieces with those that continue others joined to these."""
    joined: list[Piece] = []
    for piece in pieces:
        if joined and _kind(joined[-1]) == _kind(piece):
            before = joined[-1]
            joined[-1] = _with_text(before, _text(before) + _text(piece))
            if "content" in piece:
                joined[-1]["logprobs"] = before["logprobs"] + piece["logprobs"]
        else:
            joined.append(piece)
    return joined


class Replay:
    """Leaves out of a generation that is continued, or made again, what was made before it broke off.

    Args:
        made: The pieces of the first one.
    """

    def __init__(self, made: Iterable[Piece]) -> None:
        self._left = merged(made)

    def rest(self, piece: Piece) -> Piece | None:
        """Return what is new of a piece, None if nothing is. Raises RowFailure: it differs from the first one."""
        while self._left:
            first = self._left[0]
            text, again = _text(first), _text(piece)
            size = min(len(text), len(again))
            if _kind(first) != _kind(piece) or text[:size] != again[:size]:
                raise RowFailure(500, _DIFFERS)
            if size < len(text):
                self._left[0] = _with_text(first, text[size:])
                return None
            del self._left[0]
            if size == len(again):
                return None
            piece = _with_text(piece, again[size:])
        return piece

    def end(self) -> None:
        """Take note that the generation is over. Raises RowFailure: it is shorter than the first one."""
        if self._left:
            raise RowFailure(500, _DIFFERS)


def _kind(piece: Piece) -> tuple[str, int]:
    calls = piece.get("tool_calls")
    return ("call", calls[0]["index"]) if calls else ("reasoning" if "reasoning" in piece else "content", 0)


def _text(piece: Piece) -> str:
    if calls := piece.get("tool_calls"):
        return calls[0]["function"].get("arguments") or ""
    text: str = piece["reasoning"] if "reasoning" in piece else piece["content"]
    return text


def _with_text(piece: Piece, text: str) -> Piece:
    if calls := piece.get("tool_calls"):
        return {"tool_calls": [calls[0] | {"function": calls[0]["function"] | {"arguments": text}}]}
    return piece | ({"reasoning": text} if "reasoning" in piece else {"content": text})
