"""SageMaker's bidirectional stream: a WebSocket to a container, whose messages are the steps of a sequence.

    GET /invocations-bidirectional-stream[?model_name=…]

A message is a step, and each part of the answer is a message of its own, with nothing around either. With a model that
declares ``realtime: true`` the messages are those of OpenAI's realtime API.
"""

from __future__ import annotations

import secrets
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from torchserve_py.doors.failures import DoorError
from torchserve_py.doors.live.handshakes import admit, socket_of
from torchserve_py.doors.live.live_steps import ENDED, Goodbye, StepExchange, Terms, end_of
from torchserve_py.doors.live.message_forms import Step
from torchserve_py.doors.live.open_sessions import OpenSessions
from torchserve_py.doors.live.socket_session import SocketSession
from torchserve_py.doors.realtime.realtime_door import RealtimeDoor
from torchserve_py.doors.responses import Sent, failure_body
from torchserve_py.doors.routing import DoorContext, PathValues, Route
from torchserve_py.doors.surfaces import BIDIRECTIONAL_STREAM, only_startup_model, unnamed
from torchserve_py.transport.http1.websocket import Kind, Message, WebSocket

if TYPE_CHECKING:
    from torchserve_py.jobs.parts import Part
    from torchserve_py.transport.http1.request import Request


class StreamSession(SocketSession):
    """A session, from the upgrade to the close.

    Args:
        socket: The socket, whose handshake is accepted.
        terms: What its steps have in common.
    """

    def __init__(self, socket: WebSocket, terms: Terms) -> None:
        super().__init__(socket, terms, is_text=True)
        self.sequence_id = f"stream-{secrets.token_hex(16)}"
        self._steps = 0

    async def greet(self) -> None:
        """Send nothing: the client begins."""

    async def take(self, message: Message) -> Goodbye | None:
        """Submit a step."""
        await self.wait_for_room()
        send = partial(self._send_part, message.kind is Kind.text)
        self._steps += 1
        step = Step(self._steps, message.data)
        exchange = self.terms.submit(self.sequence_id, self._steps, step, send, starts=self._steps == 1)
        self.put(partial(self._relay, exchange), exchange)
        return None

    async def _relay(self, step: StepExchange) -> Goodbye | None:
        """Send the answer to a step, or its failure; return why the session is over, if it is."""
        try:
            await step.relay(await step.next())
        except DoorError as error:
            await self.send(failure_body(error.failure)[0])
            return end_of(error.failure)
        return ENDED if step.ends else None

    async def _send_part(self, is_text: bool, number: int, part: Part) -> None:
        """Send a part as the step came, as text or as bytes; what is no text is bytes."""
        body = bytes(part.body)
        if is_text:
            try:
                body.decode()
            except UnicodeDecodeError:
                is_text = False
        await self._socket.send(body, is_text=is_text)


class BidirectionalStreamDoor:
    """Opens the streams."""

    def __init__(self, context: DoorContext) -> None:
        self._context = context
        self._serving = context.serving
        self._realtime = RealtimeDoor(context)
        self._sessions = OpenSessions(context)

    @property
    def routes(self) -> Sequence[Route]:
        return [Route(BIDIRECTIONAL_STREAM, self._open, ("GET",), token=None)]

    def _open(self, request: Request, values: PathValues) -> Coroutine[Any, Any, Sent]:
        """Open a stream.

        Raises:
            DoorError: The key is wrong, the request is no handshake, the model keeps no sequences, …
        """
        admit(self._context, request)
        name = request.parameter("model_name") or only_startup_model(self._serving)
        if name is None:
            raise unnamed()
        model = self._serving.get(name)
        if model.config.realtime:
            return self._realtime.open(request, model.name)
        socket, terms = socket_of(self._context, request, model), self._sessions.terms(request, model)
        return self._sessions.serve(request, socket, lambda: StreamSession(socket, terms))
