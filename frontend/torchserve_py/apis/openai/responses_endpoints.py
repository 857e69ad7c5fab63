"""The endpoint for OpenAI's Responses and Conversations, of models that declare ``openai: true``.

    POST /v1/responses                 GET, DELETE /v1/responses/{id}       GET /v1/responses/{id}/input_items
    POST /v1/responses/input_tokens    POST /v1/responses/compact           GET /v1/responses (`responses_socket`)
    POST /v1/conversations             GET, POST, DELETE /v1/conversations/{id}
    GET, POST /v1/conversations/{id}/items                GET, DELETE /v1/conversations/{id}/items/{item}

A conversation is a sequence of the model, and so is a response with those that continue it. An id has the model, the
key that made it, and the sequence: so any server that shares the store can answer. Workers do the rest
(`ts.apis.openai.responses_rows`); a handler sees chat completions.
"""

import json
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias

from torchserve_py.apis.live.session_endpoints import SUBPROTOCOL, offered_by
from torchserve_py.apis.openai import owned_ids
from torchserve_py.apis.openai.background_runs import BackgroundResponse, StepRefused, runs_of
from torchserve_py.apis.openai.openai_endpoints import OPENAI_ERROR, OpenAIEndpoints
from torchserve_py.apis.openai.owned_ids import CONVERSATION, RESPONSE
from torchserve_py.apis.openai.responses_dialect import DIALECT, IDEMPOTENCY, PREVIOUS, bad_field, no_previous
from torchserve_py.apis.openai.responses_socket import ResponsesSocket
from torchserve_py.apis.openai.sequence_turns import SequenceTurns
from torchserve_py.apis.openai.turn_call import TurnCall
from torchserve_py.base.bounded_json import UnreadableJson, read_member
from torchserve_py.base.causes import Cause
from torchserve_py.core.serving.serving import ServedModel
from torchserve_py.endpoints.client_call import HttpCall
from torchserve_py.endpoints.credentials import Credential, without_keys
from torchserve_py.endpoints.failures import NOT_FOUND, EndpointError, Failure, bad_request, failure_of_job
from torchserve_py.endpoints.openapi import EVENTS, OBJECT, Operation, Parameter
from torchserve_py.endpoints.requests import asks_for_stream
from torchserve_py.endpoints.responses import ALREADY_SENT, EVENTS_TYPE, JSON_TYPE, AlreadySent, Answer
from torchserve_py.endpoints.routing import AfterBody, EndpointContext, PathValues, Reply, Route
from torchserve_py.endpoints.sequences import CLAIM_NAMES, NO_CLAIM, StepClaim, check_headers_once, claim_of
from torchserve_py.net.http1.request import STREAMING, Request
from torchserve_py.net.websocket import WebSocket
from torchserve_py.ops.browser_guard.browser_guard import check_origin
from ts.apis.openai.openai_calls import CALL_HEADER, OPENAI, SEQUENCE_PREFIX, ResponsesCall
from ts.protocol.media_types import JSON
from ts.protocol.messages import REQUEST_ID

_REFERENCE: Final = "item_reference"
#: What a handler sees as the path of a new response.
_COMPLETIONS: Final = "v1/chat/completions"
_MOST_LISTED: Final = 100
_WHAT_KEEPS: Final = (
    "Its model-config.yaml needs three lines for that, for example sequenceBatching: true, sequenceMaxIdleMSec: 600000"
    " (milliseconds until a conversation without requests ends) and maxNumSequence: 1000 (conversations at a time)."
)
_LISTING: Final = (
    Parameter("limit", "How many items", "integer", default=20, least=1, most=_MOST_LISTED),
    Parameter("after", "The item before the first one"),
    Parameter("order", "From the latest, or from the first one", default="desc", choices=("asc", "desc")),
)
#: The header in which a browser repeats the last ``id`` of a stream that has broken off. It asks for the same URL, so
#: this is newer than a number there.
_LAST_EVENT: Final = "Last-Event-ID"
_EVENTS: Final = (
    Parameter("stream", "Whether the events are sent", "boolean", default=False),
    Parameter("starting_after", "The number of the event before the first one", "integer", least=0),
    Parameter(_LAST_EVENT, "The same; it counts more than starting_after", "integer", least=0, place="header"),
)
#: How often it is looked whether another server has appended to a response (seconds).
_LOOK_SECONDS: Final = 1.0
#: Digits of the number of an event.
_LONGEST_NUMBER: Final = 10


