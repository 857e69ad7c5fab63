"""Rows of OpenAI's Responses and Conversations, for handlers that answer chat completions.

A handler sees a response as a chat completion with the whole history, which comes from its sequence; its answer becomes
the response, and joins the history. Everything else, such as a look at a conversation, is answered without the handler.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from ts.apis.openai.conversation_state import (
    State,
    checked,
    conversation_of,
    empty,
    history,
    not_found,
    page,
    refused,
    response_of,
    with_response,
    without_response,
)
from ts.apis.openai.openai_calls import CALL_HEADER, SEQUENCE_PREFIX, ResponsesCall
from ts.apis.openai.response_answers import ResponseAnswer, completion_of
from ts.apis.openai.response_items import ItemIds, read_items
from ts.apis.openai.response_requests import ResponseRequest, asked_as, json_object, read_metadata, read_request
from ts.context import Context
from ts.jobs.errors import RowFailure
from ts.jobs.json_values import json_text
from ts.jobs.row import Row, RowReader
from ts.protocol.frames import Buffer
from ts.protocol.media_types import EVENTS, JSON
from ts.protocol.messages import InferRow

_CONTENT_TYPE: Final = "content-type"
_MOST_ITEMS: Final = 20
_OF_STREAMS: Final = frozenset({"stream", "stream_options"})


def row_reader(context: Context, declared: Mapping[str, Any], envelope: str | None) -> RowReader:
    """Return what reads calls for a model."""
    return lambda wire_row: _Conversation(context, wire_row).row


class _Conversation:
    """The sequence of one call, which is read and written while the call is answered."""

    def __init__(self, context: Context, wire_row: InferRow) -> None:
        """Read a row. Raises Failure: the model keeps no sequences, and the call is refused."""
        self._context = context
        self._body = wire_row.body
        self.row = Row(wire_row.job_id, {}, wire_row.headers)
        self._call = ResponsesCall.decoded(self.row.get_request_property(CALL_HEADER))
        self._sequence_id: str | None = None
        if context.sequence_cache is not None:
            self._sequence_id = self.row.get_request_property(context.header_key_sequence_id)
        self._answer: ResponseAnswer | None = None
        self._request: ResponseRequest | None = None
        if self._sequence_id is None:
            self._prepare()
        else:
            self.row.prepare = self._prepare

    # The state of the sequence

    def _read(self) -> State:
        """Return the state of the sequence. Raises Failure: there is none that could be continued."""
        call = self._call
        cache = self._context.sequence_cache
        is_known = self._sequence_id is not None and not self.row.begins_sequence
        if not is_known or self._sequence_id not in cache:
            if call.previous is not None:
                raise _no_previous(call.previous)
            about_response = call.operation.endswith(("response", "input_items")) and not call.in_conversation
            raise not_found("Response" if about_response else "Conversation", call.id)
        return checked(cache[self._sequence_id])

    def _write(self, state: State) -> None:
        cache = self._context.sequence_cache
        cache.copy_before_step(self._sequence_id)
        cache[self._sequence_id] = state

    def _end(self) -> None:
        if self._sequence_id is not None:
            self.row.add_response_property(self._context.header_key_sequence_end, self._sequence_id)

    # Before the handler

    def _prepare(self) -> Buffer | None:
        """Answer a call without the handler, or make what the handler gets. Raises Failure: the call is refused."""
        operation: Callable[[], dict[str, Any] | None] = getattr(self, f"_{self._call.operation}")
        answer = operation()
        if answer is None:
            return None
        self.row.add_response_property(_CONTENT_TYPE, JSON)
        return json_text(answer).encode()

    def _create_response(self) -> None:
        call = self._call
        self._request = request = read_request(self._body, self._ids)
        state, said = empty(), []
        if call.previous is not None or call.in_conversation:
            state = self._read()
            if call.in_conversation:
                conversation_of(state, call.id)
            elif call.previous not in state["responses"] or state["responses"][call.previous]["deleted"]:
                raise _no_previous(call.previous or "")
            said = history(state, call.previous)
        conversation = state["conversation"]["id"] if call.in_conversation else None
        self._answer = ResponseAnswer(
            self._response_id, request, call.previous, conversation, self._ids, stores=self._stores(request)
        )
        self.row.data = {"body": request.completion(said)}
        self.row.encode = self._encode

    def _count_input_tokens(self) -> None:
        """Have the handler read the request, and answer with one token: it counts what it has read."""
        self._create_response()
        self.row.data["body"] = {
            **{name: value for name, value in self.row.data["body"].items() if name not in _OF_STREAMS},
            "max_completion_tokens": 1,
        }
        self.row.encode = self._encode_count

    @property
    def _response_id(self) -> str:
        return self._call.item

    @property
    def _ids(self) -> ItemIds:
        return ItemIds((self._sequence_id or "").removeprefix(SEQUENCE_PREFIX))

    def _stores(self, request: ResponseRequest) -> bool:
        return request.stores and self._sequence_id is not None

    def _get_response(self) -> dict[str, Any]:
        response: dict[str, Any] = response_of(self._read(), self._call.id)["response"]
        return response

    def _delete_response(self) -> dict[str, Any]:
        self._write(without_response(self._read(), self._call.id))
        return {"id": self._call.id, "object": "response", "deleted": True}

    def _list_input_items(self) -> dict[str, Any]:
        state, call = self._read(), self._call
        entry = response_of(state, call.id)
        before = [] if entry["parent"] is None else history(state, entry["parent"])
        return page([*before, *entry["input"]], call.limit, call.after, call.order)

    def _create_conversation(self) -> dict[str, Any]:
        fields = json_object(self._body)
        _refuse_others(fields, {"items", "metadata", "model"})
        items = [] if fields.get("items") is None else self._items(fields)
        conversation = {
            "id": self._call.id,
            "object": "conversation",
            "created_at": int(time.time()),
            "metadata": read_metadata(fields),
        }
        self._write(empty(conversation, items))
        return conversation

    def _get_conversation(self) -> dict[str, Any]:
        return conversation_of(self._read(), self._call.id)

    def _update_conversation(self) -> dict[str, Any]:
        fields = json_object(self._body)
        _refuse_others(fields, {"metadata"})
        state = self._read()
        conversation = conversation_of(state, self._call.id) | {"metadata": read_metadata(fields)}
        self._write(state | {"conversation": conversation})
        return conversation

    def _delete_conversation(self) -> dict[str, Any]:
        conversation_of(self._read(), self._call.id)
        self._end()
        return {"id": self._call.id, "object": "conversation.deleted", "deleted": True}

    def _create_items(self) -> dict[str, Any]:
        fields = json_object(self._body)
        _refuse_others(fields, {"items"})
        state = self._read()
        conversation_of(state, self._call.id)
        items = self._items(fields)
        self._write(state | {"items": [*state["items"], *items]})
        return page(items, len(items), "", "asc")

    def _list_items(self) -> dict[str, Any]:
        state, call = self._read(), self._call
        conversation_of(state, call.id)
        return page(state["items"], call.limit, call.after, call.order)

    def _get_item(self) -> dict[str, Any]:
        item: dict[str, Any] = self._items_but_one()[0]
        return item

    def _delete_item(self) -> dict[str, Any]:
        _, others = self._items_but_one()
        state = self._read()
        self._write(state | {"items": others})
        return conversation_of(state, self._call.id)

    def _items_but_one(self) -> tuple[Any, list[Any]]:
        """Return the item that the call names, and the others. Raises Failure: there is no such item."""
        state = self._read()
        conversation_of(state, self._call.id)
        named = [item for item in state["items"] if item["id"] == self._call.item]
        if not named:
            raise not_found("Item", self._call.item)
        return named[0], [item for item in state["items"] if item["id"] != self._call.item]

    def _items(self, fields: Mapping[str, Any]) -> list[Any]:
        given = fields.get("items")
        if not isinstance(given, list) or not 1 <= len(given) <= _MOST_ITEMS:
            raise refused(f"items has to be a list of 1 to {_MOST_ITEMS} items.", "items")
        return read_items(given, "items", self._ids)

    # After the handler

    def _encode(self, row: Row, value: Any, more: bool) -> Buffer:
        """Return what is sent for a result of the handler; the last one makes the response a part of the sequence."""
        assert self._answer is not None, "the handler got the request"
        assert self._request is not None, "the handler got the request"
        self._check_answered(row, value)
        if self._request.streams:
            row.add_response_property(_CONTENT_TYPE, EVENTS)
            body = self._answer.events(value, more=more)
        else:
            row.add_response_property(_CONTENT_TYPE, JSON)
            body = json_text(self._answer.whole(completion_of(value)))
        if not more:
            self._keep()
        return body.encode()

    def _check_answered(self, row: Row, value: Any) -> None:
        """Let the handler neither end the sequence nor refuse the request. Raises Failure: it has refused."""
        end = self._context.header_key_sequence_end
        row.get_response_headers().pop(end, None)  # a handler may end what it takes for a single request
        status = row.get_response_status_code() or 200
        if status >= 400:
            raise _handlers_failure(status, value)

    def _encode_count(self, row: Row, value: Any, more: bool) -> Buffer:
        """Return how many tokens the handler has read, and keep nothing."""
        self._check_answered(row, value)
        if self._call.is_new:
            self._end()
        tokens = (completion_of(value).get("usage") or {}).get("prompt_tokens")
        if not isinstance(tokens, int):
            raise RowFailure(501, "The model does not return how many tokens it has read (usage.prompt_tokens).")
        row.add_response_property(_CONTENT_TYPE, JSON)
        return json_text({"object": "response.input_tokens", "input_tokens": tokens}).encode()

    def _keep(self) -> None:
        assert self._answer is not None, "the handler has answered"
        assert self._request is not None, "the handler has answered"
        call, request = self._call, self._request
        if self._stores(request):
            # Another response may have joined the sequence meanwhile.
            cache = self._context.sequence_cache
            state = checked(cache[self._sequence_id]) if self._sequence_id in cache else empty()
            self._write(with_response(state, call.previous, request.given, self._answer.response()))
        elif call.is_new:
            self._end()


def _no_previous(response_id: str) -> RowFailure:
    details = {"param": "previous_response_id", "code": "previous_response_not_found"}
    return RowFailure(400, f"Previous response with id '{response_id}' not found.", details=details)


def _refuse_others(fields: Mapping[str, Any], known: set[str]) -> None:
    for name in fields:
        if name not in known:
            raise refused(f"{name} is not supported here; leave it out.", name, "unsupported_parameter")


def _handlers_failure(status: int, value: Any) -> RowFailure:
    """Return the failure that a handler has answered with: a text, or an error as OpenAI writes it."""
    try:
        error = (value if isinstance(value, dict) else json.loads(value))["error"]
        details = {"param": asked_as(error.get("param")), "code": error.get("code")}
        return RowFailure(status, str(error["message"]), details=details)
    except (ValueError, TypeError, LookupError, AttributeError):
        text = value.decode("utf-8", "replace") if isinstance(value, bytes | bytearray) else str(value)
        return RowFailure(status, text)
