"""Runs the jobs of an MLServer model: ``predict`` for one response, ``predict_stream`` for a stream of them.

The pseudo header ``:endpoint`` of a row states whether its client wants a stream. In a stream every response is one
part, and a last row without a body ends the stream.
"""

import asyncio
import hashlib
import inspect
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any, Final

from mlserver import MLModel, types
from mlserver.context import model_context

from ts.apis.open_inference.receive import receive, receive_input
from ts.apis.open_inference.rest import has_length
from ts.apis.open_inference.types import InferenceRequest, Received, Tensor
from ts.connection.frontend_connection import FrontendConnection
from ts.contracts.async_calls.async_runtime import AsyncRuntime, FurtherInputs, Outbox, is_cancelled
from ts.contracts.mlserver.batching import AdaptiveBatcher
from ts.contracts.mlserver.conversion import (
    CloudEvents,
    failure_of,
    lower_case_headers,
    malformed,
    model_request,
    wire_response,
)
from ts.contracts.mlserver.model_routes import CustomRoutes
from ts.contracts.mlserver.reported_metrics import take_records
from ts.handler_utils.asgi_scope import pseudo_header
from ts.jobs.errors import RowFailure, too_large, wire_text
from ts.ops.tracing.model_errors import note_error
from ts.protocol.frames import Buffer
from ts.protocol.messages import (
    CUSTOM,
    NO_HISTORIES,
    OPEN_INFERENCE_GRPC,
    OPEN_INFERENCE_REST,
    TAKEN,
    Histories,
    InferRow,
    ResultRow,
)
from ts.runtime.result_bodies import error_row, failure_details

logger = logging.getLogger(__name__)

#: The parameter names that TorchServe's request forms use for a body.
_BODY_NAMES: Final = (None, "body", "data")
_STREAMS: Final = frozenset(("infer_stream", "generate_stream"))