#: A call that makes a response, or what waits for its turn or for items, and then comes to one.
CreateReply: TypeAlias = TurnCall | Coroutine[Any, Any, TurnCall]
#: A request for a response whose body has all of it.
CREATE: Final = ResponsesCall("create_response", "")


class ResponsesEndpoints(OpenAIEndpoints):
    """Passes calls to the workers of the model whose sequence they are about."""

    def __init__(self, context: EndpointContext) -> None:
        super().__init__(context)
        self._turns = SequenceTurns()
        self._runs = context.shared(runs_of)
        self._sockets: set[ResponsesSocket] = set()
        context.on_drain.append(self._close_sockets)

    def routes(self) -> Iterator[Route]:
        one, items = "/v1/conversations/{conversation_id}", "/v1/conversations/{conversation_id}/items"
        response = "/v1/responses/{response_id}"
        yield self._route("POST", "/v1/responses", "create_response", "A response to a turn", self._create_response)
        for path, operation, description in (
            ("input_tokens", "count_input_tokens", "How many tokens a request has"),
            ("compact", "compact_response", "A summary that takes the place of a history"),
        ):
            run = partial(self._create_response, call=ResponsesCall(operation, ""))
            made = self._route("POST", f"/v1/responses/{path}", operation, description, run)
            yield replace(made, applies=lambda request, values: True)  # it is no id of a response
        yield Route("/v1/responses", self._open_socket, ("GET",), dialect=DIALECT)
        yield self._route(
            "GET", response, "get_response", "A response that is kept, or its events", take=self._get_response
        )
        yield self._route("POST", f"{response}/cancel", "cancel_response", "End a response in the background")
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
        run: Callable[[Request, bytes], Reply] | None = None,
        take: Callable[[Request, PathValues], Reply] | None = None,
    ) -> Route:
        streams = operation in ("create_response", "get_response")
        documented = Operation(
            f"openai_{operation}",
            f"{description}, of a model that declares OpenAI's interface",
            (200, "default") if take is None else (200, 204, "default"),
            parameters=_LISTING if operation.startswith("list_") else _EVENTS if take is not None else (),
            takes={JSON: OBJECT} if method == "POST" else None,
            gives={JSON: OBJECT, EVENTS: {"type": "string"}} if streams else {JSON: OBJECT},
            error=OPENAI_ERROR,
            needs_body=operation == "create_response",
        )

        def reply(request: Request, values: PathValues) -> AfterBody:
            if take is not None:
                return lambda body: take(request, values)
            if run is not None:
                return lambda body: run(request, body)
            return lambda body: self._call(request, body, operation, values)

        return Route(path, reply, (method,), dialect=DIALECT, operations=(documented,), takes_json=True)

    # What begins or continues something

    def _create_response(self, request: Request, body: bytes, call: ResponsesCall = CREATE) -> CreateReply:
        """Let a request for a response begin or continue something; ``call`` has what is no part of the body."""
        if _REFERENCE.encode() in body:
            return self._create_with_references(request, body, call)
        return self._create(request, body, call)

    def _create(self, request: Request, body: bytes, call: ResponsesCall) -> CreateReply:
        asked = body[call.history :]
        members = {name: _member(asked, name) for name in ("model", PREVIOUS, "conversation")}
        previous, conversation = members[PREVIOUS], members["conversation"]
        if isinstance(conversation, dict):
            conversation = conversation.get("id")
        if previous is not None and conversation is not None:
            raise _wrong("A response continues either previous_response_id or conversation.", PREVIOUS)
        name = members["model"]
        if conversation is not None:
            model, sequence = self._of_id(request, conversation, CONVERSATION, "conversation", name)
            call = replace(call, id=conversation, in_conversation=True, item=owned_ids.new_response(sequence))
            return self._submit_response(request, body, model, sequence, call)
        if previous is not None and not call.history:
            model, sequence = self._of_id(request, previous, RESPONSE, PREVIOUS, name)
            new = owned_ids.new_response(sequence)
            call = replace(call, id=new, previous=previous, item=new)
            return self._in_turn(request, body, model, sequence, call)
        model = self.named(name if isinstance(name, str) else "")
        sequence = self._new_sequence(request, model)
        new = owned_ids.new_response(sequence)
        call = replace(call, id=new, previous=previous, item=new, is_new=True)
        return self._submit_response(request, body, model, sequence, call)

    def _in_turn(
        self, request: Request, body: bytes, model: ServedModel, sequence: str, call: ResponsesCall
    ) -> CreateReply:
        """Let a response continue another one, in its sequence or, if another does so already, in one of its own."""

        def submit() -> TurnCall:
            return self._submit_response(request, body, model, sequence, call, lambda: self._turns.pass_on(sequence))

        async def wait() -> TurnCall:
            await self._turns.wait(sequence)
            return submit()

        return submit() if self._turns.take(sequence) else wait()

    def _submit_response(
        self,
        request: Request,
        body: bytes,
        model: ServedModel,
        sequence: str,
        call: ResponsesCall,
        passed: Callable[[], None] | None = None,
    ) -> TurnCall:
        """Submit a call about a response, which may become another one, or a run in the background."""
        claim = _claim_of(request, sequence, is_new=call.is_new)
        made = self._call_of(request, body, model, sequence, call, claim, TurnCall)
        assert isinstance(made, TurnCall), "a call of that kind"
        made.passed = passed
        made.fork = lambda history: self._fork(request, body, model, sequence, call, history)
        made.run = lambda part: self._made_later(request, body[call.history :], model, sequence, bytes(part.body))
        try:
            self.context.submit(made, body)
        except Exception:
            made.pass_on()
            raise
        return made

    def _fork(
        self, request: Request, body: bytes, model: ServedModel, sequence: str, call: ResponsesCall, history: bytes
    ) -> TurnCall:
        """Let a response begin a sequence of its own, with what leads to it."""
        own = self._new_sequence(request, model, sequence)
        new = owned_ids.new_response(own)
        forked = replace(call, id=new, item=new, is_new=True, history=len(history))
        return self._submit_response(request, history + body, model, own, forked)

    # In the background

    def _made_later(self, request: Request, body: bytes, model: ServedModel, sequence: str, response: bytes) -> Reply:
        """Make sure that a response is made; return it as it is, or its events if the request asks for a stream."""
        made = self._background(request, model, sequence, json.loads(response)["id"])
        self._runs.ensure(made)
        if asks_for_stream(body):
            return self._events(request, model, made, -1)
        return Answer(200, response, (JSON_TYPE,))

    def _background(self, request: Request, model: ServedModel, sequence: str, name: str) -> BackgroundResponse:
        account = self.context.account(request, model.name)
        return BackgroundResponse(name, sequence, model, self.serving, self.sequences, account)

    def _get_response(self, request: Request, values: PathValues) -> Reply:
        model, sequence = self._found(request, values)
        name = values["response_id"]
        if request.parameter("stream") == "true":
            param, after = _LAST_EVENT, request.headers.get(_LAST_EVENT)
            if not after:
                param, after = "starting_after", request.parameter("starting_after") or "-1"
            if not (after == "-1" or (after.isascii() and after.isdecimal() and len(after) < _LONGEST_NUMBER)):
                raise _wrong(f"{param} is {after[:20]!a}; the number of an event is right.", param)
            return self._events(request, model, self._background(request, model, sequence, name), int(after))
        return self._submit_response(request, b"", model, sequence, ResponsesCall("get_response", name))

    async def _events(
        self, request: Request, model: ServedModel, response: BackgroundResponse, after: int
    ) -> Answer | AlreadySent:
        """Send the events of a response from a number on, as they are appended, while the key is good."""
        credential: Credential | None = request.credential
        try:
            answer = await response.step(response.operation("get_events", after))
        except StepRefused as refusal:
            raise EndpointError(_failure_of(refusal, response)) from None
        if answer["over"] and not answer["events"] and request.headers.get(_LAST_EVENT):
            return Answer(204)  # else a browser would ask again and again
        self.context.responses.start_stream(request, Answer(200, b"", (EVENTS_TYPE,)))
        while request.stage is STREAMING:
            if answer["events"] or answer["over"]:
                request.send([(answer["events"].encode(),)], last=answer["over"])
            if answer["over"]:
                break
            self._runs.ensure(response)
            if request.connection.pace.is_reader_slow:
                await request.connection.pace.drained()
            await self._runs.wait(response.id, _LOOK_SECONDS)
            try:
                if credential is not None:
                    credential.check(model.name)
                answer = await response.step(response.operation("get_events", max(after, answer["last"])))
            except (EndpointError, StepRefused) as error:
                if isinstance(error, StepRefused) and await response.has_loaded_since(error):
                    answer["events"] = ""
                    continue
                failure = error.failure if isinstance(error, EndpointError) else _failure_of(error, response)
                request.send([DIALECT.last_frame(failure)], last=True)
                break
        return ALREADY_SENT

    # References

    async def _create_with_references(self, request: Request, body: bytes, call: ResponsesCall) -> TurnCall:
        """Put the items in the place of references to them; a conversation or a response may have them."""
        history, asked = body[: call.history], body[call.history :]
        try:
            fields = json.loads(asked)
            given = fields["input"]
            places = [place for place, item in enumerate(given) if item.get("type") == _REFERENCE]
        except (ValueError, TypeError, LookupError, AttributeError):
            return await self._created(request, body, call)  # the worker returns what is wrong with it
        by_sequence: dict[str, list[int]] = {}
        for place in places:
            by_sequence.setdefault(owned_ids.sequence_of_item(given[place].get("id")), []).append(place)
        for sequence, its in by_sequence.items():
            found = await self._items(request, sequence, [str(given[place].get("id")) for place in its])
            for place, item in zip(its, found, strict=True):
                given[place] = item
        return await self._created(request, history + json.dumps(fields).encode(), call)

    async def _created(self, request: Request, body: bytes, call: ResponsesCall) -> TurnCall:
        made = self._create(request, body, call)
        return made if isinstance(made, TurnCall) else await made

    # Over a WebSocket

    def _open_socket(self, request: Request, values: PathValues) -> Coroutine[Any, Any, AlreadySent]:
        """Accept a handshake. Raises EndpointError: it is none, its page is of another origin, the server drains."""
        check_origin(request, self.settings)
        if self.context.is_draining:
            raise EndpointError(failure_of_job(Cause.draining, "", None))
        socket = WebSocket(request, self.max_body, compress=False)
        if not socket.is_possible:
            raise bad_request("GET /v1/responses is the handshake of a WebSocket (version 13).")
        return self._serve_socket(request, socket)

    async def _serve_socket(self, request: Request, socket: WebSocket) -> AlreadySent:
        session = ResponsesSocket(socket, self, request)
        credential: Credential | None = request.credential
        forget = None if credential is None else credential.hold(None, session.lose_right)
        self._sockets.add(session)
        try:
            socket.accept([(SUBPROTOCOL, name) for name in without_keys(offered_by(request))[:1]])
            await session.run()
        finally:
            self._sockets.discard(session)
            if forget is not None:
                forget()
        return ALREADY_SENT

    async def create(self, request: Request, body: bytes, call: ResponsesCall) -> TurnCall:
        """Let a turn of a WebSocket make a response; see `_create_response`. Raises EndpointError: it is refused."""
        made = self._create_response(request, body, call)
        return made if isinstance(made, TurnCall) else await made

    def _close_sockets(self) -> None:
        for session in self._sockets:
            session.close_later()

    async def _items(self, request: Request, sequence: str, names: list[str]) -> list[Any]:
        """Return items of a sequence. Raises EndpointError: one is not there."""
        model = self._model_of(request, sequence)
        if model is None:
            raise _wrong(f"Item with id {names[0]!r} not found.", "input")
        call = ResponsesCall("get_items", names[0], item=",".join(names))
        asked = self._call_of(request, b"", model, sequence, call, NO_CLAIM)
        try:
            items: list[Any] = json.loads((await self.context.submit(asked, b"").next_usable()).body)
        finally:
            asked.cancel()
        return items

    def _begin(self, request: Request, body: bytes) -> HttpCall:
        """Begin a conversation, with the model that the body names, which OpenAI's clients send as ``extra_body``."""
        name = _member(body, "model")
        model = self.named(name if isinstance(name, str) else "")
        self._check_keeps(model, "model")
        sequence = self._new_sequence(request, model)
        call = ResponsesCall("create_conversation", f"{CONVERSATION}{sequence}", is_new=True)
        return self._submit_call(request, body, model, sequence, call)

    # What is about something that is there

    def _call(self, request: Request, body: bytes, operation: str, values: PathValues) -> HttpCall:
        model, sequence = self._found(request, values)
        limit, after, order = _listing(request)
        name, item = values.get("response_id") or values["conversation_id"], values.get("item_id", "")
        call = ResponsesCall(operation, name, None, False, item, limit, after, order)
        return self._submit_call(request, body, model, sequence, call)

    def _found(self, request: Request, values: PathValues) -> tuple[ServedModel, str]:
        """Return the model and the sequence of what a path names. Raises EndpointError: it is not there."""
        response_id = values.get("response_id")
        if response_id is not None:
            name, kind, what = response_id, RESPONSE, "Response"
        else:
            name, kind, what = values["conversation_id"], CONVERSATION, "Conversation"
        found = self._find(request, name, kind)
        if found is None:
            raise EndpointError(Failure(404, "NotFound", f"{what} with id {name!r} not found.", NOT_FOUND))
        return found

    # Models, keys and sequences

    def _find(self, request: Request, name: Any, kind: str) -> tuple[ServedModel, str] | None:
        """Return the model and the sequence that an id is of; None if it is none that the request's key has made."""
        sequence = owned_ids.sequence_of(name, kind)
        model = None if sequence is None else self._model_of(request, sequence)
        return None if sequence is None or model is None else (model, sequence)

    def _model_of(self, request: Request, sequence: str) -> ServedModel | None:
        """Return the model of a sequence; None if it is of no model here, or of another key.

        Raises EndpointError: the key is not for the model.
        """
        for model in self.models.get().values():
            if owned_ids.is_of_model(sequence, model):
                account = self.context.account(request, model.name)
                if owned_ids.is_of_key(sequence, account):
                    return model
        return None

    def _new_sequence(self, request: Request, model: ServedModel, *parts: str) -> str:
        """Return a new sequence; the same for a request that is sent again, if it has a name.

        Raises EndpointError: the key is not for the model.
        """
        name = _name_of(request)
        account = self.context.account(request, model.name)
        return owned_ids.new_sequence(model, account, () if name is None else (name, *parts))

    def _of_id(self, request: Request, name: Any, kind: str, param: str, model_name: Any) -> tuple[ServedModel, str]:
        """Return the model and the sequence of what a new response continues. Raises EndpointError: there is none."""
        found = self._find(request, name, kind)
        if found is None:
            if kind == RESPONSE:
                raise EndpointError(no_previous(name))
            raise EndpointError(Failure(404, "NotFound", f"Conversation with id {name!r} not found.", NOT_FOUND))
        model, sequence = found
        named = self.models.get().get(model_name) if isinstance(model_name, str) else model
        if named is not None and named.name != model.name:
            raise _wrong(f"{param} is of the model {model.name!r}, and only that can continue it.", "model")
        if request.upgrades and not model.is_stateful:  # it was one of a connection
            raise EndpointError(no_previous(name))
        self._check_keeps(model, param)
        return model, sequence

    def _check_keeps(self, model: ServedModel, param: str) -> None:
        if not model.is_stateful:
            message = f"The model {model.name!r} keeps no conversations. {_WHAT_KEEPS}"
            raise _wrong(message, param, "unsupported_parameter")

    def _submit_call(
        self, request: Request, body: bytes, model: ServedModel, sequence: str, call: ResponsesCall
    ) -> HttpCall:
        claim = _claim_of(request, sequence, is_new=call.is_new)
        return self.context.submit(self._call_of(request, body, model, sequence, call, claim), body)

    def _call_of(
        self,
        request: Request,
        body: bytes,
        model: ServedModel,
        sequence: str,
        call: ResponsesCall,
        claim: StepClaim,
        kind: type[HttpCall] = HttpCall,
    ) -> HttpCall:
        headers = ((CALL_HEADER, call.encoded()), ("url_path", _COMPLETIONS), ("explain", "False"))
        made = self.context.call_of(request, DIALECT, model, headers, OPENAI, kind=kind)
        if request.upgrades:
            made.via = "websocket"
        if model.is_stateful:
            made.sequence = self.sequences.of_values(f"{SEQUENCE_PREFIX}{sequence}", call.is_new or None, None, claim)
            made.headers = (*made.headers, *made.sequence.headers)
        if self.comment_interval and asks_for_stream(body[call.history :]):
            made.comment_interval = self.comment_interval
        return made


