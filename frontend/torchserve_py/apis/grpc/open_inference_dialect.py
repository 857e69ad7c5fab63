"""The Open Inference Protocol over gRPC as dialects: with messages as the worker made them, and with envelopes.

A response is large, and the endpoint puts its envelope around the bytes without reading them. Protobuf allows that: a
field that is appended to a serialized message belongs to it, and of a map's entries with one key the last counts.
"""

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

from torchserve_py.apis.grpc.grpc_call import GrpcCall, GrpcDialect
from torchserve_py.apis.grpc.open_inference_requests import EMPTY_FINAL_RESPONSE, OpenRequest
from torchserve_py.apis.grpc.protos.open_inference_pb2 import ModelStreamInferResponse
from torchserve_py.apis.grpc.refusals import GrpcRefusal, code_of
from torchserve_py.apis.open_inference.answers import only_response
from torchserve_py.base.causes import Cause
from torchserve_py.base.metrics.model_metrics import HANDLER_ERROR
from torchserve_py.core.jobs.parts import Part
from torchserve_py.endpoints.failures import CAUSE_HEADER, INVALID_KEY, failure_of
from torchserve_py.endpoints.management.management_calls import ModelApiDisabledError
from torchserve_py.net.http2.grpc_status import StatusCode
from ts.apis.open_inference.protos.infer_pb2 import InferParameter, ModelInferResponse
from ts.apis.open_inference.wire_fields import varint

logger = logging.getLogger(__name__)

#: The parameter of a message that says whether it is the last one that answers its request.
FINAL_RESPONSE: Final = "triton_final_response"
_FLAGS: Final = {
    final: ModelInferResponse(parameters={FINAL_RESPONSE: InferParameter(bool_param=final)}).SerializeToString()
    for final in (False, True)
}
#: The tag of ModelStreamInferResponse.infer_response.
_INFER_RESPONSE: Final = b"\x12"

_MODEL_API_DISABLED: Final = "Models cannot be loaded or unloaded: the server's setting enable_model_api is false."
#: Status codes by HTTP status (422: the parts of a message do not fit together), and by cause.
_CODES: Final = {408: StatusCode.DEADLINE_EXCEEDED, 422: StatusCode.INVALID_ARGUMENT}
_CODES_OF_CAUSES: Final = {
    Cause.worker_died: StatusCode.UNAVAILABLE,
    Cause.response_timeout: StatusCode.DEADLINE_EXCEEDED,
}

_KEY: Final = re.compile(r"(?!grpc-)[0-9a-z_.-]+")
#: Headers that describe an HTTP message.
_NOT_METADATA: Final = frozenset(
    {"connection", "content-encoding", "content-length", "content-type", "te", "trailer"}
    | {"transfer-encoding", "upgrade"}
)
_BINARY: Final = "-bin"


class OpenInferenceMessages(GrpcDialect):
    """Messages are the worker's; a failure is a status. The headers that a model sets become trailing metadata."""

    def refusal(self, error: Exception) -> GrpcRefusal:
        failure = failure_of(error)
        code = code_of(failure.status, _CODES)
        if isinstance(error, ModelApiDisabledError):
            return GrpcRefusal(StatusCode.PERMISSION_DENIED, _MODEL_API_DISABLED, cause=failure.cause)
        if failure.cause == HANDLER_ERROR and failure.status == 503:  # TorchServe's status for a handler that raises
            code = StatusCode.INTERNAL
        elif failure.cause in _CODES_OF_CAUSES:
            code = _CODES_OF_CAUSES[Cause(failure.cause)]
        elif failure.type == INVALID_KEY:
            code = StatusCode.PERMISSION_DENIED
        return GrpcRefusal(code, failure.message, cause=failure.cause)

    def answer(self, call: GrpcCall, part: Part) -> Any:
        if part.more or not part.body:
            return self._only(call, part)
        _send_headers(call, part)
        return part.body

    def messages(self, call: GrpcCall, parts: Iterable[Part]) -> Iterable[bytes | bytearray]:
        for part in parts:
            _send_headers(call, part)
            if part.body:
                yield part.body

    def failure(self, error: Exception) -> Iterable[bytes | bytearray]:
        """Return the messages for a failed request in a call of several; raise ``error`` to end the call."""
        raise error

    async def _only(self, call: GrpcCall, part: Part) -> bytes | bytearray:
        only = await only_response(call, part, "ModelInfer", "ModelStreamInfer")
        _send_headers(call, only)
        return only.body


