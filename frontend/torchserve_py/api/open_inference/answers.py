"""Answers in the shape of the Open Inference Protocol: compact JSON, and errors as ``{"error": …}``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from torchserve_py.api.errors import UNAVAILABLE, DoorError, Failure, failure_of, failure_of_job
from torchserve_py.api.open_inference.compression import compressed_for
from torchserve_py.api.responses import JSON_TYPE, RETRY_AFTER_SECONDS, Responses, Sent
from torchserve_py.models.errors import ModelNotFound, ModelVersionNotFound
from torchserve_py.scheduling.effects import Cause
from torchserve_py.transport.http1.request import Request
from ts.protocol.messages import CAUSE_HEADER

if TYPE_CHECKING:
    from torchserve_py.models.model import Model
    from torchserve_py.workers.parts import Parts

#: Statuses where the protocol's clients expect another than TorchServe's.
_STATUSES: Final = {Cause.worker_died: 503, Cause.response_timeout: 504}
#: Causes that mean that there is too much to do; the text endpoints have a status of their own for that.
_OVERLOADED: Final = frozenset((Cause.queue_full, Cause.sequence_queue_full, Cause.sequence_capacity))


class Answers:
    """Writes them.

    Args:
        responses: Writes all.
        compress_from: From so many bytes on JSON is compressed for clients that accept that.
    """

    def __init__(self, responses: Responses, compress_from: int) -> None:
        self._responses = responses
        self._compress_from = compress_from

    async def json(self, request: Request, value: Any, status: int = 200) -> Sent:
        """Answer with JSON of the server's own."""
        body, added = await compressed_for(request, to_json(value), self._compress_from)
        return self._responses.send(request, status, body, (JSON_TYPE, *added))

    def empty(self, request: Request) -> Sent:
        """Answer that something was done."""
        return self._responses.send(request, 200, b"")

    def method_not_allowed(self, request: Request, allowed: str) -> Sent:
        """The path is for other methods."""
        body = error_body("Method Not Allowed", 405)
        return self._responses.send(request, 405, body, (JSON_TYPE, ("allow", allowed)))

    def error(self, request: Request, error: Exception, name: str = "", version: str | None = None) -> Sent:
        """Answer with what an exception means; ``name`` and ``version`` are the model's, as the client named them."""
        failure = failure_of(error)
        if isinstance(error, ModelVersionNotFound):
            failure = failure._replace(message=f"Model {name} with version {version} not found")
        elif isinstance(error, ModelNotFound):
            failure = failure._replace(message=f"Model {name} not found")
        return self.failure(request, failure)

    def failure(self, request: Request, failure: Failure, request_id: str = "") -> Sent:
        """Answer with an error."""
        headers = [JSON_TYPE]
        if failure.cause:
            headers.append((CAUSE_HEADER, failure.cause))
        if failure.overloaded:
            headers.append(("Retry-After", RETRY_AFTER_SECONDS))
        body = error_body(failure.message, failure.status)
        return self._responses.send(request, failure.status, body, headers, request_id=request_id)


def to_json(value: Any) -> bytes:
    """Compact JSON."""
    return json.dumps(value, separators=(",", ":")).encode()


def error_body(message: str, status: int) -> bytes:
    """The body of an error; one of a request that is not shaped as it should has MLServer's list, too."""
    members: dict[str, Any] = {"error": message}
    if status == 422:
        members["detail"] = [{"type": "value_error", "loc": ["body"], "msg": message}]
    return to_json(members)


def refuse_if_failing(model: Model) -> None:
    """Refuse a request that would wait for a model which none of its workers could load when it tried last.

    Raises:
        DoorError: Its workers fail to start.
    """
    supervisors = model.pool.supervisors
    if supervisors and all(supervisor.failure for supervisor in supervisors):
        message = f"Model {model.name} is not ready: its workers fail to start."
        raise DoorError(Failure(503, UNAVAILABLE, message, Cause.no_worker.value))


def failure_of_parts(cause: Cause, parts: Parts, name: str, version: str | None, *, is_text: bool) -> Failure:
    """What a client is told about a job that ended without an answer.

    Args:
        cause: Why it ended.
        parts: The job's.
        name: The model.
        version: Its version as the request named it.
        is_text: Whether it came by one of the ``generate`` endpoints.
    """
    failure = failure_of_job(cause, name, version, parts.job.sequence_id)
    status = _STATUSES.get(cause, failure.status)
    if is_text and cause in _OVERLOADED:
        status = 429
    message = failure.message
    named = f"Model {name}" if version is None else f"Model {name} with version {version}"
    if cause is Cause.no_worker:
        message = f"{named} is not ready yet."
    elif cause is Cause.queue_full:
        message = f"{named} has as many requests waiting as it may have (job_queue_size)."
    elif cause is Cause.sequence_queue_full:
        message = f"The sequence has as many requests waiting as it may have ({named}: maxSequenceJobQueueSize)."
    elif cause is Cause.sequence_capacity:
        message = f"{named} has as many open sequences as it may have (maxNumSequence)."
    return failure._replace(status=status, message=message)
