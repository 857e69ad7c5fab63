"""The endpoint for OpenAI's Responses and Conversations, of models that declare ``openai: true``.

    POST /v1/responses                 GET, DELETE /v1/responses/{id}       GET /v1/responses/{id}/input_items
    POST /v1/responses/input_tokens
    POST /v1/conversations             GET, POST, DELETE /v1/conversations/{id}
    GET, POST /v1/conversations/{id}/items                GET, DELETE /v1/conversations/{id}/items/{item}

A conversation is a sequence of the model, and so is a response with all that continue it. An id says which model and
which sequence it is of: so any server that shares the store can answer. Workers do the rest
(`ts.apis.openai.responses_rows`); a handler sees chat completions.
"""

import hashlib
import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from torchserve_py.apis.openai.openai_endpoints import OPENAI_ERROR, OpenAIDialect, OpenAIEndpoints
from torchserve_py.base.bounded_json import UnreadableJson, read_member
from torchserve_py.core.serving.serving import ServedModel
from torchserve_py.endpoints.client_call import HttpCall
from torchserve_py.endpoints.failures import EndpointError, Failure
from torchserve_py.endpoints.openapi import EVENTS, OBJECT, Operation, Parameter
from torchserve_py.endpoints.requests import asks_for_stream
from torchserve_py.endpoints.responses import Answer
from torchserve_py.endpoints.routing import AfterBody, PathValues, Route
from torchserve_py.net.http1.request import Request
from ts.apis.openai.openai_calls import CALL_HEADER, OPENAI, SEQUENCE_PREFIX, ResponsesCall
from ts.protocol.media_types import JSON

_RESPONSE: Final = "resp_"
_CONVERSATION: Final = "conv_"
#: Hexadecimal digits of an id: of the model, of the sequence with these, and of a response within it.
_OF_MODEL, _OF_SEQUENCE, _OF_RESPONSE = 8, 32, 16
#: What a handler sees as the path of a new response.
_COMPLETIONS: Final = "v1/chat/completions"
_MOST_LISTED: Final = 100
#: Causes that say that a sequence is over: for OpenAI's clients what they ask for is not there.
_GONE: Final = frozenset({"sequence_unknown", "sequence_ended", "sequence_expired", "sequence_lost", "version_gone"})
_WHAT_KEEPS: Final = (
    "Its model-config.yaml needs three lines for that, for example sequenceBatching: true, sequenceMaxIdleMSec: 600000"
    " (milliseconds until a conversation without requests ends) and maxNumSequence: 1000 (conversations at a time)."
)
_LISTING: Final = (
    Parameter("limit", "How many items", "integer", default=20, least=1, most=_MOST_LISTED),
    Parameter("after", "The item before the first one"),
    Parameter("order", "From the latest, or from the first one", default="desc", choices=("asc", "desc")),
)


class ResponsesDialect(OpenAIDialect):
    """As of all paths of OpenAI's, but that what is over is not found."""

    def failure(self, failure: Failure, call: HttpCall | None = None) -> Answer:
        if failure.cause in _GONE:
            failure = failure._replace(status=404)
        return super().failure(failure, call)


DIALECT: Final = ResponsesDialect()


