"""The inference door: ``/predictions`` and ``/explanations``. (`surfaces` has the other paths that lead here.)

A request is passed on as it came: raw headers, raw body. The worker decodes. This is the server's hottest path, so it
makes no object that it does not need and does its bookkeeping in the answer's one write (see `responses`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any, Final

from aiohttp import hdrs, web

from torchserve_py.api import priorities
from torchserve_py.api.access_log import note_ids
from torchserve_py.api.errors import DoorError, bad_request, failure_of_job, handler_failure, not_found
from torchserve_py.api.openapi_documents import predict_document
from torchserve_py.api.requests import body_at_hand, read_body
from torchserve_py.api.responses import Headers, Responses, Sent
from torchserve_py.api.routing import Path, Route, Routes
from torchserve_py.api.sequences import SequenceHeaders, SequenceRequest
from torchserve_py.api.streaming import send_stream
from torchserve_py.api.token_authorization import TokenType
from torchserve_py.workers.parts import JobFailed, Parts

if TYPE_CHECKING:
    from torchserve_py.models.registry import ModelRegistry
    from torchserve_py.settings import Settings

Pairs = tuple[tuple[str, str], ...]

#: What the server tells the handler about the path, where the path ends with the model (or its version).
_PREDICT: Final[Pairs] = (("url_path", ""), ("explain", "False"))
_EXPLAIN: Final[Pairs] = (("url_path", ""), ("explain", "True"))


class InferenceDoor:
    """Turns HTTP requests into jobs, and the parts of their responses into HTTP answers."""

    def __init__(self, settings: Settings, registry: ModelRegistry, responses: Responses) -> None:
        self._registry = registry
        self._responses = responses
        self._sequences = SequenceHeaders(settings)
        self._max_body = settings.max_request_size
        self._stall_limit = float(settings.default_response_timeout)

    @property
    def routes(self) -> Routes:
        """First path segment to handler."""
        route = Route(self.predictions, TokenType.inference)
        return {"predictions": route, "explanations": route}

    def predictions(self, request: web.BaseRequest, path: Path) -> Awaitable[Sent]:
        """``/predictions/{model}[/{version}[/{rest…}]]``, any method; ``/explanations`` likewise."""
        depth = len(path)
        if depth < 2:
            raise not_found()
        return self.infer(request, path[1], path[2] if depth > 2 else None, _path_headers(path))

    async def infer(
        self,
        request: web.BaseRequest,
        name: str,
        version: str | None,
        server_headers: Pairs,
        *,
        parameters: Pairs = (),
        body: bytes | None = None,
    ) -> Sent:
        """Run a request on a model; where the method is OPTIONS, describe the model's API instead.

        Args:
            request: The request.
            name: The model.
            version: Its version; None for the default one.
            server_headers: What the server tells the handler about the path; wins over the client's headers.
            parameters: Names and values that become values of the row beside the body's.
            body: The request's body, if it has been read.

        Raises:
            DoorError: The request is refused before there is a job.
            ModelNotFound: No such model.
            ModelVersionNotFound: No such version of it.
        """
        model = self._registry.get(name, version)
        if request.method == "OPTIONS":
            return await self._responses.send_json(request, 200, predict_document(name))
        sequence = self._sequences.read(request) if model.is_stateful else None
        content_type: str | None = request.headers.get(hdrs.CONTENT_TYPE, "")
        if content_type and not content_type.isascii():
            raise bad_request(f"Header Content-Type: {content_type!a} holds characters outside of ASCII.")
        row: Any = body_at_hand(request, self._max_body) if body is None else body
        if row is None:
            row = await read_body(request, self._max_body, self._stall_limit)
        if parameters:
            row = [*((key, None, value) for key, value in parameters), (None, content_type, row)]
            content_type = None
        headers = request.raw_headers + server_headers
        priority = priorities.of_request(request)
        if sequence is None:
            parts = model.submit(headers, row, content_type=content_type, by_default=version is None, priority=priority)
        else:
            parts = model.submit(
                headers + sequence.headers,
                row,
                content_type=content_type,
                sequence_id=sequence.id,
                starts_sequence=sequence.starts,
                ends_sequence=sequence.ends,
                by_default=version is None,
                priority=priority,
            )
        note_ids(request, parts)
        try:
            return await self._answer(request, parts, name, version, sequence)
        finally:
            parts.cancel()  # does nothing to a job that has ended; the client of any other is gone

    async def _answer(
        self,
        request: web.BaseRequest,
        parts: Parts,
        model: str,
        version: str | None,
        sequence: SequenceRequest | None,
    ) -> Sent:
        responses = self._responses
        request_id = parts.job.id
        try:
            part = await parts.next()
        except JobFailed as failed:
            failure = failure_of_job(failed.cause, model, version, parts.job.sequence_id)
            return await responses.send_failure(request, failure, self._echo(sequence), request_id=request_id)
        if part.error is not None:
            failure = handler_failure(part.status, part.error)
            return await responses.send_failure(request, failure, self._echo(sequence), request_id=request_id)
        headers: Headers = part.headers if sequence is None else self._with_sequence(sequence, part.headers)
        try:
            if part.more:
                return await send_stream(responses, request, parts, part, headers)
            return await responses.send(
                request, part.status, part.body, headers, reason=part.reason, request_id=request_id
            )
        except DoorError as error:  # the handler set what HTTP does not allow
            return await responses.send_failure(request, error.failure, self._echo(sequence), request_id=request_id)

    def _echo(self, sequence: SequenceRequest | None) -> Headers:
        return () if sequence is None else ((self._sequences.id_name, sequence.id),)

    def _with_sequence(self, sequence: SequenceRequest, headers: Sequence[Sequence[str]]) -> Headers:
        """The id goes back to the client, who may not have chosen it; a handler that sets it itself wins."""
        name = self._sequences.id_name
        for set_name, _ in headers:
            if set_name == name or set_name.lower() == name.lower():
                return headers
        return (*headers, (name, sequence.id))


def _path_headers(path: Path) -> Pairs:
    explains = path[0] == "explanations"
    if len(path) <= 3:
        return _EXPLAIN if explains else _PREDICT
    return (("url_path", "/".join(path[3:])), ("explain", "True" if explains else "False"))