def _failure_of(refusal: StepRefused, response: BackgroundResponse) -> Failure:
    if refusal.failure.status in (404, 410):
        return Failure(404, "NotFound", f"Response with id {response.id!r} not found.", NOT_FOUND)
    return refusal.failure


def _name_of(request: Request) -> str | None:
    """Return the name of a request that its client may send again, if it has one; a handshake names no turn."""
    if request.upgrades:
        return None
    return request.headers.get(REQUEST_ID) or request.headers.get(IDEMPOTENCY) or None


def _claim_of(request: Request, sequence: str, *, is_new: bool) -> StepClaim:
    """Return which step of its sequence a request is. One with a name that begins a sequence is step 1 of just that.

    Raises EndpointError: the request says two things of it.
    """
    check_headers_once(request.headers, CLAIM_NAMES)
    name, claim = _name_of(request), NO_CLAIM if request.upgrades else claim_of(request.headers)
    if is_new and name is not None:
        return StepClaim(name, "1", f"{SEQUENCE_PREFIX}{sequence}")
    return claim._replace(request_id=name)


def _member(body: bytes, name: str) -> Any:
    try:
        return read_member(body, name)
    except UnreadableJson:
        return None  # the worker says what is wrong with the body


def _listing(request: Request) -> tuple[int, str, str]:
    """Return which part of a list a query asks for. Raises EndpointError: a parameter is wrong."""
    limit, order = request.parameter("limit") or "20", request.parameter("order") or "desc"
    if not (limit.isascii() and limit.isdecimal() and len(limit) <= 3 and 1 <= int(limit) <= _MOST_LISTED):
        raise _wrong(f"limit is {limit[:20]!a}; a whole number, 1 to {_MOST_LISTED} is right.", "limit")
    if order not in ("asc", "desc"):
        raise _wrong(f"order is {order[:20]!a}; 'asc' or 'desc' is right.", "order")
    return int(limit), request.parameter("after") or "", order


def _wrong(message: str, param: str, code: str | None = None) -> EndpointError:
    return EndpointError(bad_field(message, param, code))
