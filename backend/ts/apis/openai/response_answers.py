"""A response of OpenAI's, made of the chat completion with which a handler answers: whole, or as events."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any, Final

from ts.apis.openai.conversation_state import new_id
from ts.apis.openai.response_requests import ResponseRequest, text_part
from ts.jobs.errors import HandlerFailed, RowFailure
from ts.jobs.json_values import json_text

_DATA: Final = "data:"
_DONE: Final = "[DONE]"


class ResponseAnswer:
    """One response while it is made.

    Args:
        response_id: Its id.
        request: What was asked.
        previous: The response that it continues.
        conversation: The conversation that it belongs to.
        stores: Whether it is kept.
    """

    def __init__(
        self,
        response_id: str,
        request: ResponseRequest,
        previous: str | None,
        conversation: str | None,
        *,
        stores: bool,
    ) -> None:
        fields = request.fields
        self._head: dict[str, Any] = {
            "id": response_id,
            "object": "response",
            "created_at": int(time.time()),
            "background": False,
            "conversation": None if conversation is None else {"id": conversation},
            "error": None,
            "incomplete_details": None,
            "instructions": fields.get("instructions"),
            "max_output_tokens": fields.get("max_output_tokens"),
            "metadata": fields.get("metadata") or {},
            "model": fields.get("model") or "",
            "output": [],
            "parallel_tool_calls": True,
            "previous_response_id": previous,
            "reasoning": {"effort": None, "summary": None},
            "service_tier": "default",
            "status": "in_progress",
            "store": stores,
            "temperature": fields.get("temperature"),
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_p": fields.get("top_p"),
            "truncation": "disabled",
            "usage": None,
            "user": fields.get("user"),
        }
        self._item_id = new_id("msg")
        self._count = 0
        self._pending = ""
        self._text: list[str] = []
        self._reason: str | None = None
        self._usage: dict[str, Any] | None = None

    def whole(self, value: Any) -> dict[str, Any]:
        """Return the response for a whole chat completion. Raises HandlerFailed: the handler's answer is none."""
        try:
            completion = value if isinstance(value, dict) else json.loads(value)
            choice = completion["choices"][0]
            self._text.append(choice["message"]["content"] or "")
        except (ValueError, TypeError, LookupError) as error:
            raise HandlerFailed("The handler did not answer with a chat completion.") from error
        self._reason, self._usage = choice.get("finish_reason"), completion.get("usage")
        return self.response()

    def events(self, value: Any, *, more: bool) -> str:
        """Return the events for a part of a stream of chat completions. Raises HandlerFailed: it is none."""
        events = [] if self._count else list(self._opening())
        try:
            for delta in self._deltas(value if isinstance(value, str) else bytes(value).decode()):
                self._text.append(delta)
                events.append(self._event("response.output_text.delta", **self._place(), delta=delta, logprobs=[]))
        except (ValueError, TypeError, LookupError) as error:
            raise HandlerFailed("The handler did not answer with a stream of chat completions.") from error
        if not more:
            events += self._closing()
        return "".join(events)

    def response(self) -> dict[str, Any]:
        """Return the response as far as it is made."""
        is_cut = self._reason == "length"
        return self._head | {
            "status": "incomplete" if is_cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": [self._item("incomplete" if is_cut else "completed")],
            "usage": _usage(self._usage),
        }

    def _deltas(self, text: str) -> Iterator[str]:
        *events, self._pending = (self._pending + text).split("\n\n")
        for event in events:
            data = event.strip().removeprefix(_DATA).strip()
            if not data or data == _DONE:
                continue
            chunk = json.loads(data)
            if "error" in chunk:
                raise RowFailure(500, str(chunk["error"].get("message", "The handler failed.")))
            self._usage = chunk.get("usage") or self._usage
            for choice in chunk.get("choices") or ():
                self._reason = choice.get("finish_reason") or self._reason
                if delta := (choice.get("delta") or {}).get("content"):
                    yield delta

    def _opening(self) -> Iterator[str]:
        yield self._event("response.created", response=self._head)
        yield self._event("response.in_progress", response=self._head)
        yield self._event(
            "response.output_item.added", output_index=0, item=self._item("in_progress") | {"content": []}
        )
        yield self._event("response.content_part.added", **self._place(), part=text_part(""))

    def _closing(self) -> Iterator[str]:
        text, response = "".join(self._text), self.response()
        yield self._event("response.output_text.done", **self._place(), text=text, logprobs=[])
        yield self._event("response.content_part.done", **self._place(), part=text_part(text))
        yield self._event("response.output_item.done", output_index=0, item=response["output"][0])
        yield self._event(f"response.{response['status']}", response=response)

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._item_id, "output_index": 0, "content_index": 0}

    def _item(self, status: str) -> dict[str, Any]:
        content = [text_part("".join(self._text))]
        return {"id": self._item_id, "type": "message", "status": status, "role": "assistant", "content": content}

    def _event(self, kind: str, **values: Any) -> str:
        event = {"type": kind, "sequence_number": self._count} | values
        self._count += 1
        return f"event: {kind}\ndata: {json_text(event)}\n\n"


def _usage(usage: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return what a chat completion has used, as responses say it."""
    if usage is None:
        return None
    prompt, said = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached},
        "output_tokens": said,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + said,
    }