class ResponsesEndpoints(OpenAIEndpoints):
    """Passes calls to the workers of the model whose sequence they are about."""

    def routes(self) -> Iterator[Route]:
        one, items = "/v1/conversations/{conversation_id}", "/v1/conversations/{conversation_id}/items"
        response = "/v1/responses/{response_id}"
        yield self._route("POST", "/v1/responses", "create_response", "A response to a turn", self._create_response)
        yield self._route(
            *("POST", "/v1/responses/input_tokens", "count_input_tokens"),
            "How many tokens a request has",
            partial(self._create_response, operation="count_input_tokens"),
        )
        yield self._route("GET", response, "get_response", "A response that is kept")
        yield self._route("DELETE", response, "delete_response", "Forget a response")
        yield self._route("GET", f"{response}/input_items", "list_input_items", "What a response was given")
        yield self._route("POST", "/v1/conversations", "create_conversation", "Begin a conversation", self._begin)
        yield self._route("GET", one, "get_conversation", "A conversation")
        yield self._route("POST", one, "update_conversation", "Change the metadata of a conversation")
        yield self._route("DELETE", one, "delete_conversation", "Forget a conversation")
        yield self._route("POST", items, "create_items", "Add items to a conversation")
        yield self._route("GET", items, "list_items", "The items of a conversation")
        yield self._route("GET", f"{items}/{{item_id}}", "get_item", "An item of a conversation")
        yield self._route("DELETE", f"{items}/{{item_id}}", "delete_item", "Remove an item from a conversation")

    def _route(
        self,
        method: str,
        path: str,
        operation: str,
        description: str,
        run: Callable[[Request, bytes], HttpCall] | None = None,
    ) -> Route:
        streams = operation == "create_response"
        documented = Operation(
            f"openai_{operation}",
            f"{description}, of a model that declares OpenAI's interface",
            (200, "default"),
            parameters=_LISTING if operation.startswith("list_") else (),
            takes={JSON: OBJECT} if method == "POST" else None,
            gives={JSON: OBJECT, EVENTS: {"type": "string"}} if streams else {JSON: OBJECT},
            error=OPENAI_ERROR,
            needs_body=streams,
        )

        def reply(request: Request, values: PathValues) -> AfterBody:
            if run is not None:
                return lambda body: run(request, body)
            return lambda body: self._call(request, body, operation, values)

        return Route(path, reply, (method,), dialect=DIALECT, operations=(documented,))

    # What begins or continues something

    def _create_response(self, request: Request, body: bytes, operation: str = "create_response") -> HttpCall:
        members = {name: _member(body, name) for name in ("model", "previous_response_id", "conversation")}
        previous, conversation = members["previous_response_id"], members["conversation"]
        if isinstance(conversation, dict):
            conversation = conversation.get("id")
        if previous is not None and conversation is not None:
            raise _wrong("A response continues either previous_response_id or conversation.", "previous_response_id")
        name = members["model"]
        if conversation is not None:
            model, sequence = self._of_id(conversation, _CONVERSATION, "conversation", name)
            call = ResponsesCall(operation, conversation, None, True, _response_id(sequence))
        elif previous is not None:
            model, sequence = self._of_id(previous, _RESPONSE, "previous_response_id", name)
            new = _response_id(sequence)
            call = ResponsesCall(operation, new, previous, item=new)
        else:
            model = self.named(name if isinstance(name, str) else "")
            sequence = _new_sequence(model)
            new = _response_id(sequence)
            call = ResponsesCall(operation, new, item=new, is_new=True)
        return self._submit_call(request, body, model, sequence, call)

    def _begin(self, request: Request, body: bytes) -> HttpCall:
        """Begin a conversation, with the model that the body names, which OpenAI's clients send as ``extra_body``."""
        name = _member(body, "model")
        model = self.named(name if isinstance(name, str) else "")
        self._check_keeps(model, "model")
        sequence = _new_sequence(model)
        call = ResponsesCall("create_conversation", f"{_CONVERSATION}{sequence}", is_new=True)
        return self._submit_call(request, body, model, sequence, call)

    # What is about something that is there

    def _call(self, request: Request, body: bytes, operation: str, values: PathValues) -> HttpCall:
        response_id = values.get("response_id")
        if response_id is not None:
            name, kind, what = response_id, _RESPONSE, "Response"
        else:
            name, kind, what = values["conversation_id"], _CONVERSATION, "Conversation"
        found = self._find(name, kind)
        if found is None:
            raise EndpointError(Failure(404, "NotFound", f"{what} with id {name!r} not found.", "not_found"))
        model, sequence = found
        limit, after, order = _listing(request)
        call = ResponsesCall(operation, name, None, False, values.get("item_id", ""), limit, after, order)
        return self._submit_call(request, body, model, sequence, call)

    # Models and sequences

    def _find(self, name: Any, kind: str) -> tuple[ServedModel, str] | None:
        """Return the model and the sequence that an id is of; None if it is no such id, or of no model here."""
        if not isinstance(name, str) or not name.startswith(kind):
            return None
        digits = name.removeprefix(kind)
        length = _OF_SEQUENCE + (_OF_RESPONSE if kind == _RESPONSE else 0)
        if len(digits) != length or not set(digits) <= set("0123456789abcdef"):
            return None
        model = next((each for each in self.models.get().values() if digits.startswith(_digest(each))), None)
        return None if model is None else (model, digits[:_OF_SEQUENCE])

    def _of_id(self, name: Any, kind: str, param: str, model_name: Any) -> tuple[ServedModel, str]:
        """Return the model and the sequence of what a new response continues. Raises EndpointError: there is none."""
        found = self._find(name, kind)
        if found is None:
            if kind == _RESPONSE:
                code = "previous_response_not_found"
                raise _wrong(f"Previous response with id {name!r} not found.", param, code)
            raise EndpointError(Failure(404, "NotFound", f"Conversation with id {name!r} not found.", "not_found"))
        model, sequence = found
        named = self.models.get().get(model_name) if isinstance(model_name, str) else model
        if named is not None and named.name != model.name:
            raise _wrong(f"{param} is of the model {model.name!r}, and only that can continue it.", "model")
        self._check_keeps(model, param)
        return model, sequence

    def _check_keeps(self, model: ServedModel, param: str) -> None:
        if not model.is_stateful:
            message = f"The model {model.name!r} keeps no conversations. {_WHAT_KEEPS}"
            raise _wrong(message, param, "unsupported_parameter")

    def _submit_call(
        self, request: Request, body: bytes, model: ServedModel, sequence: str, call: ResponsesCall
    ) -> HttpCall:
        headers = ((CALL_HEADER, call.encoded()), ("url_path", _COMPLETIONS), ("explain", "False"))
        submitted = self.context.call_of(request, DIALECT, model, headers, OPENAI)
        if model.is_stateful:
            submitted.sequence = self.sequences.of_values(f"{SEQUENCE_PREFIX}{sequence}", call.is_new or None, None)
            submitted.headers = (*submitted.headers, *submitted.sequence.headers)
        if self.comment_interval and asks_for_stream(body):
            submitted.comment_interval = self.comment_interval
        return self.context.submit(submitted, body)


