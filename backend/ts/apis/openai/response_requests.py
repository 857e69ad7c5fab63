"""What a request for a response asks for, as the chat completion that a handler answers.

A field that is not of Responses goes to the handler as it is, which takes it or refuses it. What of Responses neither
the server nor a chat completion has is refused by its name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ts.apis.openai.conversation_state import NO_MESSAGES, Item, Messages, refused
from ts.apis.openai.response_items import ItemIds, for_handler, messages_of, read_items, shown
from ts.apis.openai.response_tools import passed_on, tools_in
from ts.jobs.errors import RowFailure

#: Fields that are the server's, or change nothing of the answer.
_NOT_FOR_THE_HANDLER: Final = frozenset(
    {
        *("model", "input", "instructions", "metadata", "store", "stream", "previous_response_id", "conversation"),
        *("background", "stream_options", "truncation", "max_tool_calls", "service_tier"),
        *("tools", "tool_choice", "parallel_tool_calls"),  # see `response_tools`
        *("user", "safety_identifier", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),
        "client_metadata",
    }
)
#: Fields that ask for what neither the server nor a chat completion has.
_REFUSED: Final = frozenset({"prompt", "context_management", "moderation"})
#: Names of fields, and those that they have in a chat completion.
_RENAMED: Final = {"max_output_tokens": "max_completion_tokens"}
#: The field of a request for what a handler refuses under another name.
_ASKED_AS: Final = {
    "max_completion_tokens": "max_output_tokens",
    "messages": "input",
    "reasoning_effort": "reasoning",
    "response_format": "text",
    "verbosity": "text",
    "logprobs": "include",
}
_INCLUDED_LOGPROBS: Final = "message.output_text.logprobs"
#: What a response may include: the other things are of items that no response here has.
_INCLUDABLE: Final = (
    _INCLUDED_LOGPROBS,
    "reasoning.encrypted_content",
    "message.input_image.image_url",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)
_UNSUPPORTED: Final = "unsupported_parameter"
_MOST_METADATA: Final = 16


class ResponseRequest(NamedTuple):
    """A request for a response.

    Attributes:
        given: The items of its input.
        fields: The request itself, without fields that are null.
        for_handler: What the handler's chat completion has besides messages.
        tools: The tools that the model gets, as the request has them.
    """

    given: list[Item]
    fields: Mapping[str, Any]
    for_handler: Mapping[str, Any]
    tools: list[dict[str, Any]]

    @property
    def streams(self) -> bool:
        """Whether the answer is sent while it is made."""
        return bool(self.fields.get("stream"))

    @property
    def stores(self) -> bool:
        """Whether the response is kept."""
        return self.fields.get("store") is not False

    def completion(self, history: Sequence[Item], before: Messages = NO_MESSAGES) -> dict[str, Any]:
        """Return the body of the chat completion that answers these items after a history.

        Args:
            before: The messages of the first items of the history.
        """
        messages = for_handler(messages_of([*history, *self.given], before).made)
        if instructions := self.fields.get("instructions"):
            messages = [{"role": "system", "content": instructions}, *messages]
        body: dict[str, Any] = {"model": self.fields.get("model") or "", "messages": messages, **self.for_handler}
        if self.streams:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body


def read_request(body: Any, ids: ItemIds, *, needs_input: bool = True) -> ResponseRequest:
    """Return what a body asks for. Raises Failure: a field is wrong or not supported (400, with its name)."""
    fields = {name: value for name, value in json_object(body).items() if value is not None}
    for name in fields:
        if name in _REFUSED:
            raise refused(f"{name} is not supported here; leave it out.", name, _UNSUPPORTED)
    for name in ("store", "stream", "background"):
        if not isinstance(fields.get(name, False), bool):
            raise refused(f"{name} is {shown(fields[name])}; true or false is right.", name)
    if not isinstance(fields.get("instructions", ""), str):
        raise refused("instructions has to be a text.", "instructions")
    if fields.get("truncation", "auto") not in ("auto", "disabled"):
        raise refused(f"truncation is {shown(fields['truncation'])}; auto or disabled is right.", "truncation")
    read_metadata(fields)
    if not needs_input:
        fields.setdefault("input", [])
    if "input" not in fields:
        raise refused("input is missing: a text, or a list of items.", "input", "missing_required_parameter")
    tools = tools_in(fields)
    for_handler = _for_handler(fields) | passed_on(tools, fields)
    return ResponseRequest(read_items(fields["input"], "input", ids), fields, for_handler, tools)


def _for_handler(fields: Mapping[str, Any]) -> dict[str, Any]:
    passed: dict[str, Any] = {}
    for name, value in fields.items():
        if name in _TRANSLATED:
            passed |= _TRANSLATED[name](value, fields)
        elif name not in _NOT_FOR_THE_HANDLER:
            passed[_RENAMED.get(name, name)] = value
    return passed


def _text(value: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the format that the answer must have, and how much it says."""
    if not isinstance(value, dict) or not isinstance(value.get("format") or {}, dict):
        raise refused(f"text is {shown(value)}; an object with format is right.", "text")
    passed: dict[str, Any] = {}
    asked = dict(value.get("format") or {})
    kind = asked.pop("type", "text")
    if kind == "json_schema":
        passed["response_format"] = {"type": kind, "json_schema": asked}
    elif kind != "text":
        passed["response_format"] = {"type": kind, **asked}
    if value.get("verbosity") not in (None, "medium"):
        passed["verbosity"] = value["verbosity"]
    return passed


def _reasoning(value: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise refused(f"reasoning is {shown(value)}; an object with effort is right.", "reasoning")
    return {} if value.get("effort") is None else {"reasoning_effort": value["effort"]}


def _include(value: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
    wrong = [each for each in value if each not in _INCLUDABLE] if isinstance(value, list) else [value]
    if wrong:
        raise refused(f"include has {shown(wrong[0])}; it is a list of {', '.join(_INCLUDABLE)}.", "include")
    return {"logprobs": True} if _INCLUDED_LOGPROBS in value else {}


def _top_logprobs(value: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"logprobs": True, "top_logprobs": value} if value else {}


_TRANSLATED: Final[Mapping[str, Callable[[Any, Mapping[str, Any]], dict[str, Any]]]] = {
    "text": _text,
    "reasoning": _reasoning,
    "include": _include,
    "top_logprobs": _top_logprobs,
}


def asked_as(param: Any) -> Any:
    """Return the field of a request that a handler names as a field of its chat completion."""
    return _ASKED_AS.get(param, param) if isinstance(param, str) else param


def read_metadata(fields: Mapping[str, Any]) -> dict[str, str]:
    """Return the metadata of a request. Raises Failure: it is not up to 16 texts by name."""
    value = fields.get("metadata")
    if value is None:
        return {}
    is_plain = isinstance(value, dict) and all(isinstance(each, str) for each in value.values())
    if not is_plain or len(value) > _MOST_METADATA:
        raise refused(f"metadata is {shown(value)}; up to {_MOST_METADATA} texts by name are right.", "metadata")
    metadata: dict[str, str] = value
    return metadata


def json_object(body: Any) -> dict[str, Any]:
    """Return the object that a body in JSON is. Raises Failure: it is something else."""
    try:
        value = json.loads(bytes(body) or b"{}")
    except ValueError as error:
        raise refused(f"The body is not JSON: {error}.", None) from error
    if not isinstance(value, dict):
        raise RowFailure(400, f"The body is {shown(value)}; a JSON object is right.")
    return value
