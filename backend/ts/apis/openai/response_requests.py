"""What a request for a response asks for, as the chat completion that a handler answers.

What this server does not have is refused by its name, unless it has the value that leaves everything as it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from ts.apis.openai.conversation_state import Item, new_id, refused
from ts.jobs.errors import RowFailure

#: Fields that are for the handler, under its names.
_FOR_THE_HANDLER: Final = {
    "temperature": "temperature",
    "top_p": "top_p",
    "max_output_tokens": "max_completion_tokens",
    # Not OpenAI's, but of servers that have them.
    "seed": "seed",
    "stop": "stop",
    "top_k": "top_k",
}
#: Fields that change nothing of the answer.
_IGNORED: Final = frozenset({"user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "service_tier"})
#: Fields that are taken with these values alone.
_PLAIN: Final[Mapping[str, tuple[Any, ...]]] = {
    "background": (False,),
    "include": ([],),
    "parallel_tool_calls": (True, False),
    "reasoning": ({},),
    "stream_options": ({}, {"include_obfuscation": False}, {"include_obfuscation": True}),
    "text": ({}, {"format": {"type": "text"}}),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
}
_OWN: Final = frozenset(
    {"model", "input", "instructions", "metadata", "store", "stream", "previous_response_id", "conversation"}
)
_UNSUPPORTED: Final = "unsupported_parameter"
_ROLES: Final = ("user", "assistant", "system", "developer")
_TEXTS: Final = ("input_text", "output_text", "text")
_MOST_METADATA: Final = 16


class ResponseRequest(NamedTuple):
    """A request for a response.

    Attributes:
        given: The items of its input.
        fields: The request itself.
        for_handler: What the handler's chat completion takes over.
    """

    given: list[Item]
    fields: Mapping[str, Any]
    for_handler: Mapping[str, Any]

    @property
    def streams(self) -> bool:
        """Whether the answer is sent while it is made."""
        return bool(self.fields.get("stream"))

    @property
    def stores(self) -> bool:
        """Whether the response is kept."""
        return self.fields.get("store") is not False

    def completion(self, history: Sequence[Item]) -> dict[str, Any]:
        """Return the body of the chat completion that answers these items after a history."""
        messages = [{"role": item["role"], "content": text_of(item)} for item in (*history, *self.given)]
        if instructions := self.fields.get("instructions"):
            messages = [{"role": "system", "content": instructions}, *messages]
        body: dict[str, Any] = {"model": self.fields.get("model") or "", "messages": messages, **self.for_handler}
        if self.streams:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body


def read_request(body: Any) -> ResponseRequest:
    """Return what a body asks for. Raises Failure: a field is wrong or not supported (400, with its name)."""
    fields = json_object(body)
    for name, value in fields.items():
        if name in _PLAIN:
            if value is not None and value not in _PLAIN[name]:
                raise refused(
                    f"{name} is {_shown(value)}, which is not supported here; leave it out.", name, _UNSUPPORTED
                )
        elif name not in _OWN and name not in _IGNORED and name not in _FOR_THE_HANDLER:
            raise refused(f"{name} is not supported here; leave it out.", name, _UNSUPPORTED)
    for name in ("store", "stream"):
        if not isinstance(fields.get(name), bool | None):
            raise refused(f"{name} is {_shown(fields[name])}; true or false is right.", name)
    if not isinstance(fields.get("instructions"), str | None):
        raise refused("instructions has to be a text.", "instructions")
    read_metadata(fields)
    if fields.get("input") is None:
        raise refused("input is missing: a text, or a list of messages.", "input", "missing_required_parameter")
    passed_on = {_FOR_THE_HANDLER[name]: fields[name] for name in _FOR_THE_HANDLER if fields.get(name) is not None}
    return ResponseRequest(read_items(fields["input"], "input"), fields, passed_on)


def read_items(value: Any, param: str) -> list[Item]:
    """Return the messages in a text or a list, each with an id. Raises Failure: it is something else."""
    if isinstance(value, str):
        return [_message("user", [{"type": "input_text", "text": value}])]
    if not isinstance(value, list):
        raise refused(f"{param} is {_shown(value)}; a text, or a list of messages is right.", param)
    items = []
    for place, item in enumerate(value):
        kind = item.get("type", "message") if isinstance(item, dict) else None
        if kind != "message":
            raise refused(f"{param}[{place}] has the type {kind!r}; only messages are supported here.", param)
        role = item.get("role")
        if role not in _ROLES:
            raise refused(f"{param}[{place}].role is {_shown(role)}; one of {', '.join(_ROLES)} is right.", param)
        items.append(_message(role, _parts(item.get("content"), role, f"{param}[{place}].content", param)))
    return items


def _parts(content: Any, role: str, name: str, param: str) -> list[dict[str, Any]]:
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list) or not parts:
        raise refused(f"{name} is {_shown(content)}; a text, or a list of parts is right.", param)
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in _TEXTS or not isinstance(part.get("text"), str):
            raise refused(f"{name} has a part of the type {kind!r}; only text is supported here.", param)
    return [text_part(part["text"]) if role == "assistant" else _input_part(part["text"]) for part in parts]


def _input_part(text: str) -> dict[str, Any]:
    return {"type": "input_text", "text": text}


def text_part(text: str) -> dict[str, Any]:
    """Return a part of what a model says."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _message(role: str, content: list[dict[str, Any]]) -> Item:
    return {"id": new_id("msg"), "type": "message", "status": "completed", "role": role, "content": content}


def text_of(item: Item) -> str:
    """Return the text of a message."""
    return "".join(part["text"] for part in item["content"])


def read_metadata(fields: Mapping[str, Any]) -> dict[str, str]:
    """Return the metadata of a request. Raises Failure: it is not up to 16 texts by name."""
    value = fields.get("metadata")
    if value is None:
        return {}
    is_plain = isinstance(value, dict) and all(isinstance(each, str) for each in value.values())
    if not is_plain or len(value) > _MOST_METADATA:
        raise refused(f"metadata is {_shown(value)}; up to {_MOST_METADATA} texts by name are right.", "metadata")
    metadata: dict[str, str] = value
    return metadata


def json_object(body: Any) -> dict[str, Any]:
    """Return the object that a body in JSON is. Raises Failure: it is something else."""
    try:
        value = json.loads(bytes(body) or b"{}")
    except ValueError as error:
        raise refused(f"The body is not JSON: {error}.", None) from error
    if not isinstance(value, dict):
        raise RowFailure(400, f"The body is {_shown(value)}; a JSON object is right.")
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
