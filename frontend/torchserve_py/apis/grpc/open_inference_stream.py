"""`ModelStreamInfer`, which means one thing to Triton's clients and another to MLServer's.

Triton's clients send independent requests and read ``ModelStreamInferResponse`` messages; an error is such a message,
and the call goes on. MLServer's clients read bare ``ModelInferResponse`` messages; an error ends the call with a
status, and a model that takes a stream of requests gets all requests as inputs of one job. The metadata
``x-stream-envelope`` or the setting ``grpc_stream_envelope`` says which client calls; otherwise the server guesses from
the first request.

Responses to independent requests come in the order of the requests. A model that gives several responses to a request,
or may, is an exception: its responses are sent as they are ready, and later requests do not wait for them.
"""

import asyncio
from collections.abc import Hashable
from functools import partial
from typing import Any, Final

from torchserve_py.apis.grpc.open_inference_dialect import DIALECT, EnvelopedMessages
from torchserve_py.apis.grpc.open_inference_requests import (
    OpenInferenceJobs,
    OpenRequest,
    is_from_triton,
    read_request,
)
from torchserve_py.apis.grpc.two_way import REQUEST_ERRORS, CarriedRequest, TwoWayCall
from torchserve_py.apis.open_inference.sequence_parameters import ID
from torchserve_py.core.serving.serving import ServedModel
from torchserve_py.endpoints.failures import EndpointError, bad_request
from torchserve_py.net.http2.rpc import EOF, Rpc

_AUTO: Final = "auto"
_TRITON: Final = "triton"
_MLSERVER: Final = "mlserver"

#: Metadata of a call: which messages its client reads, and whether an error is to end the call with a status.
_ENVELOPE_KEY: Final = "x-stream-envelope"
_STATUS_KEY: Final = "triton_grpc_error"
#: The header that tells the worker that a request may have several responses.
_STREAMED: Final = (":endpoint", "infer_stream")


class InferStream(TwoWayCall):
    """One call; ``envelope`` says what clients without the metadata read: ``auto``, ``triton`` or ``mlserver``."""

    def __init__(
        self, jobs: OpenInferenceJobs, rpc: Rpc, open_calls: set[TwoWayCall], max_request_size: int, envelope: str
    ) -> None:
        super().__init__(rpc, open_calls, max_request_size)
        self._jobs = jobs
        self._metadata: Any = (*rpc.metadata, _STREAMED)
        said = dict(self._metadata)
        self._envelope: str | bytes = said.get(_ENVELOPE_KEY, envelope)
        self._wants_status = said.get(_STATUS_KEY) == "true"
        self._is_from_triton = _STATUS_KEY in said

    async def _read(self) -> None:
        body = await self._next()
        if body is EOF:
            return
        are_enveloped = self._reads_envelopes(body)
        if not are_enveloped:
            request = read_request(body)
            model = self._jobs.model(request)
            if self._jobs.serving.declared(model).get("streams_in"):
                await self._run_one_job(model, request)
                return
        while body is not EOF:
            self._take(self._carried(body, are_enveloped=are_enveloped))
            body = await self._next()

    def _carried(self, body: bytes, *, are_enveloped: bool) -> CarriedRequest:
        message, model, refusal = None, None, None
        try:
            message = read_request(body)
            model = self._jobs.model(message)
        except REQUEST_ERRORS as error:
            refusal = error.with_traceback(None)  # which would hold this frame, and the frame the body
        dialect = EnvelopedMessages(message, wants_status=self._wants_status) if are_enveloped else DIALECT
        request = CarriedRequest(len(body), lambda request, error: dialect.failure(error))
        request.model, request.refusal = model, refusal
        request.is_ordered = model is None or not self._jobs.serving.declared(model).get("decoupled")
        if message is not None and model is not None:
            request.sequence = _sequence_of(message, model)
            request.submit = partial(self._jobs.submit, self._rpc, dialect, model, message, self._metadata)
        return request

    def _reads_envelopes(self, first: bytes) -> bool:
        """Return whether the client reads Triton's messages, as far as its metadata and its first request tell."""
        if self._envelope not in (_AUTO, _TRITON, _MLSERVER):
            raise bad_request(f"Metadata {_ENVELOPE_KEY}: {self._envelope!r} is neither {_TRITON} nor {_MLSERVER}.")
        if self._envelope != _AUTO:
            return self._envelope == _TRITON
        if self._is_from_triton:
            return True
        try:
            return is_from_triton(read_request(first))
        except EndpointError:
            return False

    async def _run_one_job(self, model: ServedModel, first: OpenRequest) -> None:
        """Feed all requests to one job; the end of the call's requests is an input without a body."""
        call = self._jobs.submit(self._rpc, DIALECT, model, first, self._metadata, more_input=True)
        self._calls.add(call)
        answering = self._tasks.create_task(call.stream())
        answering.add_done_callback(lambda _: self._reader is not None and self._reader.cancel())
        try:
            while (body := await self._rpc.read()) is not EOF:
                await call.send_input(body, more=True)
        except asyncio.CancelledError:
            if not self._is_closed:  # the call is over, and its job with it
                raise
        await call.send_input(b"", more=False)


def _sequence_of(request: OpenRequest, model: ServedModel) -> Hashable:
    """Return the key of a request's sequence among those of the call, or None."""
    if not model.is_stateful:
        return None
    # Where the parameters name no sequence, the metadata do, which all requests of the call share.
    return model.name, model.version, repr(request.parameters.get(ID))
