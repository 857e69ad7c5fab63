"""Running a request on a Truss: the job that it becomes, and the answer that comes back."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from torchserve_py.api import priorities
from torchserve_py.api.access_log import note_ids
from torchserve_py.api.errors import DoorError
from torchserve_py.api.request_line import request_line
from torchserve_py.api.responses import Responses, Sent
from torchserve_py.api.streaming import send_stream
from torchserve_py.api.truss.answers import Answers, ErrorCode
from torchserve_py.api.truss.targets import Endpoint
from torchserve_py.transport.http1.request import Request
from torchserve_py.workers.inference_request import InferenceRequest
from torchserve_py.workers.parts import Part, Parts
from ts.protocol.messages import TRUSS

if TYPE_CHECKING:
    from torchserve_py.models.model import Model
    from torchserve_py.scheduling.effects import Cause


def submit(request: Request, model: Model, endpoint: Endpoint, body: bytes, *, more_input: bool = False) -> Parts:
    """Admit a request; its line goes to the worker in pseudo headers.

    Raises:
        DoorError: Its header names a priority that is none.
    """
    scheme = "ws" if endpoint is Endpoint.websocket else "http"
    parts = model.submit(
        InferenceRequest(
            request.raw_headers + request_line(request, endpoint.value, scheme),
            body,
            request.headers.get("Content-Type"),
            TRUSS,
            by_default=True,
            priority=priorities.of_request(request),
            more_input=more_input,
        )
    )
    note_ids(request, parts)
    return parts


class Calls:
    """Runs requests and passes on what the worker makes of them."""

    def __init__(self, responses: Responses, answers: Answers) -> None:
        self._responses = responses
        self._answers = answers

    def begin(self, request: Request, model: Model, endpoint: Endpoint, body: bytes) -> Call:
        """Run a request on a model.

        Raises:
            DoorError: Its header names a priority that is none.
        """
        parts = submit(request, model, endpoint, body)
        return Call(self._responses, self._answers, request, model, parts)

    async def refuse(self, request: Request, model: Model, parts: Parts, first: Part) -> Sent:
        """Answer with what the worker says instead of accepting a WebSocket."""
        told = Call(self._responses, self._answers, request, model, parts).tell(first)
        return told if isinstance(told, Sent) else await told


class Call:
    """A request that has become a job, and what is made of its outcome; an `Exchange`."""

    __slots__ = ("_answers", "_model", "_request", "_responses", "parts")

    def __init__(self, responses: Responses, answers: Answers, request: Request, model: Model, parts: Parts) -> None:
        self._responses = responses
        self._answers = answers
        self._request = request
        self._model = model
        self.parts = parts

    def tell(self, outcome: Part | Cause) -> Sent | Coroutine[Any, Any, Sent]:
        """Write the answer, of which ``outcome`` is the first part, or why there is none."""
        if not isinstance(outcome, Part):
            return self._answers.job_failed(self._request, outcome, self._model)
        if outcome.error is not None:
            code = ErrorCode.server if outcome.status >= 500 else ErrorCode.client
            return self._answers.error(self._request, outcome.status, outcome.error, code)
        if outcome.more:
            return self._stream(outcome)
        try:
            return self._responses.send(
                self._request,
                outcome.status,
                outcome.body,
                outcome.headers,
                reason=outcome.reason,
                request_id=self.parts.job.id,
            )
        except DoorError as error:  # the model set what HTTP does not allow
            return self._answers.failure(self._request, error.failure)

    async def _stream(self, first: Part) -> Sent:
        try:
            return await send_stream(self._responses, self._request, self.parts, first, first.headers, announced=False)
        except DoorError as error:
            return self._answers.failure(self._request, error.failure)
