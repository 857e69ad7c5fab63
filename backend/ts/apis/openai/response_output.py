"""The output of a response while a chat completion becomes it: its items, and the events that make them known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

from ts.apis.openai.completion_chunks import Piece
from ts.apis.openai.conversation_state import Item
from ts.apis.openai.response_items import OutputIds, reasoning_item, text_part

#: The type of an event of OpenAI's, and its fields.
Event: TypeAlias = tuple[str, dict[str, Any]]

_MESSAGE: Final = "message"
_REASONING: Final = "reasoning"
#: By the type of an item with text: the beginning of its events' names.
_EVENTS: Final = {_MESSAGE: "response.output_text", _REASONING: "response.reasoning_text"}


class ResponseOutput:
    """The items of one response, in the order in which they begin.

    Text ends when something else begins, calls of functions end with the response: a stream may mix their pieces.

    Args:
        namespaced: As of `response_tools.namespaced`.
    """

    def __init__(self, ids: OutputIds, namespaced: Mapping[str, tuple[str, str]]) -> None:
        self.items: list[Item] = []
        self._namespaced = namespaced
        self._ids = ids
        #: The place of the text that goes on; None if none does.
        self._text: int | None = None
        #: Places of calls, by their numbers in the chat completion.
        self._calls: dict[int, int] = {}

    def add(self, piece: Piece) -> Iterator[Event]:
        """Add a piece of a chat completion, and yield the events for that.

        Raises TypeError, LookupError or ValueError: it is no such piece.
        """
        if "reasoning" in piece:
            yield from self._say(_REASONING, piece["reasoning"], [])
        elif "content" in piece:
            yield from self._say(_MESSAGE, piece["content"], piece["logprobs"])
        else:
            (call,) = piece["tool_calls"]
            yield from self._call(call["index"], call)

    def close(self, status: str) -> Iterator[Event]:
        """End all items, the last one with this status, and yield the events for that."""
        if not self.items and status == "completed":
            yield from self._begin(_MESSAGE)
        yield from self._close_text(status)
        for place in self._calls.values():
            item = self.items[place] = self.items[place] | {"status": status}
            where = {"item_id": item["id"], "output_index": place}
            done = where | {"name": item["name"], "arguments": item["arguments"]}
            yield "response.function_call_arguments.done", done
            yield "response.output_item.done", {"output_index": place, "item": item}
        self._calls = {}

    def _say(self, kind: str, text: str, logprobs: list[Any]) -> Iterator[Event]:
        if self._text is None or self.items[self._text]["type"] != kind:
            yield from self._close_text("completed")
            yield from self._begin(kind)
        part = self._part()
        part["text"] += text
        fields: dict[str, Any] = {"delta": text}
        if kind == _MESSAGE:
            part["logprobs"] += logprobs
            fields["logprobs"] = logprobs
        yield f"{_EVENTS[kind]}.delta", self._where() | fields

    def _begin(self, kind: str) -> Iterator[Event]:
        self._text = place = len(self.items)
        if kind == _MESSAGE:
            item: Item = {"id": self._id("msg"), "type": kind, "status": "in_progress", "role": "assistant"}
            part = text_part("")
        else:
            item = reasoning_item(self._id("rs"), "")
            part = {"type": "reasoning_text", "text": ""}
        self.items.append(item | {"content": [part]})
        yield "response.output_item.added", {"output_index": place, "item": item | {"content": []}}
        yield "response.content_part.added", self._where() | {"part": dict(part)}

    def _close_text(self, status: str) -> Iterator[Event]:
        if self._text is None:
            return
        item, part, where = self.items[self._text], self._part(), self._where()
        fields: dict[str, Any] = {"text": part["text"]}
        if item["type"] == _MESSAGE:
            item["status"] = status
            fields["logprobs"] = part["logprobs"]
        yield f"{_EVENTS[item['type']]}.done", where | fields
        yield "response.content_part.done", where | {"part": part}
        yield "response.output_item.done", {"output_index": self._text, "item": item}
        self._text = None

    def _call(self, number: int, call: Mapping[str, Any]) -> Iterator[Event]:
        function = call.get("function") or {}
        if number not in self._calls:
            yield from self._close_text("completed")
            self._calls[number] = place = len(self.items)
            item = {"id": self._id("fc"), "type": "function_call", "status": "in_progress"}
            item |= {"call_id": call.get("id") or self._id("call"), "name": function["name"], "arguments": ""}
            if item["name"] in self._namespaced:
                item["namespace"], item["name"] = self._namespaced[item["name"]]
            self.items.append(item)
            yield "response.output_item.added", {"output_index": place, "item": dict(self.items[place])}
        item = self.items[place := self._calls[number]]
        if arguments := function.get("arguments"):
            item["arguments"] += arguments
            where = {"item_id": item["id"], "output_index": place}
            yield "response.function_call_arguments.delta", where | {"delta": arguments}

    def _id(self, kind: str) -> str:
        return self._ids.new(kind, len(self.items))

    def _part(self) -> dict[str, Any]:
        assert self._text is not None, "a text goes on"
        part: dict[str, Any] = self.items[self._text]["content"][0]
        return part

    def _where(self) -> dict[str, Any]:
        assert self._text is not None, "a text goes on"
        return {"item_id": self.items[self._text]["id"], "output_index": self._text, "content_index": 0}
