"""Tools of a request for a response, as a chat completion has them: functions, by themselves or in namespaces.

A chat completion has no namespaces: there ``name`` of ``space`` is ``space__name``. Tools that OpenAI runs itself, such
as a search, are left out beside functions, since the model may do without them; alone they are refused.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ts.apis.openai.conversation_state import refused
from ts.apis.openai.response_items import in_namespace, shown

logger = logging.getLogger(__name__)

_CHOICES: Final = ("auto", "none", "required")
_UNSUPPORTED: Final = "unsupported_parameter"
#: Tools that are run by OpenAI's servers.
_HOSTED: Final = frozenset({"web_search", "web_search_preview", "file_search", "code_interpreter", "image_generation"})
_left_out: Final[set[str]] = set()


def tools_in(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the tools of a request that the model gets. Raises Failure: one is not supported."""
    value = fields.get("tools", [])
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        raise refused(f"tools is {shown(value)}; a list of tools is right.", "tools")
    hosted = {tool["type"] for tool in value if tool.get("type") in _HOSTED}
    tools = [tool for tool in value if tool.get("type") not in _HOSTED]
    for place, tool in enumerate(value):
        if not _is_supported(tool) or not tools:
            what = f"tools[{place}] is {shown(tool)}"
            raise refused(f"{what}; supported are functions with a name.", "tools", _UNSUPPORTED)
    if unknown := hosted - _left_out:
        _left_out.update(unknown)
        logger.warning("Tools that this server does not have are left out of requests: %s", ", ".join(sorted(unknown)))
    return tools


def _is_supported(tool: Mapping[str, Any]) -> bool:
    if tool.get("type") == "namespace":
        inner = tool.get("tools")
        functions = inner if isinstance(inner, list) else [None]
        return isinstance(tool.get("name"), str) and all(
            isinstance(each, dict) and _is_function(each) for each in functions
        )
    return _is_function(tool) or tool.get("type") in _HOSTED


def _is_function(tool: Mapping[str, Any]) -> bool:
    return tool.get("type") == "function" and isinstance(tool.get("name"), str)


def namespaced(tools: list[dict[str, Any]]) -> dict[str, tuple[str, str]]:
    """Return namespace and name of functions in namespaces, by their names in a chat completion."""
    spaces = [tool for tool in tools if tool["type"] == "namespace"]
    return {
        in_namespace(space["name"], tool["name"]): (space["name"], tool["name"])
        for space in spaces
        for tool in space["tools"]
    }


def passed_on(tools: list[dict[str, Any]], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a chat completion has of the tools, and of which the model may or must call. Raises Failure."""
    choice, allowed = fields.get("tool_choice", "auto"), None
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed, choice = _names(choice.get("tools")), choice.get("mode", "auto")
    if isinstance(choice, dict) and _is_function(choice):
        choice = {"type": "function", "function": {"name": choice["name"]}}
    elif choice not in _CHOICES:
        right = f"{', '.join(_CHOICES)}, a function or allowed_tools is right"
        raise refused(f"tool_choice is {shown(fields['tool_choice'])}; {right}.", "tool_choice", _UNSUPPORTED)
    functions = [each for each in _functions(tools) if allowed is None or each["function"]["name"] in allowed]
    if not functions:
        return {}
    passed: dict[str, Any] = {"tools": functions, "tool_choice": choice}
    if "parallel_tool_calls" in fields:
        passed["parallel_tool_calls"] = fields["parallel_tool_calls"]
    return passed


def _functions(tools: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for tool in tools:
        if tool["type"] == "namespace":
            yield from (_function(each, in_namespace(tool["name"], each["name"])) for each in tool["tools"])
        else:
            yield _function(tool, tool["name"])


def _function(tool: Mapping[str, Any], name: str) -> dict[str, Any]:
    function = {key: value for key, value in tool.items() if key != "type" and value is not None}
    return {"type": "function", "function": function | {"name": name}}


def _names(tools: Any) -> set[str]:
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise refused(f"tool_choice.tools is {shown(tools)}; a list of functions is right.", "tool_choice")
    return {str(tool.get("name")) for tool in tools}
