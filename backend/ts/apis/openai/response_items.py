"""Items of responses and conversations: how they are read, and the messages of a chat completion that they become."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, NoReturn

from ts.apis.openai.compaction import COMPACTION, message_of, read_compaction
from ts.apis.openai.conversation_state import NO_MESSAGES, Item, Messages, refused

_ROLES: Final = ("user", "assistant", "system", "developer")
_TEXTS: Final = ("input_text", "output_text", "text")
_UNSUPPORTED: Final = "unsupported_parameter"


class ItemIds(NamedTuple):
    """Makes ids of items; they begin with the sequence that keeps the items, so that a request can refer to them.

    Attributes:
        sequence: The sequence; empty for items that are not kept.
    """

    sequence: str

    def new(self, kind: str) -> str:
        """Return an id such as ``msg_…``."""
        return f"{kind}_{self.sequence}{uuid.uuid4().hex[:16]}" if self.sequence else f"{kind}_{uuid.uuid4().hex}"

    def of_output(self, response_id: str) -> OutputIds:
        """Return what makes the ids of a response's output."""
        return OutputIds(self.sequence, response_id)


class OutputIds(NamedTuple):
    """Makes ids of the items of a response: the same if it is made again."""

    sequence: str
    response_id: str

    def new(self, kind: str, place: int) -> str:
        """Return the id of the item at a place."""
        digits = hashlib.sha256(f"{self.response_id}/{kind}/{place}".encode()).hexdigest()
        return f"{kind}_{self.sequence}{digits[: 16 if self.sequence else 32]}"


def read_items(value: Any, param: str, ids: ItemIds) -> list[Item]:
    """Return the items in a text or a list, each with a new id. Raises Failure: it is something else."""
    if isinstance(value, str):
        return [_message({"role": "user", "content": value}, param, param, ids)]
    if not isinstance(value, list):
        raise refused(f"{param} is {shown(value)}; a text, or a list of items is right.", param)
    items = []
    for place, item in enumerate(value):
        kind = item.get("type", "message") if isinstance(item, dict) else None
        read = _READERS.get(kind)
        if read is None:
            known = ", ".join(map(str, _READERS))
            raise refused(f"{param}[{place}] has the type {kind!r}; supported are {known}.", param)
        items.append(read(item, f"{param}[{place}]", param, ids))
    return items


def _message(item: Mapping[str, Any], name: str, param: str, ids: ItemIds) -> Item:
    role = item.get("role")
    if role not in _ROLES:
        raise refused(f"{name}.role is {shown(role)}; one of {', '.join(_ROLES)} is right.", param)
    content = _parts(item.get("content"), f"{name}.content", param, said=role == "assistant")
    return {"id": ids.new("msg"), "type": "message", "status": "completed", "role": role, "content": content}


def _parts(content: Any, name: str, param: str, *, said: bool) -> list[dict[str, Any]]:
    """Return the parts of a message or of a tool's output; ``said``: by the model."""
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list) or not (parts or said):
        raise refused(f"{name} is {shown(content)}; a text, or a list of parts is right.", param)
    return [_part(part, name, param, said=said) for part in parts]


def _part(part: Any, name: str, param: str, *, said: bool) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in _TEXTS and isinstance(part.get("text"), str):
        return text_part(part["text"]) if said else {"type": "input_text", "text": part["text"]}
    if said and kind == "refusal" and isinstance(part.get("refusal"), str):
        return {"type": "refusal", "refusal": part["refusal"]}
    if not said and kind == "input_image" and isinstance(part.get("image_url"), str):
        return {"type": "input_image", "image_url": part["image_url"], "detail": part.get("detail") or "auto"}
    if not said and kind == "input_file" and isinstance(part.get("file_data"), str):
        return {"type": "input_file", "file_data": part["file_data"], "filename": part.get("filename")}
    supported = "texts" if said else "texts, images with image_url and files with file_data"
    raise refused(f"{name} has a part of the type {kind!r}; supported are {supported}.", param, _UNSUPPORTED)


def _function_call(item: Mapping[str, Any], name: str, param: str, ids: ItemIds) -> Item:
    taken = {field: _text(item, field, name, param) for field in ("call_id", "name", "arguments")}
    if item.get("namespace") is not None:
        taken["namespace"] = _text(item, "namespace", name, param)
    return {"id": ids.new("fc"), "type": "function_call", "status": "completed", **taken}


def _function_call_output(item: Mapping[str, Any], name: str, param: str, ids: ItemIds) -> Item:
    output = item.get("output")
    if not isinstance(output, str):
        output = _parts(output, f"{name}.output", param, said=False)
    taken = {"call_id": _text(item, "call_id", name, param), "output": output}
    return {"id": ids.new("fco"), "type": "function_call_output", "status": "completed", **taken}


def _reasoning(item: Mapping[str, Any], name: str, param: str, ids: ItemIds) -> Item:
    content = item.get("content") or []
    if not isinstance(content, list):
        raise refused(f"{name}.content is {shown(content)}; a list of parts is right.", param)
    texts = [_text(part if isinstance(part, dict) else {}, "text", f"{name}.content", param) for part in content]
    return reasoning_item(ids.new("rs"), "".join(texts), item.get("summary") or [])


