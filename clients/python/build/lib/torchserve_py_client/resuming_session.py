"""A live session that goes on when its connection, its worker or its server is lost."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Mapping
from typing import Any, Final, Self, cast

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.http11 import Response
from websockets.typing import Subprotocol

from .replies import CAUSE, Answer, RequestFailed, SequenceLost, SessionClosed, StepFailed
from .request_body import step_of
from .session_progress import SUBPROTOCOL, Part, SessionProgress

_ENDED: Final = 1000
_NO_CONNECTION: Final = 1006
#: The server goes away, cannot resume the session now, or has given the connection up.
_RESUMABLE: Final = frozenset({1001, 1005, _NO_CONNECTION, 1011, 1012, 1013})
_GONE: Final = 4410
#: Seconds until a lost connection, or a step, is tried again; doubled each time, up to the second number.
_FIRST_DELAY: Final = 0.05
_MOST_DELAY: Final = 1.0
#: Seconds of silence after which a server is pinged, and after which it is given up without an answer to the ping.
_SILENCE: Final = 20.0
#: Seconds after which it is noticed that a message cannot be sent at once.
_SOON: Final = 0.1


class AsyncSession:
    """A live session; `AsyncClient.session` makes it.

    Steps are answered in order. Without `receive` in between, `window` of them may be sent.
    """

    def __init__(self, url: str, headers: Mapping[str, str], patience: float, resume: str | None = None) -> None:
        self._url = url
        self._headers = dict(headers)
        self._patience = patience
        self._progress = SessionProgress(resume)
        self._socket: ClientConnection | None = None
        self._is_greeted = False
        #: Why the session is over, if it is.
        self._over: SessionClosed | SequenceLost | None = None
        self._delay = _FIRST_DELAY

    async def __aenter__(self) -> Self:
        await self._connected()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    @property
    def sequence(self) -> str:
        """The id of the session's sequence, as logs have it."""
        return self._progress.sequence

    @property
    def resume_token(self) -> str | None:
        """What lets another connection, also of another program, go on with this session: ``session(resume=…)``.

        It is a secret: whoever has it has the session. None: late steps are dropped, so that a session ends with its
        connection; or the session has a sequence with a name, by which it goes on.
        """
        return self._progress.token_for_others

    @property
    def last_step(self) -> int:
        """The number of the last step that was applied, as far as this client knows; 0: none.

        Right after ``session(resume=…)``, 0 says that nothing is stored under the token: the session begins anew.
        """
        return self._progress.last_applied

    @property
    def window(self) -> int:
        """How many steps may be without an answer."""
        return self._progress.window

    async def step(self, body: Any, *, end: bool = False) -> Answer:
        """Send a step, and return its answer; ``end`` marks the last step.

        Raises StepFailed: it has failed, and does not count unless its cause says otherwise; SequenceLost: the sequence
        is over; SessionClosed: the session is over, or could not be resumed in time.
        """
        self._need_no_unanswered()
        await self.send(body, end=end)
        return await self.receive()

    async def stream(self, body: Any, *, end: bool = False) -> AsyncIterator[bytes]:
        """Send a step, and yield the parts of its answer as they come; raises what `step` raises."""
        self._need_no_unanswered()
        await self.send(body, end=end)
        more = True
        while more:
            part = await self._next()
            more = part.more
            if part.body:
                yield part.body

    async def send(self, body: Any, *, end: bool = False) -> int:
        """Send a step without waiting for its answer, and return its number.

        Raises ValueError: `window` steps are without an answer: receive one first; SequenceLost, SessionClosed: as
        `step` does.
        """
        if self._progress.unanswered >= self.window:
            raise ValueError(f"{self.window} steps have no answer yet; receive an answer first")
        socket = await self._connected()
        number, message = self._progress.step(step_of(body), end=end)
        with contextlib.suppress(ConnectionClosed):  # `receive` resumes the session, which sends the step again
            await self._send(socket, message)
        return number

    async def receive(self) -> Answer:
        """Return the answer to the oldest step that has none; raises what `step` raises."""
        part = await self._next()
        first, bodies = part, [part.body]
        while part.more:
            part = await self._next()
            bodies.append(part.body)
        return Answer(first.status, first.headers, b"".join(bodies), first.number)

    async def close(self) -> None:
        """Close the session; a stored sequence that has not ended stays until it expires."""
        self._over = self._over or SessionClosed(_ENDED, "closed by this client")
        if self._socket is not None:
            await self._socket.close()

    def _need_no_unanswered(self) -> None:
        if self._over is not None:
            raise self._over
        if self._progress.is_awaited:
            raise ValueError("earlier steps have answers that were not received; receive them first")

    async def _next(self) -> Part:
        progress = self._progress
        end = asyncio.get_running_loop().time() + self._patience
        while not progress.has_next:
            if not progress.is_awaited:
                raise ValueError("all steps have been answered")
            try:
                await self._go_on(end)
            except ConnectionClosed as closed:
                self._lost(closed)
            except (SessionClosed, SequenceLost):
                if not progress.has_next:  # what came before the end is handed out first
                    raise
        self._delay = _FIRST_DELAY
        arrived = progress.next()
        if isinstance(arrived, StepFailed):
            raise arrived
        return arrived

    async def _go_on(self, end: float) -> None:
        """Take one message, or send again the steps that are due."""
        progress = self._progress
        socket = await self._connected()
        if progress.has_next:
            return  # the session was resumed, which brings answers
        if not progress.due:
            self._take(await self._heard(socket))
            return
        await self._wait(end, "the step could not be run")
        again = progress.messages_due()
        progress.due.clear()
        with contextlib.suppress(ConnectionClosed):  # what came before the close is heard first
            for message in again:
                await self._send(socket, message)

    def _take(self, message: bytes) -> None:
        try:
            self._progress.take(message)
        except SequenceLost as lost:
            self._over = lost
            raise

    # The connection.

    async def _connected(self) -> ClientConnection:
        """Return the connection, a new one with the session resumed if the last is lost."""
        end = asyncio.get_running_loop().time() + self._patience
        while self._socket is None:
            if self._over is not None:
                raise self._over
            if self._progress.has_ended and not self._progress.misses_answers:
                raise SessionClosed(_ENDED, "The sequence has ended.")
            try:
                await self._connect()
            except ConnectionClosed as closed:
                self._lost(closed)
                if self._over is None:
                    await self._wait(end, str(closed))
            except InvalidStatus as refused:
                if refused.response.status_code < 500:
                    raise _refusal(refused.response) from None
                await self._wait(end, str(refused))
            except (OSError, InvalidHandshake, TimeoutError) as error:
                await self._wait(end, str(error))
        return self._socket

    async def _connect(self) -> None:
        # The library's own pings would give up a server whose messages the caller is slow to take.
        options: dict[str, Any] = {"max_size": None, "compression": None, "ping_interval": None}
        forms = [Subprotocol(SUBPROTOCOL)]
        socket = await connect(self._url, subprotocols=forms, additional_headers=self._headers, **options)
        try:
            greeting = await self._heard(socket)
            is_first = not self._is_greeted
            if is_first:
                self._progress.greeted(greeting)
            if not is_first or self._progress.joins:
                await socket.send(self._progress.resume())
                while (again := self._progress.resumed(await self._heard(socket))) is None:
                    pass
                for message in again:
                    await self._send(socket, message)
        except BaseException as error:
            if isinstance(error, SequenceLost):
                self._over = error
            await socket.close()
            raise
        self._is_greeted = True
        self._socket = socket

    async def _heard(self, socket: ClientConnection) -> bytes:
        """Return the next message; a server that is silent is pinged, and given up if it does not answer that."""
        pong: Awaitable[float] | None = None
        while True:
            try:
                async with asyncio.timeout(_SILENCE):
                    return cast(bytes, await socket.recv())
            except TimeoutError:
                if pong is None or asyncio.ensure_future(pong).done():
                    pong = await socket.ping()
                else:
                    socket.transport.abort()

    async def _send(self, socket: ClientConnection, message: bytes) -> None:
        """Send a message; take what comes meanwhile, since a server reads on only if its answers are read."""
        sending = asyncio.ensure_future(socket.send(message))
        try:
            await asyncio.wait([sending], timeout=_SOON)
            while not sending.done():
                hearing = asyncio.ensure_future(self._heard(socket))
                try:
                    await asyncio.wait([sending, hearing], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    hearing.cancel()
                    await asyncio.wait([hearing])
                if not hearing.cancelled():
                    self._take(hearing.result())
            await sending
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    def _lost(self, closed: ConnectionClosed) -> None:
        """The connection is lost, and perhaps the session is over with it."""
        self._socket = None
        code, reason = (_NO_CONNECTION, "") if closed.rcvd is None else (closed.rcvd.code, closed.rcvd.reason)
        if code == _GONE:
            self._over = SequenceLost(410, reason.partition(":")[0], reason)
        elif code == _ENDED and self._progress.token is not None and self._progress.misses_answers:
            return
        elif code not in _RESUMABLE:
            self._over = SessionClosed(code, reason)
        elif self._is_greeted and self._progress.token is None:
            text = "The connection is lost, and a session that drops late steps cannot be resumed."
            self._over = SequenceLost(410, "sequence_lost", text)

    async def _wait(self, end: float, why: str) -> None:
        """Wait a little before the next attempt. Raises SessionClosed: the patience is at an end."""
        if asyncio.get_running_loop().time() + self._delay > end:
            self._over = SessionClosed(_NO_CONNECTION, f"not within {self._patience:g} seconds: {why}")
            if self._socket is not None:
                self._socket.transport.abort()
                self._socket = None
            raise self._over
        await asyncio.sleep(self._delay)
        self._delay = min(2 * self._delay, _MOST_DELAY)


def _refusal(response: Response) -> RequestFailed:
    """Return the exception for a handshake that the server has refused."""
    return RequestFailed.of(response.status_code, response.headers.get(CAUSE, ""), bytes(response.body or b""))
