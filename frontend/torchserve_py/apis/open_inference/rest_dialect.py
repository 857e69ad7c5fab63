"""The Open Inference Protocol over REST as a dialect.

Errors are ``{"error": …}``. The response is as the worker encoded it, compressed if the client accepts that. The
endpoints for streams answer with server-sent events, each ``data: `` and one line of JSON. Before the first event an
error is a whole answer with its status; later it is a last event ``{"error": …}``, and the body ends in order.
"""

from collections.abc import Coroutine, Sequence
from typing import Any, Final

from torchserve_py.apis.open_inference.answers import compressed_for, encoding_for, error_body, only_response
from torchserve_py.apis.open_inference.shared_memory import SharedMemory
from torchserve_py.apis.open_inference.shared_tensors import Places, without_shared_outputs
from torchserve_py.base.causes import Cause
from torchserve_py.core.jobs.parts import Part
from torchserve_py.core.serving.errors import ModelAwaited, ModelNotFound, ModelVersionNotFound
from torchserve_py.endpoints.client_call import ClientCall, HttpCall, HttpDialect
from torchserve_py.endpoints.failures import Failure, failure_of
from torchserve_py.endpoints.responses import EVENTS_TYPE, JSON_TYPE, AlreadySent, Answer
from ts.protocol.media_types import BYTES, JSON

#: Causes that mean overload; the text endpoints answer with 429 then.
_OVERLOADED: Final = frozenset(
    (Cause.queue_full, Cause.overloaded, Cause.not_loaded, Cause.sequence_queue_full, Cause.sequence_capacity)
)
#: The messages of the protocol's servers for unknown paths and methods.
_MESSAGES: Final = {"ResourceNotFoundException": "Not Found", "MethodNotAllowedException": "Method Not Allowed"}
_LENGTH: Final = "inference-header-content-length"
#: Headers of the first response that describe its body, which is sent as an event instead.
_BODY_HEADERS: Final = frozenset(("content-type", "content-length", "content-encoding"))


class CustomDialect(HttpDialect):
    """The dialect of routes that models declare: errors are the protocol's, answers and streams the model's."""

    def failure(self, failure: Failure, call: HttpCall | None = None) -> Answer:
        message = _MESSAGES.get(failure.type, failure.message) if not failure.cause else failure.message
        return Answer(failure.status, error_body(message, failure.status, failure.details), (JSON_TYPE,))

    def refusal(self, error: Exception) -> Failure:
        failure = failure_of(error)
        if isinstance(error, ModelVersionNotFound):
            return failure._replace(message=f"Model {error.name} with version {error.version} not found")
        if isinstance(error, ModelNotFound) and not isinstance(error, ModelAwaited):
            return failure._replace(message=f"Model {error.name} not found")
        return failure

    def ended(self, call: ClientCall, cause: Cause) -> Failure:
        failure = super().ended(call, cause)
        return failure._replace(status=503) if cause is Cause.worker_died else failure


#: The dialect of the paths under ``/v2``, except those for inference.
CUSTOM_DIALECT: Final = CustomDialect()


class WholeDialect(CustomDialect):
    """An endpoint with one response, which is compressed if it has ``compress_from`` bytes."""

    def __init__(self, endpoint: str, compress_from: int) -> None:
        self._endpoint = endpoint
        self._compress_from = compress_from
        self._is_text = endpoint.startswith("generate")

    def ended(self, call: ClientCall, cause: Cause) -> Failure:
        failure = super().ended(call, cause)
        return failure._replace(status=429) if self._is_text and cause in _OVERLOADED else failure

    def reply(self, call: HttpCall, first: Part) -> Answer | Coroutine[Any, Any, Answer | AlreadySent]:
        return self.answer(call, first)

    def answer(self, call: HttpCall, part: Part) -> Answer | Coroutine[Any, Any, Answer]:
        if part.more or not part.body or encoding_for(call.request, part.body, self._compress_from) is not None:
            return self._only(call, part)
        return Answer(part.status, part.body, part.headers, part.reason)

    async def _only(self, call: HttpCall, part: Part) -> Answer:
        only = await only_response(call, part, self._endpoint, f"{self._endpoint}_stream")
        body, added = await compressed_for(call.request, only.body, self._compress_from)
        return Answer(only.status, body, (*only.headers, *added), only.reason)


class EventsDialect(WholeDialect):
    """An endpoint that answers with events, even where there is one. Parts without a body are not sent."""

    def reply(self, call: HttpCall, first: Part) -> Coroutine[Any, Any, AlreadySent]:
        return call.stream(first)

    def opening(self, call: HttpCall, first: Part) -> Answer:
        kept = ((name, value) for name, value in first.headers if name.lower() not in _BODY_HEADERS)
        return Answer(200, b"", (EVENTS_TYPE, *kept))

    def frame(self, body: bytes | bytearray) -> Sequence[bytes | bytearray]:
        return (b"data: ", body, b"\n\n") if body else ()

    def last_frame(self, failure: Failure) -> Sequence[bytes | bytearray]:
        return self.frame(error_body(failure.message, failure.status, failure.details))


class SharedMemoryDialect(WholeDialect):
    """The answer to a request that wants outputs in shared memory: the data goes there, and the rest to the client."""

    def __init__(self, endpoint: str, memory: SharedMemory, outputs: Places) -> None:
        super().__init__(endpoint, 0)
        self._memory = memory
        self._outputs = outputs

    def answer(self, call: HttpCall, part: Part) -> Coroutine[Any, Any, Answer]:
        return self._only(call, part)

    async def _only(self, call: HttpCall, part: Part) -> Answer:
        only = await only_response(call, part, self._endpoint, f"{self._endpoint}_stream")
        if only.status >= 300:
            return Answer(only.status, only.body, only.headers, only.reason)
        headers = {name.lower(): value for name, value in only.headers}
        size = int(headers.pop(_LENGTH, len(only.body)))
        body, size = without_shared_outputs(self._memory, only.body, size, self._outputs)
        headers["content-type"] = JSON
        if size < len(body):
            headers |= {"content-type": BYTES, _LENGTH: str(size)}
        return Answer(only.status, body, tuple(headers.items()), only.reason)
