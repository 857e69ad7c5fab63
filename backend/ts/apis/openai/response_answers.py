"""A response of OpenAI's, made of the chat completion with which a handler answers: whole, or as events."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from ts.apis.openai.completion_chunks import UNREADABLE, Piece, pieces_of
from ts.apis.openai.response_items import ItemIds
from ts.apis.openai.response_output import Event, ResponseOutput
from ts.apis.openai.response_requests import ResponseRequest
from ts.apis.openai.response_tools import namespaced
from ts.jobs.errors import HandlerFailed
from ts.jobs.json_values import json_text

#: The status of a response that is being made.
IN_PROGRESS: Final = "in_progress"
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
_NO_COMPLETION: Final = "The handler did not answer with a chat completion."
_TOOL: Final = {"description": None, "parameters": None, "strict": None}


def head_of(
    response_id: str, request: ResponseRequest, previous: str | None, conversation: str | None, *, stores: bool
) -> dict[str, Any]:
    """Return a response that has no output yet.

    Args:
        previous: The response that it continues.
        conversation: The conversation that it belongs to.
        stores: Whether it is kept.
    """
    fields = request.fields
    return {
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
        "status": IN_PROGRESS,
        "store": stores,
        "text": {"format": {"type": "text"}} | fields.get("text", {}),
        "tools": [_TOOL | tool if tool["type"] == "function" else tool for tool in request.tools],
        "usage": None,
        **{name: fields.get(name, value) for name, value in _REPEATED.items()},
    }


def ended(head: Mapping[str, Any], reason: str | None, usage: dict[str, Any] | None) -> dict[str, Any]:
    """Return a response that a chat completion has ended, without its output."""
    incomplete = _INCOMPLETE.get(reason or "")
    return {
        **head,
        "status": "completed" if incomplete is None else "incomplete",
        "completed_at": int(time.time()) if incomplete is None else None,
        "incomplete_details": None if incomplete is None else {"reason": incomplete},
        "usage": usage_of(usage),
    }


class ResponseAnswer:
    """One response while it is made, and the events of that.

    Args:
        head: The response without output.
        ids: Those of its items.
        after: Only events with greater numbers are returned, and each has its number as ``id``, behind which a client
            can continue; None for all events, without ids.

    Attributes:
        items: Its output so far.
        count: How many events there were.
    """

    def __init__(self, head: Mapping[str, Any], ids: ItemIds, after: int | None = None) -> None:
        self._head = dict(head)
        self._after = after
        self._output = ResponseOutput(ids.of_output(head["id"]), namespaced(head["tools"]))
        self.items = self._output.items
        self.count = 0

    def begin(self) -> str:
        """Return the first events."""
        return self._encoded(
            [("response.created", {"response": self._head}), ("response.in_progress", {"response": self._head})]
        )

    def add(self, piece: Piece) -> str:
        """Return the events for a piece of the answer. Raises HandlerFailed: it is none."""
        try:
            return self._encoded(self._output.add(piece))
        except UNREADABLE as error:
            raise HandlerFailed(_NO_COMPLETION) from error

    def end(self, response: Mapping[str, Any]) -> str:
        """Return the last events; ``response`` is how it has ended, see `ended`."""
        status = response["status"]
        events = [*self._output.close("completed" if status == "completed" else "incomplete")]
        return self._encoded([*events, (f"response.{status}", {"response": {**response, "output": self.items}})])

    def end_without_output(self, response: Mapping[str, Any]) -> str:
        """Return the last event of a response for which nothing is generated."""
        return self._encoded([(f"response.{response['status']}", {"response": response})])

    def whole(self, completion: dict[str, Any]) -> dict[str, Any]:
        """Return the response for a whole chat completion. Raises HandlerFailed: the handler's answer is none."""
        try:
            choice = completion["choices"][0]
            for piece in pieces_of(choice["message"], choice.get("logprobs")):
                self.add(piece)
        except UNREADABLE as error:
            raise HandlerFailed(_NO_COMPLETION) from error
        response = ended(self._head, choice.get("finish_reason"), completion.get("usage"))
        self.end(response)
        return response | {"output": self.items}

    def _encoded(self, events: Iterable[Event]) -> str:
        encoded = []
        for kind, values in events:
            number = self.count
            self.count += 1
            if self._after is not None:
                if number <= self._after:
                    continue
                encoded.append(f"id: {number}\n")
            event = {"type": kind, "sequence_number": number} | values
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


def usage_of(usage: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return what a chat completion has used, as responses say it."""
    if usage is None:
        return None
    prompt, said = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    reasoning = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": said,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": prompt + said,
    }
