"""The open sessions of an API in which a session ends with its connection."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from torchserve_py.doors.live.handshakes import terms_of
from torchserve_py.doors.responses import Sent
from torchserve_py.doors.sequences import SequenceHeaders

if TYPE_CHECKING:
    from torchserve_py.core.serving import ServedModel
    from torchserve_py.doors.live.live_steps import Terms
    from torchserve_py.doors.live.socket_session import SocketSession
    from torchserve_py.doors.routing import DoorContext
    from torchserve_py.transport.http1.request import Request
    from torchserve_py.transport.http1.websocket import WebSocket


class OpenSessions:
    """Serves sessions, ends their sequences, and closes them when the server shuts down."""

    def __init__(self, context: DoorContext) -> None:
        self._context = context
        self._headers = SequenceHeaders(context.settings)
        self._sessions: set[SocketSession] = set()
        context.on_close.append(self._close)

    def terms(self, request: Request, model: ServedModel, version: str | None = None) -> Terms:
        """Return what the steps of a session with a model have in common; ``version`` is the one that the client named.

        Raises:
            DoorError: The content type or the priority of the handshake is unusable.
        """
        return terms_of(self._context, request, model, version, self._headers.of_step)

    async def serve(
        self,
        request: Request,
        socket: WebSocket,
        make: Callable[[], SocketSession],
        headers: Iterable[tuple[str, str]] = (),
    ) -> Sent:
        """Accept a handshake, and serve the session to its end.

        Args:
            request: The handshake.
            socket: Its WebSocket.
            make: Makes the session.
            headers: Headers of the answer to the handshake.
        """
        session = make()
        request.log_fields = {"sequence_id": session.sequence_id}
        socket.accept(headers)
        self._sessions.add(session)
        try:
            await session.run()
        finally:
            self._sessions.discard(session)
            for step in session.unanswered():
                step.cancel()
            self._context.serving.release_sequence(session.terms.model, session.sequence_id)
        return Sent()

    def _close(self) -> None:
        for session in self._sessions:
            session.close_later()
