"""Running a request on a Truss: the job that it becomes, and the answer that comes back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import hdrs, web

from torchserve_py.api import priorities
from torchserve_py.api.access_log import note_ids
from torchserve_py.api.request_line import request_line
from torchserve_py.api.responses import Responses, Sent
from torchserve_py.api.streaming import send_stream
from torchserve_py.api.truss.answers import Answers, ErrorCode
from torchserve_py.api.truss.targets import Endpoint
from torchserve_py.workers.parts import JobFailed, Part, Parts
from ts.protocol.messages import TRUSS

if TYPE_CHECKING:
    from torchserve_py.models.model import Model


def submit(
    request: web.BaseRequest, model: Model, endpoint: Endpoint, body: bytes, *, more_input: bool = False
) -> Parts:
    """Admit a request; its line goes to the worker in pseudo headers.

    Raises:
        DoorError: Its header names a priority that is none.
    """
    scheme = "ws" if endpoint is Endpoint.websocket else "http"
    parts = model.submit(
        request.raw_headers + request_line(request, endpoint.value, scheme),
        body,
        content_type=request.headers.get(hdrs.CONTENT_TYPE),
        by_default=True,
        protocol=TRUSS,
        more_input=more_input,
        priority=priorities.of_request(request),
    )
    note_ids(request, parts)
    return parts


class Calls:
    """Runs requests and passes on what the worker makes of them."""

    def __init__(self, responses: Responses, answers: Answers) -> None:
        self._responses = responses
        self._answers = answers

    async def run(self, request: web.BaseRequest, model: Model, endpoint: Endpoint, body: bytes) -> Sent:
        """Run a request on a model and answer it.

        Raises:
            DoorError: The model answered what HTTP does not allow.
        """
        parts = submit(request, model, endpoint, body)
        try:
            return await self.pass_on(request, parts, await parts.next())
        except JobFailed as failed:
            return await self._answers.job_failed(request, failed.cause, model)
        finally:
            parts.cancel()  # does nothing to a job that has ended; the client of any other is gone

    async def pass_on(self, request: web.BaseRequest, parts: Parts, part: Part) -> Sent:
        """Answer with what the worker says, of which ``part`` is the first.

        Raises:
            DoorError: It is nothing that HTTP allows.
        """
        if part.error is not None:
            code = ErrorCode.server if part.status >= 500 else ErrorCode.client
            return await self._answers.error(request, part.status, part.error, code)
        if part.more:
            return await send_stream(self._responses, request, parts, part, part.headers, announced=False)
        return await self._responses.send(
            request, part.status, part.body, part.headers, reason=part.reason, request_id=parts.job.id
        )