def _compaction(item: Mapping[str, Any], name: str, param: str, ids: ItemIds) -> Item:
    return read_compaction(item, name, param, ids.new("cmp"))


def _text(item: Mapping[str, Any], field: str, name: str, param: str) -> str:
    value = item.get(field)
    if not isinstance(value, str):
        raise refused(f"{name}.{field} is {shown(value)}; a text is right.", param)
    return value


_READERS: Final[dict[str | None, Callable[[Mapping[str, Any], str, str, ItemIds], Item]]] = {
    "message": _message,
    "function_call": _function_call,
    "function_call_output": _function_call_output,
    "reasoning": _reasoning,
    COMPACTION: _compaction,
}


def text_part(text: str, logprobs: Iterable[Any] = ()) -> dict[str, Any]:
    """Return a part of what a model says."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": [*logprobs]}


def reasoning_item(item_id: str, text: str, summary: Iterable[Any] = ()) -> Item:
    """Return an item with what a model has thought."""
    content = [{"type": "reasoning_text", "text": text}] if text else []
    return {"id": item_id, "type": "reasoning", "summary": [*summary], "content": content, "encrypted_content": None}


def messages_of(items: Sequence[Item], before: Messages = NO_MESSAGES) -> Messages:
    """Return the messages of a chat completion that items become; thoughts and calls are parts of the model's own.

    Args:
        before: What the first of the items have become.
    """
    messages, thought = [*before.made], before.thought
    for item in islice(items, before.items, None):
        kind = item["type"]
        if kind == "reasoning":
            thought += "".join(part["text"] for part in item["content"])
            continue
        if kind == "function_call":
            if not messages or messages[-1]["role"] != "assistant" or thought:
                messages.append({"role": "assistant", "content": None})
            calls = [*messages[-1].get("tool_calls", ()), _tool_call(item)]
            messages[-1] = {**messages[-1], "tool_calls": calls}
        else:
            messages.append(_message_of(item))
        if thought:  # that of an answer which was cut off before its text belongs to no other message
            if messages[-1]["role"] == "assistant":
                messages[-1]["reasoning"] = thought
            thought = ""
        if not any(isinstance(value, list) for value in messages[-1].values()):
            messages[-1] = SharedMessage(messages[-1])
    return Messages(len(items), messages, thought)


class SharedMessage(dict[str, Any]):
    """A message of texts, which all turns share: to copy hundreds of them would take as long as the rest of a turn.

    Raises TypeError: a handler changes it, and not a copy.
    """

    __slots__ = ()

    def _refuse(self, *args: Any, **values: Any) -> NoReturn:
        raise TypeError("other turns have this message, too: change a copy of it, such as {**message}")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[dict[str, Any]]]:
        return dict, (dict(self),)  # a copy can be changed


def for_handler(messages: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages of `messages_of` with nothing in them that a handler could change for other turns."""
    return [each if type(each) is SharedMessage else _copy(each) for each in messages]


def _copy(value: Any) -> Any:
    """Return a copy of a value of JSON."""
    if isinstance(value, dict):
        return {name: _copy(each) for name, each in value.items()}
    return [*map(_copy, value)] if isinstance(value, list) else value


def _message_of(item: Item) -> dict[str, Any]:
    kind = item["type"]
    if kind == "message":
        content, role = item["content"], item["role"]
        return {"role": role, "content": _joined(content) if role == "assistant" else _content(content)}
    if kind == COMPACTION:
        return message_of(item)
    return {"role": "tool", "tool_call_id": item["call_id"], "content": _content(item["output"])}


def _tool_call(item: Item) -> dict[str, Any]:
    name, space = item["name"], item.get("namespace")
    function = {"name": in_namespace(space, name) if space else name, "arguments": item["arguments"]}
    return {"id": item["call_id"], "type": "function", "function": function}


def _content(parts: Any) -> Any:
    """Return the content of a message: a text if it has nothing else."""
    if isinstance(parts, str):
        return parts
    if any([part["type"] != "input_text" for part in parts]):  # noqa: C419 - a list is faster for a part or two
        return [_content_part(part) for part in parts]
    return _joined(parts)


def _joined(parts: list[Mapping[str, Any]]) -> str:
    """Return the texts of parts: nearly always there is one, and a history has hundreds of messages."""
    return parts[0].get("text", "") if len(parts) == 1 else "".join([part.get("text", "") for part in parts])


def _content_part(part: Mapping[str, Any]) -> dict[str, Any]:
    if part["type"] == "input_image":
        return {"type": "image_url", "image_url": {"url": part["image_url"], "detail": part["detail"]}}
    if part["type"] == "input_file":
        return {"type": "file", "file": {"file_data": part["file_data"], "filename": part["filename"]}}
    return {"type": "text", "text": part["text"]}


def in_namespace(space: str, name: str) -> str:
    """Return the name that a function in a namespace has in a chat completion."""
    return f"{space}__{name}"


def shown(value: Any) -> str:
    """Return a value as it is shown in an error."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
