"""Messages and tools as OpenAI clients send them, made into what chat templates take."""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from chat_fields import UNSUPPORTED, BadRequest, wrong

#: A message for a chat template: ``role``, ``content`` (a text), perhaps ``tool_calls``, and what the client has added.
Message = dict[str, Any]

_ROLES: Final = ("system", "user", "assistant", "tool")


class Tools(NamedTuple):
    """The tools of a request.

    Attributes:
        functions: The tools that the template shows, each with ``name`` and perhaps ``description``, ``parameters``.
        callable: The names of those that the answer may call.
        strict: The names of those whose arguments have to fit their parameters.
        is_required: Whether the answer has to be a call.
        most: How many calls the answer may have; None for any number.
    """

    functions: list[dict[str, Any]]
    callable: frozenset[str]
    strict: frozenset[str]
    is_required: bool = False
    most: int | None = None


def read_messages(value: Any, param: str = "messages") -> list[Message]:
    """Return messages for a chat template. Raises BadRequest."""
    if not isinstance(value, list) or not value:
        wrong(param, value, "a list of at least one message")
    return [_message(message, f"{param}[{place}]", param) for place, message in enumerate(value)]


def _message(message: Any, name: str, param: str) -> Message:
    if not isinstance(message, dict):
        wrong(name, message, "an object with role and content", param)
    role = "system" if message.get("role") == "developer" else message.get("role")
    if role not in _ROLES:
        wrong(f"{name}.role", role, "'system', 'user', 'assistant' or 'tool'", param)
    # What a template does not use cannot change the answer, so it gets all fields of a message.
    read = {key: each for key, each in message.items() if each is not None} | {"role": role}
    content = message.get("content")
    if thought := read.get("reasoning") or read.get("reasoning_content"):  # templates read the second name
        if not isinstance(thought, str):
            wrong(f"{name}.reasoning", thought, "a text", param)
        read |= {"reasoning": thought, "reasoning_content": thought}
    read["content"] = "" if content is None and role == "assistant" else _content(content, f"{name}.content", param)
    if calls := read.pop("tool_calls", None):
        if role != "assistant" or not isinstance(calls, list):
            wrong(f"{name}.tool_calls", calls, "a list, in a message of the assistant,", param)
        read["tool_calls"] = [_call(call, f"{name}.tool_calls[{at}]", param) for at, call in enumerate(calls)]
    if role == "tool" and not isinstance(message.get("tool_call_id"), str):
        wrong(f"{name}.tool_call_id", message.get("tool_call_id"), "the id of the call that the message answers", param)
    return read


def _content(value: Any, name: str, param: str) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        wrong(name, value, "a text", param)
    texts = []
    for part in value:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "refusal" and isinstance(part.get("refusal"), str):
            texts.append(part["refusal"])
        elif kind in ("text", "input_text", "output_text") and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            raise BadRequest(f"{name} has a part of the type {kind!r}; this model takes text only.", param)
    return "".join(texts)


def _call(call: Any, name: str, param: str) -> dict[str, Any]:
    """Return a call with its arguments as an object, which templates write down again."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        wrong(name, call, "an object with a function, which has a name and arguments,", param)
    arguments = function.get("arguments")
    try:
        arguments = json.loads(arguments) if isinstance(arguments, str) and arguments else arguments or {}
    except ValueError:
        pass  # as a model has written it
    return {**call, "function": {"name": function["name"], "arguments": arguments}}


def read_tools(tools: Any, choice: Any, *, parallel: bool) -> Tools | None:
    """Return the tools that an answer may use; None if there are none, or it may not. Raises BadRequest."""
    if not isinstance(tools, list | None):
        wrong("tools", tools, "a list of functions")
    if not tools:
        if choice not in (None, "none", "auto"):
            raise BadRequest(f"tool_choice is {choice!r}, but the request has no tools.", "tool_choice")
        return None
    functions = [_function(tool, f"tools[{place}]") for place, tool in enumerate(tools)]
    names = [function["name"] for function in functions]
    strict = frozenset(function["name"] for function in functions if function.pop("strict", None))
    called, is_required = _choice(choice, names)
    if choice == "none":
        return None
    return Tools(functions, frozenset(called), strict, is_required, None if parallel else 1)


def _function(tool: Any, name: str) -> dict[str, Any]:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind != "function":
        raise BadRequest(
            f"{name} is of the type {kind!r}; this model has tools of the type 'function'.", "tools", UNSUPPORTED
        )
    function = tool.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
        wrong(f"{name}.function", function, "an object with a name", "tools")
    if not isinstance(function.get("parameters"), dict | None):
        wrong(f"{name}.function.parameters", function["parameters"], "a JSON schema", "tools")
    return {key: each for key, each in function.items() if each is not None}


def _choice(choice: Any, names: list[str]) -> tuple[list[str], bool]:
    """Return which tools an answer may call, and whether it has to call one."""
    if choice in (None, "none", "auto"):
        return names, False
    if choice == "required":
        return names, True
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind == "function":
        chosen, is_required = [choice], True
    elif kind == "allowed_tools" and isinstance(allowed := choice.get("allowed_tools"), dict):
        chosen, is_required = allowed.get("tools"), allowed.get("mode") == "required"
    else:
        wrong(
            "tool_choice", choice, "'none', 'auto', 'required', or an object of the type 'function' or 'allowed_tools'"
        )
    try:
        called = [each["function"]["name"] for each in chosen]
    except (TypeError, KeyError):
        wrong("tool_choice", choice, "an object with the names of functions")
    for name in called:
        if name not in names:
            raise BadRequest(f"tool_choice names {name!r}, which is not among the tools.", "tool_choice")
    return called, is_required
