"""SageMaker's bidirectional stream: a WebSocket to a container, whose messages are the steps of a sequence.

    GET /invocations-bidirectional-stream[?model_name=…]

A message is a step, and each part of the answer is a message of its own, with nothing around either. With a model that
declares ``realtime: true`` the messages are those of OpenAI's realtime API.
"""

import secrets
from collections.abc import Coroutine, Iterator
from functools import partial
from typing import Any, Final

from torchserve_py.apis.live.live_steps import StepCall, StepTemplate
from torchserve_py.apis.live.message_forms import LiveStep
from torchserve_py.apis.live.session_endpoints import SessionEndpoints
from torchserve_py.apis.live.socket_session import StepSession
from torchserve_py.apis.realtime.realtime_endpoints import RealtimeEndpoints
from torchserve_py.apis.realtime.realtime_keys import transcribes
from torchserve_py.apis.sagemaker.invocations_endpoints import unnamed
from torchserve_py.core.jobs.parts import Part
from torchserve_py.endpoints.failures import Failure
from torchserve_py.endpoints.predictions import only_startup_model
from torchserve_py.endpoints.responses import AlreadySent, failure_body
from torchserve_py.endpoints.routing import EndpointContext, PathValues, Route
from torchserve_py.net.http1.request import Request
from torchserve_py.net.websocket import Kind, Message, WebSocket

#: Where SageMaker opens a WebSocket; also the endpoint of Trusses serves it, for Trusses.
BIDIRECTIONAL_STREAM: Final = "/invocations-bidirectional-stream"


class StreamSession(StepSession):
    """A session, from the upgrade to the close; the client begins."""

    def __init__(self, socket: WebSocket, template: StepTemplate) -> None:
        super().__init__(socket, template, is_text=True)
        self.sequence_id, self.token = f"stream-{secrets.token_hex(16)}", secrets.token_hex(16)

    async def take(self, message: Message) -> None:
        await self.wait_for_room()
        self.put_next(LiveStep(self.last + 1, message.data), partial(self._send_part, message.kind is Kind.text))

    async def tell_failure(self, step: StepCall, failure: Failure) -> None:
        await self.send(failure_body(failure)[0])

    async def _send_part(self, is_text: bool, part: Part) -> None:
        """Send a part as the step came, as text or as bytes; what is no text is bytes."""
        body = bytes(part.body)
        if is_text:
            try:
                body.decode()
            except UnicodeDecodeError:
                is_text = False
        await self._socket.send(body, is_text=is_text)


class BidirectionalStreamEndpoints(SessionEndpoints):
    """Opens the streams."""

    def __init__(self, context: EndpointContext) -> None:
        super().__init__(context)
        self._realtime = RealtimeEndpoints(context)

    def routes(self) -> Iterator[Route]:
        yield Route(BIDIRECTIONAL_STREAM, self._open, ("GET",))

    def _open(self, request: Request, values: PathValues) -> Coroutine[Any, Any, AlreadySent]:
        self.offered_to(request)
        name = request.parameter("model_name") or only_startup_model(self.serving)
        if name is None:
            raise unnamed(self.serving)
        model = self.serving.get(name)
        if transcribes(model):
            return self._realtime.open(request, model.name)
        return self.serve(request, model, StreamSession)
