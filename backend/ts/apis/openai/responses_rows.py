"""Rows of OpenAI's Responses and Conversations, for handlers that answer chat completions.

A handler sees a response as a chat completion with the whole history, which comes from its sequence; its answer becomes
the response, and joins the history. Everything else, such as a look at a conversation, is answered without the handler.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias
from weakref import WeakValueDictionary

from ts.apis.openai.background_response import Change, append, cancel, claim, events, read_work
from ts.apis.openai.compaction import asked_for, compacted
from ts.apis.openai.completion_chunks import UNREADABLE, ChunkReader, Replay
from ts.apis.openai.conversation_state import (
    BEGUN,
    CONVERSATION,
    ITEMS,
    NO_MESSAGES,
    RESPONSE,
    ConversationState,
    Entry,
    Item,
    Messages,
    checked,
    entry_of,
    not_found,
    page,
    refused,
)
from ts.apis.openai.openai_calls import (
    CALL_HEADER,
    FORK_HEADER,
    ITEMS_EVENT,
    RUN_HEADER,
    SEQUENCE_PREFIX,
    ResponsesCall,
)
from ts.apis.openai.response_answers import IN_PROGRESS, ResponseAnswer, completion_of, ended, head_of, usage_of
from ts.apis.openai.response_items import ItemIds, messages_of, read_items
from ts.apis.openai.response_requests import ResponseRequest, asked_as, json_object, read_metadata, read_request
from ts.context import Context
from ts.jobs.errors import HandlerFailed, RowFailure
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
    running: _Running = WeakValueDictionary()
    has_own_states = bool(declared.get("function", {}).get("stateful"))
    return lambda wire_row: _Conversation(context, wire_row, running, has_own_states=has_own_states).row


#: The calls of sequences that are making a response.
_Running: TypeAlias = "WeakValueDictionary[str, _Conversation]"


class _Conversation:
    """The sequence of one call, which is read and written while the call is answered."""

    def __init__(self, context: Context, wire_row: InferRow, running: _Running, *, has_own_states: bool) -> None:
        """Read a row. Raises Failure: the model keeps no sequences, and the call is refused.

        With ``has_own_states`` the model keeps something else in its sequences.
        """
        self._context = context
        self._running = running
        self._has_own_states = has_own_states
        self._body = wire_row.body
        self.row = Row(wire_row.job_id, {}, wire_row.headers)
        self._call = ResponsesCall.decoded(self.row.get_request_property(CALL_HEADER))
        self._sequence_id: str | None = None
        if context.sequence_cache is not None:
            self._sequence_id = self.row.get_request_property(context.header_key_sequence_id)
        #: The response that is made, without output.
        self._head: dict[str, Any] = {}
        #: It while it is made of a stream.
        self._answer: ResponseAnswer | None = None
        self._chunks = ChunkReader()
        #: What earlier runs of a response in the background have made: the pieces, and how many tokens.
        self._replay = Replay(())
        self._committed = 0
        self._request: ResponseRequest | None = None
        #: The items that lead to a new response.
        self._past: list[Item] = []
        if self._sequence_id is None:
            self._prepare()
        else:
            self.row.prepare = self._prepare

    # The state of the sequence

    def _read(self) -> ConversationState:
        """Return the state of the sequence. Raises Failure: there is none that could be continued."""
        call = self._call
        is_known = self._sequence_id is not None and not self.row.begins_sequence
        state = self._context.sequence_cache.look_at(self._sequence_id) if is_known else None
        if state is None:
            if call.previous is not None:
                raise _no_previous(call.previous)
            about_response = call.id.startswith("resp_")
            raise not_found("Response" if about_response else "Conversation", call.id)
        return checked(state)

    def _conversation(self) -> tuple[ConversationState, Mapping[str, Any]]:
        """Return the state and the conversation in it. Raises Failure: it is none."""
        state = self._read()
        if state.conversation is None:
            raise not_found("Conversation", self._call.id)
        return state, state.conversation

    def _check_keeps(self, param: str) -> None:
        """Raise Failure: the model keeps a state of its own where a conversation would be."""
        if self._has_own_states:
            why = "The model keeps a state of its own for each sequence, so it keeps no responses and conversations"
            raise refused(f"{why}; send store: false, or ask for chat completions.", param, "unsupported_parameter")

    def _append(self, *entries: Entry) -> None:
        """Change the state; the log gets the changes. Another response may have joined the sequence meanwhile."""
        cache, sequence_id = self._context.sequence_cache, self._sequence_id
        state = cache.look_at(sequence_id)
        state = ConversationState() if state is None else checked(state)
        for entry in entries:
            cache[sequence_id] = state = state.after(entry)
            cache.append(sequence_id, entry)

    def _rewrite(self, state: ConversationState) -> None:
        """Change the state to one without something, which leaves the store as well."""
        self._context.sequence_cache[self._sequence_id] = state
        self._context.sequence_cache.rewrite(self._sequence_id)

    def _end(self) -> None:
        if self._sequence_id is not None:
            self.row.add_response_property(self._context.header_key_sequence_end, self._sequence_id)

    # Before the handler

    def _prepare(self) -> Buffer | None:
        """Answer a call without the handler, or make what the handler gets. Raises Failure: the call is refused."""
        operation: Callable[[], dict[str, Any] | list[Item] | str | None]
        operation = getattr(self, f"_{self._call.operation}")
        answer = operation()
        if answer is None:
            return None
        if isinstance(answer, str):
            self.row.add_response_property(_CONTENT_TYPE, EVENTS)
            return answer.encode()
        self.row.add_response_property(_CONTENT_TYPE, JSON)
        return json_text(answer).encode()

    def _create_response(self) -> list[Item] | dict[str, Any] | str | None:
        """Make what the handler gets; or return what leads to a response that is continued already.

        A response that is to be made in the background is returned as it is then; one for which nothing is generated,
        as its events.
        """
        call, body, state = self._call, bytes(self._body), None
        self._past = json.loads(body[: call.history]) if call.history else []
        may_be_empty = call.operation == "compact_response" and (call.in_conversation or call.previous is not None)
        self._request = request = read_request(body[call.history :], self._ids, needs_input=not may_be_empty)
        conversation = None
        if call.in_conversation:
            state, conversation = self._conversation()
            self._past = list(state.items.values())
        elif call.previous is not None and not call.is_new:
            state = self._read()
            if call.previous not in state.responses:
                raise _no_previous(call.previous)
            if state.responses[call.previous]["response"]["status"] == IN_PROGRESS:
                raise refused(f"Previous response with id '{call.previous}' is in progress.", "previous_response_id")
            self._past = state.history(call.previous)
            if call.operation == "create_response" and (state.latest != call.previous or self._is_busy):
                self.row.add_response_property(FORK_HEADER, "true")
                return self._past
        stores = request.stores and self._sequence_id is not None
        if stores and call.operation == "create_response":
            self._check_keeps("store")
        about = None if conversation is None else conversation["id"]
        self._head = head_of(call.item, request, call.previous, about, stores=stores)
        if request.fields.get("background") and call.operation == "create_response":
            return self._begin_in_background(request)
        if not call.generates:
            answer = ResponseAnswer(self._head, self._ids)
            response = ended(self._head, None, None)
            begin, end = answer.begin(), answer.end_without_output(response)
            return begin + self._keep(response | {"output": []}) + end
        if self._sequence_id is not None and call.operation == "create_response":
            self._running[self._sequence_id] = self
        self.row.data = {"body": request.completion(self._past, self._messages(state))}
        self.row.encode = self._encode
        return None

    def _messages(self, state: ConversationState | None) -> Messages:
        """Return the messages of what leads to the response, which the state keeps; none unless that is all it has."""
        if state is None or len(self._past) < len(state.items):
            return NO_MESSAGES
        state.messages = messages_of(self._past, state.messages)
        return state.messages

    def _begin_in_background(self, request: ResponseRequest) -> dict[str, Any]:
        if not self._head["store"]:
            raise refused("background is true, which needs store: true and a model that keeps sequences.", "background")
        fields = {"seed": secrets.randbits(31), **request.fields, "stream": True}
        made = {"response": self._head, "input": request.given, "output": []}
        past = [entry_of(ITEMS, self._past)] if self._call.history else []
        self._append(*past, entry_of(BEGUN, made | {"request": {**fields, "input": []}}))
        self.row.add_response_property(RUN_HEADER, "true")
        return self._head

    def _claim_run(self) -> dict[str, Any]:
        return self._changed(claim(self._read(), self._call.id, json_object(self._body)["run"]))

    def _append_part(self) -> dict[str, Any]:
        return self._changed(append(self._read(), self._call.id, json_object(self._body), self._ids))

    def _cancel_response(self) -> dict[str, Any]:
        return self._changed(cancel(self._read(), self._call.id, self._ids))

    def _get_events(self) -> dict[str, Any]:
        return events(self._read(), self._call.id, self._call.starting_after, self._ids)

    def _changed(self, change: Change) -> dict[str, Any]:
        self._append(*change.entries)
        return change.answer

    def _run_response(self) -> None:
        """Make what the handler gets for a response in the background.

        A handler that knows ``committed_tokens`` continues behind them, and sends again what they say; each other one
        begins again.
        """
        work = read_work(bytes(self._body))
        request = read_request(json.dumps(work["request"]).encode(), self._ids)
        self._replay, self._committed = Replay(work["made"]), len(work["tokens"])
        self.row.data = {"body": request.completion(work["history"]), "committed_tokens": work["tokens"]}
        self.row.encode = self._encode_pieces

    def _encode_pieces(self, row: Row, value: Any, more: bool) -> Buffer:
        """Return what is new of the generation, a line, and finally how it has ended."""
        self._check_answered(row, value)
        row.add_response_property(_CONTENT_TYPE, JSON)
        pieces = [new for piece in self._chunks.read(value) if (new := self._replay.rest(piece)) is not None]
        tokens, end = self._chunks.tokens[self._committed :], None
        self._committed += len(tokens)
        if not more:
            self._replay.end()
            end = {"reason": self._chunks.reason, "usage": self._chunks.usage}
            self._end()
        elif not pieces and not tokens:
            return b""
        return f"{json_text({'pieces': pieces, 'tokens': tokens, 'end': end})}\n".encode()

    @property
    def _is_busy(self) -> bool:
        """Whether the sequence has another response that is being made."""
        other = self._running.get(self._sequence_id or "")
        return other is not None and not other.row.done

    def _count_input_tokens(self) -> None:
        """Have the handler read the request, and answer with one token: it counts what it has read."""
        self._create_response()
        self.row.data["body"] = {
            **{name: value for name, value in self.row.data["body"].items() if name not in _OF_STREAMS},
            "max_completion_tokens": 1,
        }
        self.row.encode = self._encode_count

    def _compact_response(self) -> None:
        """Have the handler sum up what the request continues and has."""
        self._create_response()
        if self._request is not None and self._request.streams:
            raise refused("stream is true; a compaction is returned as a whole.", "stream", "unsupported_parameter")
        self.row.data["body"] = asked_for(self.row.data["body"])
        self.row.encode = self._encode_compaction

    @property
    def _ids(self) -> ItemIds:
        return ItemIds((self._sequence_id or "").removeprefix(SEQUENCE_PREFIX))

    def _get_response(self) -> dict[str, Any]:
        response = self._read().response(self._call.id)
        if response["status"] == IN_PROGRESS:
            self.row.add_response_property(RUN_HEADER, "true")
        return response

    def _delete_response(self) -> dict[str, Any]:
        state = self._read().without_response(self._call.id)
        self._rewrite(state)
        if state.conversation is None and not state.responses:
            self._end()
        return {"id": self._call.id, "object": "response", "deleted": True}

    def _list_input_items(self) -> dict[str, Any]:
        call = self._call
        return page(self._read().before(call.id), call.limit, call.after, call.order)

    def _get_items(self) -> list[Item]:
        """Return items that a request refers to. Raises Failure: one is not there."""
        items = self._read().items
        for name in (names := self._call.item.split(",")):
            if name not in items:
                raise refused(f"Item with id {name!r} not found.", "input")
        return [items[name] for name in names]

    def _create_conversation(self) -> dict[str, Any]:
        self._check_keeps("model")
        fields = json_object(self._body)
        _refuse_others(fields, {"items", "metadata", "model"})
        items = [] if fields.get("items") in (None, []) else self._items(fields)
        conversation = {
            "id": self._call.id,
            "object": "conversation",
            "created_at": int(time.time()),
            "metadata": read_metadata(fields),
        }
        self._append(entry_of(CONVERSATION, conversation), entry_of(ITEMS, items))
        return conversation

    def _get_conversation(self) -> dict[str, Any]:
        return dict(self._conversation()[1])

    def _update_conversation(self) -> dict[str, Any]:
        fields = json_object(self._body)
        _refuse_others(fields, {"metadata"})
        conversation = {**self._conversation()[1], "metadata": read_metadata(fields)}
        self._append(entry_of(CONVERSATION, conversation))
        return conversation

    def _delete_conversation(self) -> dict[str, Any]:
        self._conversation()
        self._rewrite(ConversationState())
        self._end()
        return {"id": self._call.id, "object": "conversation.deleted", "deleted": True}

    def _create_items(self) -> dict[str, Any]:
        fields = json_object(self._body)
        _refuse_others(fields, {"items"})
        self._conversation()
        items = self._items(fields)
        self._append(entry_of(ITEMS, items))
        return page(items, len(items), "", "asc")

    def _keep_items(self) -> dict[str, Any]:
        """Keep items of a realtime session, which have ids; ``order`` has all ids if they belong between others."""
        fields = json_object(self._body)
        if self._call.is_new:
            about = {"object": "conversation", "created_at": int(time.time()), "metadata": {}}
            self._append(entry_of(CONVERSATION, {"id": self._call.id, **about}), entry_of(ITEMS, fields["items"]))
            return {}
        state = self._conversation()[0]
        if "order" not in fields:
            self._append(entry_of(ITEMS, fields["items"]))
            return {}
        items = state.after(entry_of(ITEMS, fields["items"])).items
        ordered = {name: items[name] for name in (*fields["order"], *items) if name in items}
        self._rewrite(ConversationState(state.conversation, ordered, state.responses))
        return {}

    def _list_items(self) -> dict[str, Any]:
        state, call = self._conversation()[0], self._call
        return page(list(state.items.values()), call.limit, call.after, call.order)

    def _get_item(self) -> dict[str, Any]:
        return self._state_with_item()[0].items[self._call.item]

    def _delete_item(self) -> dict[str, Any]:
        state, conversation = self._state_with_item()
        self._rewrite(state.without_item(self._call.item))
        return dict(conversation)

    def _state_with_item(self) -> tuple[ConversationState, Mapping[str, Any]]:
        """Return the state and the conversation. Raises Failure: it has no item that the call names."""
        state, conversation = self._conversation()
        if self._call.item not in state.items:
            raise not_found("Item", self._call.item)
        return state, conversation

    def _items(self, fields: Mapping[str, Any]) -> list[Any]:
        given = fields.get("items")
        if not isinstance(given, list) or not 1 <= len(given) <= _MOST_ITEMS:
            raise refused(f"items has to be a list of 1 to {_MOST_ITEMS} items.", "items")
        return read_items(given, "items", self._ids)

    # After the handler

    def _encode(self, row: Row, value: Any, more: bool) -> Buffer:
        """Return what is sent for a result of the handler; the last one makes the response a part of the sequence."""
        assert self._request is not None, "the handler got the request"
        self._check_answered(row, value)
        if not self._request.streams:
            row.add_response_property(_CONTENT_TYPE, JSON)
            response = ResponseAnswer(self._head, self._ids).whole(completion_of(value))
            self._keep(response)
            return json_text(response).encode()
        row.add_response_property(_CONTENT_TYPE, EVENTS)
        begin = ""
        if self._answer is None:
            self._answer = ResponseAnswer(self._head, self._ids)
            begin = self._answer.begin()
        parts = [begin, *map(self._answer.add, self._chunks.read(value))]
        if not more:
            response = ended(self._head, self._chunks.reason, self._chunks.usage)
            end = self._answer.end(response)
            parts += [self._keep(response | {"output": self._answer.items}), end]
        return "".join(parts).encode()

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

    def _encode_compaction(self, row: Row, value: Any, more: bool) -> Buffer:
        """Return what takes the place of the items, and keep nothing."""
        assert self._request is not None, "the handler got the request"
        self._check_answered(row, value)
        if self._call.is_new:
            self._end()
        completion, items = completion_of(value), [*self._past, *self._request.given]
        try:
            output = compacted(items, completion, self._ids.new("cmp"))
        except UNREADABLE as error:
            raise HandlerFailed("The handler did not answer with a chat completion.") from error
        made = {"id": self._call.item, "object": "response.compaction", "created_at": int(time.time())}
        row.add_response_property(_CONTENT_TYPE, JSON)
        return json_text({**made, "output": output, "usage": usage_of(completion.get("usage"))}).encode()

    def _keep(self, response: Mapping[str, Any]) -> str:
        """Make a response a part of the sequence, if it is to be; else return its items for the server, if they are."""
        assert self._request is not None, "the request was read"
        if response["store"]:
            about = {name: value for name, value in response.items() if name != "output"}
            made = {"response": about, "input": self._request.given, "output": response["output"]}
            past = [entry_of(ITEMS, self._past)] if self._call.history else []
            self._append(*past, entry_of(RESPONSE, made))
            return ""
        if self._call.is_new:
            self._end()
        if not self._call.returns_items:
            return ""
        before = [] if self._call.history else self._past
        items = {"id": response["id"], "items": [*before, *self._request.given, *response["output"]]}
        return f"event: {ITEMS_EVENT}\ndata: {json_text(items)}\n\n"


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