def _digest(model: ServedModel) -> str:
    return hashlib.sha256(model.name.encode()).hexdigest()[:_OF_MODEL]


def _new_sequence(model: ServedModel) -> str:
    return _digest(model) + secrets.token_hex((_OF_SEQUENCE - _OF_MODEL) // 2)


def _response_id(sequence: str) -> str:
    return f"{_RESPONSE}{sequence}{secrets.token_hex(_OF_RESPONSE // 2)}"


def _member(body: bytes, name: str) -> Any:
    try:
        return read_member(body, name)
    except UnreadableJson:
        return None  # the worker says what is wrong with the body


def _listing(request: Request) -> tuple[int, str, str]:
    """Return which part of a list a query asks for. Raises EndpointError: a parameter is wrong."""
    limit, order = request.parameter("limit") or "20", request.parameter("order") or "desc"
    if not (limit.isascii() and limit.isdecimal() and 1 <= int(limit[:4]) <= _MOST_LISTED):
        raise _wrong(f"limit is {limit[:20]!a}; a whole number, 1 to {_MOST_LISTED} is right.", "limit")
    if order not in ("asc", "desc"):
        raise _wrong(f"order is {order[:20]!a}; 'asc' or 'desc' is right.", "order")
    return int(limit), request.parameter("after") or "", order


def _wrong(message: str, param: str, code: str | None = None) -> EndpointError:
    details: Mapping[str, str | None] = {"param": param, "code": code}
    return EndpointError(Failure(400, "BadRequestException", message, details=json.dumps(details).encode()))
