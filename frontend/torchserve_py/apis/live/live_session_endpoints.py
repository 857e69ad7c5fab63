"""The endpoint for live sessions: a WebSocket whose messages are the steps of one sequence.

    GET /sequences/{model}      GET /sequences/{model}/{version}      ?sequence=ID

A step is what a ``POST /predictions/{model}`` with the sequence's headers would be. Everything that can be refused is
refused before the upgrade; but browsers show pages nothing of such a refusal, so pages are told after it.
"""

import contextlib
from collections.abc import Coroutine, Iterator, Sequence
from functools import partial
from typing import Any, Final

from torchserve_py.apis.live.live_session import LiveSession, NamedSession
from torchserve_py.apis.live.live_steps import StepCall
from torchserve_py.apis.live.message_forms import FOR_PAGES, FORMS, refusal
from torchserve_py.apis.live.session_endpoints import SUBPROTOCOL, SessionEndpoints, first_known, offered_by
from torchserve_py.apis.live.session_ends import REPLACED, code_of_refusal
from torchserve_py.apis.live.socket_session import SocketSession
from torchserve_py.base.background_tasks import in_background
from torchserve_py.core.jobs.parts import JobFailed
from torchserve_py.endpoints.failures import Failure
from torchserve_py.endpoints.responses import ALREADY_SENT, AlreadySent
from torchserve_py.endpoints.routing import EndpointContext, PathValues, Route
from torchserve_py.net.http1.request import Request
from torchserve_py.net.websocket import WebSocket

#: How long a page that was refused has to close its WebSocket (seconds).
CLOSE_SECONDS: Final = 5.0
#: The live session that owns a sequence, by the model and the sequence's id.
_Owners = dict[tuple[str, str], LiveSession]


def _no_owners(context: EndpointContext) -> _Owners:
    return {}


class LiveSessionEndpoints(SessionEndpoints):
    """Opens live sessions; a session of a stored sequence may be resumed over another connection."""

    def __init__(self, context: EndpointContext) -> None:
        super().__init__(context)
        self._owners = context.shared(_no_owners)
        # While the server drains, sequences that no other server can continue go on.
        context.on_drain.append(lambda: self.close_sessions(lambda session: session.template.model.is_durable))

    def routes(self) -> Iterator[Route]:
        for path in ("/sequences/{model_name}", "/sequences/{model_name}/{model_version}"):
            yield Route(path, self.open, ("GET",), refuse=self.refuse)

    def open(self, request: Request, values: PathValues) -> Coroutine[Any, Any, AlreadySent]:
        """Open a session. Raises EndpointError: the request is no handshake, the model keeps no sequences, …"""
        offered = self.offered_to(request)
        version = values.get("model_version")
        model = self.serving.get(values["model_name"], version)
        form = FORMS[first_known(offered, tuple(FORMS))]

        def on_adopted(session: LiveSession, before: str) -> None:
            request.log_fields = {**request.log_fields, "sequence_id": session.sequence_id}
            self._note_owner(session, before)

        headers = [(SUBPROTOCOL, form.name)] if offered else []
        if name := request.parameter("sequence"):
            self._headers.of_values(name, None, None)
            return self.serve(request, model, partial(NamedSession, form=form, name=name), version, headers)
        return self.serve(request, model, partial(LiveSession, form=form, on_adopted=on_adopted), version, headers)

    def refuse(self, request: Request, failure: Failure) -> Coroutine[Any, Any, AlreadySent] | None:
        """Tell the page that opens a session, if one does, why it is refused."""
        if "Origin" not in request.headers or FOR_PAGES not in offered_by(request):
            return None
        socket = WebSocket(request, self.max_body, compress=False)
        if not socket.is_possible:
            return None
        request.cause = failure.cause
        return self._tell(socket, failure)

    async def _tell(self, socket: WebSocket, failure: Failure) -> AlreadySent:
        socket.accept([(SUBPROTOCOL, FOR_PAGES)])
        await socket.send(refusal(failure), is_text=True)
        code, reason = code_of_refusal(failure)
        await socket.close(code, reason.encode(), CLOSE_SECONDS)
        return ALREADY_SENT

    # Which session owns a sequence.

    def _note_owner(self, session: LiveSession, before: str) -> None:
        """Note which sequence a session owns; close the session that owned it before, whose client must have left."""
        self._disown(session, before)
        key = session.template.model.name, session.sequence_id
        if (other := self._owners.get(key)) is not None:
            other.close_with(*REPLACED)
        self._owners[key] = session

    def _disown(self, session: SocketSession, sequence_id: str) -> None:
        """Note that a session owns a sequence no more; do nothing if another session has taken it over."""
        key = session.template.model.name, sequence_id
        if self._owners.get(key) is session:
            del self._owners[key]

    def leave(self, session: SocketSession) -> None:
        """Clean up after a session. Steps of stored sequences go on, as clients can ask for their answers later."""
        self._disown(session, session.sequence_id)
        steps = session.take_unanswered()
        if session.template.model.is_durable and steps:
            in_background(self._finish(session, steps), "reading the answers of a live session")
            return
        for step in steps:
            step.cancel()
        self._release(session)

    async def _finish(self, session: SocketSession, steps: Sequence[StepCall]) -> None:
        """Read and drop the answers to steps whose client has left, so that their worker need not wait for a reader."""
        for step in steps:
            with contextlib.suppress(JobFailed):
                while not step.ended:
                    await step.next()
        self._release(session)

    def _release(self, session: SocketSession) -> None:
        """Close the sequence of a session that is over, unless another session owns it."""
        model = session.template.model
        is_shared = isinstance(session, NamedSession)
        if not is_shared and (model.name, session.sequence_id) not in self._owners:
            self.serving.release_sequence(model, session.sequence_id)