DIALECT: Final = OpenInferenceMessages()


class EnvelopedMessages(OpenInferenceMessages):
    """The messages for one request: each says whether it is the last, and a failure is one of them, or ends the call.

    A model may end without a further response. So each response is held back until it is known whether another follows,
    unless the client wants a message of its own for the end. ``request`` is None if it could not be read.
    """

    def __init__(self, request: OpenRequest | None, *, wants_status: bool) -> None:
        self._head = None if request is None else request.head
        self._wants_status = wants_status
        self._wants_empty_final = request is not None and request.parameters.get(EMPTY_FINAL_RESPONSE) is True
        self._held: bytes | bytearray = b""

    def messages(self, call: GrpcCall, parts: Iterable[Part]) -> Iterator[bytes | bytearray]:
        for part in parts:
            if part.body:
                yield from self._held_back()
                if part.more and not self._wants_empty_final:
                    self._held = part.body
                else:
                    yield _enveloped(part.body, final=not part.more)
            elif not part.more:
                yield from self._end(call)

    def failure(self, error: Exception) -> Iterator[bytes | bytearray]:
        yield from self._held_back()
        if self._wants_status:
            raise error
        refusal = self.refusal(error)
        response = ModelInferResponse(parameters={FINAL_RESPONSE: InferParameter(bool_param=True)})
        if self._head is not None:
            response.id = self._head.id
        if refusal.cause:
            response.parameters[CAUSE_HEADER].string_param = refusal.cause
        yield ModelStreamInferResponse(error_message=refusal.message, infer_response=response).SerializeToString()

    def _held_back(self) -> Iterator[bytes | bytearray]:
        if self._held:
            yield _enveloped(self._held, final=False)
            self._held = b""

    def _end(self, call: GrpcCall) -> Iterator[bytes | bytearray]:
        """Return the last message for a job that ended without a further response."""
        if self._held:
            yield _enveloped(self._held, final=True)
        elif (head := self._head) is not None and self._wants_empty_final and call.model is not None:
            response = ModelInferResponse(model_name=head.model_name, model_version=call.model.version, id=head.id)
            yield _enveloped(response.SerializeToString(), final=True)


def _enveloped(body: bytes | bytearray, *, final: bool) -> bytes:
    """Return a serialized ``ModelStreamInferResponse`` with a serialized response in it."""
    flag = _FLAGS[final]
    return b"".join((_INFER_RESPONSE, varint(len(body) + len(flag)), body, flag))


def _send_headers(call: GrpcCall, part: Part) -> None:
    if part.headers:
        call.rpc.trailing_metadata = metadata_of(part.headers)


def metadata_of(headers: Iterable[Sequence[str]]) -> tuple[tuple[str, str | bytes], ...]:
    """Return the metadata for the headers that a model has set, with keys in lower case.

    Headers that describe an HTTP message are left out; so are, with a line in the log, those that metadata cannot hold.
    """
    pairs: list[tuple[str, str | bytes]] = []
    for name, value in headers:
        key, is_binary = _key_of(name)
        if key and value.isascii() and value.isprintable():
            pairs.append((key, value.encode() if is_binary else value))
        elif key is not None:
            logger.warning("The header %r: %r of a response is not sent: gRPC's metadata cannot hold it", name, value)
    return tuple(pairs)


@lru_cache(maxsize=256)
def _key_of(name: str) -> tuple[str | None, bool]:
    """Return the key of a header's metadata, and whether its value is bytes.

    The key is empty if metadata cannot have it, and None for a header that describes an HTTP message.
    """
    key = name.lower()
    if key in _NOT_METADATA:
        return None, False
    return key if _KEY.fullmatch(key) else "", key.endswith(_BINARY)
