"""A response of OpenAI's, made of the chat completion with which a handler answers: whole, or as events."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final

from ts.apis.openai.response_items import ItemIds
from ts.apis.openai.response_output import Event, ResponseOutput
from ts.apis.openai.response_requests import ResponseRequest
from ts.apis.openai.response_tools import namespaced
from ts.jobs.errors import HandlerFailed, RowFailure
from ts.jobs.json_values import json_text

_DATA: Final = "data:"
_DONE: Final = "[DONE]"
#: Why an answer is incomplete, by the reason of the chat completion.
_INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}
#: Fields of a request that its response repeats, and what they are if the request has none.
_REPEATED: Final[dict[str, Any]] = {
    "background": False,
    "frequency_penalty": 0.0,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "model": "",
    "parallel_tool_calls": True,
    "presence_penalty": 0.0,
    "prompt_cache_key": None,
    "safety_identifier": None,
    "temperature": 1.0,
    "tool_choice": "auto",
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
#: What reading something else than a chat completion raises.
_UNREADABLE: Final = (ValueError, TypeError, LookupError, AttributeError)
_NO_COMPLETION: Final = "The handler did not answer with a chat completion."
_TOOL: Final = {"description": None, "parameters": None, "strict": None}


class ResponseAnswer:
    """One response while it is made.

    Args:
        response_id: Its id.
        request: What was asked.
        previous: The response that it continues.
        conversation: The conversation that it belongs to.
        ids: Those of its items.
        stores: Whether it is kept.
    """

    def __init__(
        self,
        response_id: str,
        request: ResponseRequest,
        previous: str | None,
        conversation: str | None,
        ids: ItemIds,
        *,
        stores: bool,
    ) -> None:
        fields = request.fields
        self._head: dict[str, Any] = {
            "id": response_id,
            "object": "response",
            "created_at": int(time.time()),
            "completed_at": None,
            "conversation": None if conversation is None else {"id": conversation},
            "error": None,
            "incomplete_details": None,
            "output": [],
            "previous_response_id": previous,
            "reasoning": {"effort": None, "summary": None} | fields.get("reasoning", {}),
            "service_tier": "default",
            "status": "in_progress",
            "store": stores,
            "text": {"format": {"type": "text"}} | fields.get("text", {}),
            "tools": [_TOOL | tool if tool["type"] == "function" else tool for tool in request.tools],
            "usage": None,
            **{name: fields.get(name, value) for name, value in _REPEATED.items()},
        }
        self._output = ResponseOutput(ids, namespaced(request.tools))
        self._count = 0
        self._pending = ""
        self._reason: str | None = None
        self._usage: dict[str, Any] | None = None

    def whole(self, completion: dict[str, Any]) -> dict[str, Any]:
        """Return the response for a whole chat completion. Raises HandlerFailed: the handler's answer is none."""
        try:
            choice = completion["choices"][0]
            for _ in self._output.add(choice["message"], choice.get("logprobs")):
                pass  # the items are made as the events are
        except _UNREADABLE as error:
            raise HandlerFailed(_NO_COMPLETION) from error
        self._reason, self._usage = choice.get("finish_reason"), completion.get("usage")
        for _ in self._output.close(self._status):
            pass
        return self.response()

    def events(self, value: Any, *, more: bool) -> str:
        """Return the events for a part of a stream of chat completions. Raises HandlerFailed: it is none."""
        events = [] if self._count else [self._encoded(self._opening())]
        try:
            events.append(self._encoded(self._deltas(value if isinstance(value, str) else bytes(value).decode())))
        except _UNREADABLE as error:
            raise HandlerFailed("The handler did not answer with a stream of chat completions.") from error
        if not more:
            events.append(self._encoded(self._closing()))
        return "".join(events)

    def response(self) -> dict[str, Any]:
        """Return the response, whose output is complete."""
        reason = _INCOMPLETE.get(self._reason or "")
        return self._head | {
            "status": self._status,
            "completed_at": int(time.time()) if reason is None else None,
            "incomplete_details": None if reason is None else {"reason": reason},
            "output": self._output.items,
            "usage": _usage(self._usage),
        }

    @property
    def _status(self) -> str:
        return "incomplete" if self._reason in _INCOMPLETE else "completed"

    def _deltas(self, text: str) -> Iterator[Event]:
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
                yield from self._output.add(choice.get("delta") or {}, choice.get("logprobs"))

    def _opening(self) -> Iterator[Event]:
        yield "response.created", {"response": self._head}
        yield "response.in_progress", {"response": self._head}

    def _closing(self) -> Iterator[Event]:
        yield from self._output.close(self._status)
        response = self.response()
        yield f"response.{response['status']}", {"response": response}

    def _encoded(self, events: Iterable[Event]) -> str:
        encoded = []
        for kind, values in events:
            event = {"type": kind, "sequence_number": self._count} | values
            self._count += 1
            encoded.append(f"event: {kind}\ndata: {json_text(event)}\n\n")
        return "".join(encoded)


def completion_of(value: Any) -> dict[str, Any]:
    """Return the chat completion that a handler has answered with. Raises HandlerFailed: it is none."""
    try:
        completion = value if isinstance(value, dict) else json.loads(value)
    except (ValueError, TypeError) as error:
        raise HandlerFailed(_NO_COMPLETION) from error
    if not isinstance(completion, dict):
        raise HandlerFailed(_NO_COMPLETION)
    return completion


def _usage(usage: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return what a chat completion has used, as responses say it."""
    if usage is None:
        return None
    prompt, said = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    reasoning = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached},
        "output_tokens": said,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": prompt + said,
    }