class MLServerRuntime(AsyncRuntime):
    """Runs every request as a task of its own; see `ts.contracts.async_calls.async_runtime`.

    Args:
        declares: What `declarations` in `load_mlserver` says of the model.
        cache_size: How many responses that are not streams are kept for equal requests.
    """

    def __init__(
        self,
        model: MLModel,
        declares: Mapping[str, Any],
        connection: FrontendConnection,
        *,
        server_name: str,
        cache_size: int,
        max_response_size: int,
    ) -> None:
        super().__init__({**declares, "response_cache": cache_size > 0})
        self._model = model
        self._connection = connection
        self._outbox = Outbox(connection, max_response_size, take_records)
        self._cloud_events = CloudEvents(model.name, server_name)
        self._custom_routes = CustomRoutes(model)
        self._cache_size = cache_size
        #: The newest responses by `_key_of` the request.
        self._cache: dict[bytes, types.InferenceResponse] = {}
        if self._custom_routes.declared:
            self.declares = {**self.declares, "routes": self._custom_routes.declared}
        self._has_predict = type(model).predict is not MLModel.predict or "predict" in vars(model)
        self._batcher = None
        settings = model.settings
        if settings.max_batch_size > 1 and settings.max_batch_time > 0 and self._has_predict:
            self._batcher = AdaptiveBatcher(self._call_predict, settings.max_batch_size, settings.max_batch_time)

    async def run_job(self, wire_row: InferRow, inputs: FurtherInputs, histories: Histories = NO_HISTORIES) -> None:
        job_id, protocol = wire_row.job_id, wire_row.protocol
        started = time.perf_counter()
        with model_context(self._model.settings):
            try:
                if not self._model.ready:
                    raise RowFailure(503, f"Model {self._model.name} is not ready yet.")
                if protocol == CUSTOM:
                    await self._custom_routes.answer(wire_row, self._put)
                    return
                received, request = self._receive(wire_row)
                if pseudo_header(wire_row, ":endpoint") in _STREAMS:
                    await self._stream(job_id, received, request, inputs)
                else:
                    self._send(job_id, False, *await self._answer(received, request), started)
            except (Exception, asyncio.CancelledError) as error:
                if isinstance(error, asyncio.CancelledError):
                    if is_cancelled():
                        raise
                    failure = RowFailure(500, "The model awaited something that was cancelled.")
                else:
                    failure = failure_of(error)
                if failure is not error:  # the model's code has raised it
                    note_error(error)
                text = wire_text(failure.message)
                details = failure_details(failure)
                row = error_row(job_id, failure.status, text, failure.headers, details, failure.kind)
                self._outbox.put(row, time.perf_counter() - started)

    async def is_healthy(self) -> bool:
        return bool(self._model.ready)

    async def close(self) -> None:
        self._outbox.flush()
        with model_context(self._model.settings):
            try:
                await self._model.unload()
            except Exception:
                logger.exception("unload() of the model failed")

    def _receive(self, row: InferRow) -> tuple[Received, types.InferenceRequest]:
        """Return the request, and how its model gets it. Raises Failure: it cannot be read."""
        try:
            received = receive(_open_inference_row(row), self.declares, as_mlserver=True)
            return received, self._as_model_request(received, lower_case_headers(row.headers))
        except RowFailure as failure:
            is_json = row.protocol == OPEN_INFERENCE_REST and not has_length(row.headers)
            raise (malformed(failure, row.body) if is_json else failure) from None

    def _as_model_request(self, received: Received, headers: dict[str, str]) -> types.InferenceRequest:
        request = received.request
        return model_request(request, {**headers, **self._cloud_events.headers("request", request.id)})

    async def _answer(
        self, received: Received, request: types.InferenceRequest
    ) -> tuple[list[tuple[str, str]], Buffer]:
        key = _key_of(received.request) if self._cache_size > 0 else b""
        response = self._cache.get(key)
        if response is None:
            response = await self._predict(request)
            if key:
                self._cache[key] = response
                if len(self._cache) > self._cache_size:
                    del self._cache[next(iter(self._cache))]
        return self._encoded(received, response, request)

    async def _predict(self, request: types.InferenceRequest) -> types.InferenceResponse:
        if not self._has_predict and self.declares["decoupled"]:
            return await self._only_response(request)
        if self._batcher is not None:
            return await self._batcher.predict(request)
        return await self._call_predict(request)

    async def _call_predict(self, request: types.InferenceRequest) -> types.InferenceResponse:
        answer: Any = self._model.predict(request)
        # MLServer knows no other than coroutines; a plain method is as good for a model that computes all the time.
        response: types.InferenceResponse = await answer if inspect.isawaitable(answer) else answer
        return response

    async def _only_response(self, request: types.InferenceRequest) -> types.InferenceResponse:
        """Return what a model answers that can only stream, if that is one response. Raises Failure: it is not."""
        responses: list[types.InferenceResponse] = []
        async with aclosing(self._responses(_only(request))) as stream:
            async for response in stream:
                responses.append(response)
                if len(responses) > 1:
                    break
        if len(responses) != 1:
            count = "several responses" if responses else "no response"
            raise RowFailure(
                501, f"Model {self._model.name} streams and gives {count} to this request: use infer_stream instead."
            )
        return responses[0]

    async def _stream(
        self, job_id: str, received: Received, request: types.InferenceRequest, inputs: FurtherInputs
    ) -> None:
        headers = (request.parameters.headers if request.parameters else None) or {}

        async def requests() -> AsyncIterator[types.InferenceRequest]:
            yield request
            while (body := await inputs.take()) is not None:  # decoded when the model takes it, not before
                self._connection.send([TAKEN, job_id, 1])
                taken = self._as_model_request(receive_input(received, body, as_mlserver=True), headers)
                taken.id = request.id  # of a stream of requests MLServer's models see the first one's id only
                yield taken

        started = time.perf_counter()
        async with aclosing(self._responses(requests())) as stream:
            async for response in stream:
                self._send(job_id, True, *self._encoded(received, response, request), started)
                started = time.perf_counter()
                # A model that never waits must not keep cancellations and other requests from being read.
                await asyncio.sleep(0)
        self._send(job_id, False, [], b"", started)

    async def _responses(
        self, requests: AsyncIterator[types.InferenceRequest]
    ) -> AsyncGenerator[types.InferenceResponse, None]:
        stream: Any = self._model.predict_stream(requests)
        if inspect.isawaitable(stream):
            stream = await stream
        try:
            async for response in stream:
                yield response
        finally:
            if hasattr(stream, "aclose"):
                await stream.aclose()

    def _encoded(
        self, received: Received, response: Any, request: types.InferenceRequest
    ) -> tuple[list[tuple[str, str]], Buffer]:
        """Return a response as its client wants it; all outputs where one is wanted that there is not, as in MLServer.

        Raises Failure: the model has returned no response, or one that cannot be represented.
        """
        answer = wire_response(response, request)
        own = answer.parameters.get("headers") or {}
        answer.parameters["headers"] = {**own, **self._cloud_events.headers("response", request.id)}
        if received.request.outputs:
            there = {output.name for output in answer.outputs}
            if not all(wanted.name in there for wanted in received.request.outputs):
                received.request.outputs = None
        return received.encode(answer)

    def _send(self, job_id: str, more: bool, headers: list[tuple[str, str]], body: Buffer, started: float) -> None:
        self._put(ResultRow(job_id, more, 200, "", headers, body), time.perf_counter() - started)

    def _put(self, row: ResultRow, seconds: float = 0.0) -> None:
        size, limit = len(row.body), self._outbox.max_size
        if size > limit:
            raise RowFailure(500, too_large(size, limit))
        self._outbox.put(row, seconds)


def _open_inference_row(row: InferRow) -> InferRow:
    """Return a row of TorchServe's own forms (``/predictions/…``) as one of the Open Inference Protocol."""
    protocol, body = row.protocol, row.body
    if protocol in (OPEN_INFERENCE_REST, OPEN_INFERENCE_GRPC):
        return row
    if protocol is not None:
        raise RowFailure(501, f"An MLServer model cannot be asked by the protocol {protocol!r}.")
    if isinstance(body, list):  # of parameters, one of which is the request
        by_name = {name.decode() if isinstance(name, bytes) else name: value for name, _, value in body}
        body = next((by_name[name] for name in _BODY_NAMES if name in by_name), b"")
        body = body.encode() if isinstance(body, str) else body
    return row._replace(body=body, protocol=OPEN_INFERENCE_REST)


async def _only(request: types.InferenceRequest) -> AsyncIterator[types.InferenceRequest]:
    yield request


def _key_of(request: InferenceRequest) -> bytes:
    """Return the key of a request in the cache of responses: it is equal for equal inputs, outputs and parameters.

    The key of MLServer's own cache includes the id and the headers, so that cache hardly ever finds a response.
    """
    inputs = [_asked(tensor) for tensor in request.inputs]
    outputs = [(output.name, sorted(output.parameters.items())) for output in request.outputs or ()]
    return _digest(repr((inputs, outputs, sorted(request.parameters.items()))).encode())


def _asked(tensor: Tensor) -> tuple[object, ...]:
    data: Any = tensor.data
    if not isinstance(data, list):
        data = _digest(memoryview(data))
    return tensor.name, tensor.datatype, list(tensor.shape), data, sorted(tensor.parameters.items())


def _digest(data: Any) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()
