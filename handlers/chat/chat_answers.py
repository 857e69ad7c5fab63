"""How answers are written: as text, as JSON, and as OpenAI's chat completions, each whole or as a stream."""

from __future__ import annotations

import json
import time
import uuid
from typing import Any, NamedTuple, Protocol


class Outcome(NamedTuple):
    """An answer that is complete.

    Attributes:
        text: All of it.
        reason: "stop" if the model or a stop string ended it, "length" if a limit did.
        prompt: The tokens before the answer, those of earlier turns included.
        cached: How many of these did not have to be read again.
        tokens: The tokens of the answer, with the one that ended it.
    """

    text: str
    reason: str
    prompt: int
    cached: int
    tokens: int

    @property
    def usage(self) -> dict[str, Any]:
        """The same as OpenAI counts it."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.tokens,
            "total_tokens": self.prompt + self.tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }


class Form(Protocol):
    """How one answer is written.

    Attributes:
        content_type: Of the whole answer, and of a stream.
    """

    content_type: str

    def part(self, text: str) -> str | None:
        """Return what a stream sends for further text; None if that is nothing."""
        ...

    def last(self, text: str, outcome: Outcome) -> str:
        """Return what a stream ends with; ``text`` is the rest of the text."""
        ...

    def whole(self, outcome: Outcome) -> Any:
        """Return the answer if it is not a stream."""
        ...


class TextForm:
    """The text and nothing else."""

    content_type = "text/plain; charset=utf-8"

    def part(self, text: str) -> str | None:
        return text or None

    def last(self, text: str, outcome: Outcome) -> str:
        return text

    def whole(self, outcome: Outcome) -> str:
        return outcome.text


class JsonForm:
    """An object with the text, why it ended, and what was used; a stream is the text."""

    def __init__(self, *, streams: bool) -> None:
        self.content_type = TextForm.content_type if streams else "application/json"

    def part(self, text: str) -> str | None:
        return text or None

    def last(self, text: str, outcome: Outcome) -> str:
        return text

    def whole(self, outcome: Outcome) -> dict[str, Any]:
        return {"text": outcome.text, "finish_reason": outcome.reason, "usage": outcome.usage}


class CompletionForm:
    """OpenAI's chat completion; a stream is server-sent events."""

    def __init__(self, model: str, *, streams: bool, counts_usage: bool) -> None:
        self.content_type = "text/event-stream" if streams else "application/json"
        self._counts_usage = counts_usage
        self._head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}
        self._has_begun = False

    def part(self, text: str) -> str | None:
        if not text and self._has_begun:
            return None
        role = {} if self._has_begun else {"role": "assistant"}
        self._has_begun = True
        return self._chunk([{"index": 0, "delta": role | {"content": text}, "finish_reason": None}])

    def last(self, text: str, outcome: Outcome) -> str:
        chunks = [self.part(text) or ""]
        chunks.append(self._chunk([{"index": 0, "delta": {}, "finish_reason": outcome.reason}]))
        if self._counts_usage:
            chunks.append(self._chunk([], usage=outcome.usage))
        return "".join([*chunks, "data: [DONE]\n\n"])

    def whole(self, outcome: Outcome) -> dict[str, Any]:
        message = {"role": "assistant", "content": outcome.text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": outcome.reason}
        return self._head | {"object": "chat.completion", "choices": [choice], "usage": outcome.usage}

    def _chunk(self, choices: list[dict[str, Any]], **further: Any) -> str:
        usage = {"usage": None} if self._counts_usage else {}
        chunk = self._head | {"object": "chat.completion.chunk", "choices": choices} | usage | further
        return f"data: {json.dumps(chunk)}\n\n"
