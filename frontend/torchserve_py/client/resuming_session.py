"""A live session that goes on when its connection, its worker or its server is lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any, Final, Self, cast

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.typing import Subprotocol

from torchserve_py.client.replies import Answer, RequestFailed, SequenceLost, SessionClosed, StepFailed
from torchserve_py.client.session_progress import SUBPROTOCOL, Part, SessionProgress

_ENDED: Final = 1000
_NO_CONNECTION: Final = 1006
#: The server goes away, cannot resume the session now, or has given the connection up.
_RESUMABLE: Final = frozenset({1001, 1005, _NO_CONNECTION, 1011, 1012, 1013})
_GONE: Final = 4410
#: Seconds until a lost connection, or a step, is tried again; doubled each time, up to the second number.
_FIRST_DELAY: Final = 0.05
_MOST_DELAY: Final = 1.0


class AsyncSession:
    """A live session; `AsyncClient.session` makes it.

    Steps are answered in order. Without `receive` in between, `window` of them may be sent.

    Args:
        url: Of the WebSocket.
        headers: Of the handshake.
        patience: Seconds for which a lost connection, or a step, is tried again.
    """

    def __init__(self, url: str, headers: Mapping[str, str], patience: float) -> None:
        self._url = url
        self._headers = dict(headers)
        self._patience = patience
        self._progress = SessionProgress()
        self._socket: ClientConnection | None = None
        self._is_greeted = False
        self._is_closed = False
        self._delay = _FIRST_DELAY

    async def __aenter__(self) -> Self:
        await self._connected()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def sequence(self) -> str:
        """The id of the session's sequence, as logs have it."""
        return self._progress.sequence

    @property
    def window(self) -> int:
        """How many steps may be without an answer."""
        return self._progress.window

    async def step(self, body: bytes | str, *, end: bool = False) -> Answer:
        """Send a step, and return its answer; ``end`` marks the last step.

        Raises StepFailed: it has failed, and does not count unless its cause says otherwise; SequenceLost: the sequence
        is over; SessionClosed: the session is over, or could not be resumed in time.
        """
        self._need_no_unanswered()
        await self.send(body, end=end)
        return await self.receive()

    async def stream(self, body: bytes | str, *, end: bool = False) -> AsyncIterator[bytes]:
        """Send a step, and yield the parts of its answer as they come; raises what `step` raises."""
        self._need_no_unanswered()
        await self.send(body, end=end)
        more = True
        while more:
            part = await self._next()
            more = part.more
            if part.body:
                yield part.body

    async def send(self, body: bytes | str, *, end: bool = False) -> int:
        """Send a step without waiting for its answer, and return its number.

        Raises ValueError: `window` steps are without an answer: receive one first; SequenceLost, SessionClosed: as
        `step` does.
        """
        if self._progress.unanswered >= self.window:
            raise ValueError(f"{self.window} steps have no answer yet; receive an answer first")
        socket = await self._connected()
        number, message = self._progress.step(body.encode() if isinstance(body, str) else body, end=end)
        with contextlib.suppress(ConnectionClosed):  # `receive` resumes the session, which sends the step again
            await socket.send(message)
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
        self._is_closed = True
        if self._socket is not None:
            await self._socket.close()

    def _need_no_unanswered(self) -> None:
        if self._progress.unanswered or self._progress.arrived:
            raise ValueError("earlier steps have answers that were not received; receive them first")

    async def _next(self) -> Part:
        progress = self._progress
        end = asyncio.get_running_loop().time() + self._patience
        while not progress.arrived:
            if not progress.unanswered:
                raise ValueError("all steps have been answered")
            try:
                socket = await self._connected()
                again = progress.take(cast(bytes, await socket.recv()))
                if again is not None:
                    await self._wait(end, "the step could not be run")
                    await socket.send(again)
            except ConnectionClosed as closed:
                self._lost(closed)
        self._delay = _FIRST_DELAY
        arrived = progress.arrived.popleft()
        if isinstance(arrived, StepFailed):
            raise arrived
        return arrived

    # The connection.

    async def _connected(self) -> ClientConnection:
        """Return the connection, a new one with the session resumed if the last is lost."""
        end = asyncio.get_running_loop().time() + self._patience
        while self._socket is None:
            if self._is_closed or self._progress.has_ended:
                raise SessionClosed(_ENDED, "The sequence has ended.")
            try:
                await self._connect()
            except ConnectionClosed as closed:
                self._lost(closed)
                await self._wait(end, str(closed))
            except InvalidStatus as refused:
                if refused.response.status_code < 500:
                    message = (refused.response.body or b"").decode(errors="replace")
                    raise RequestFailed(refused.response.status_code, "", message) from None
                await self._wait(end, str(refused))
            except (OSError, InvalidHandshake, TimeoutError) as error:
                await self._wait(end, str(error))
        return self._socket

    async def _connect(self) -> None:
        options: dict[str, Any] = {"max_size": None, "compression": None}
        forms = [Subprotocol(SUBPROTOCOL)]
        socket = await connect(self._url, subprotocols=forms, additional_headers=self._headers, **options)
        try:
            greeting = cast(bytes, await socket.recv())
            if not self._is_greeted:
                self._progress.greeted(greeting)
                self._is_greeted = True
            else:
                await socket.send(self._progress.resume())
                while (again := self._progress.resumed(cast(bytes, await socket.recv()))) is None:
                    pass
                for message in again:
                    await socket.send(message)
        except BaseException:
            await socket.close()
            raise
        self._socket = socket

    def _lost(self, closed: ConnectionClosed) -> None:
        """The connection is lost. Raises SessionClosed, SequenceLost: the session is over with it."""
        self._socket = None
        code, reason = (_NO_CONNECTION, "") if closed.rcvd is None else (closed.rcvd.code, closed.rcvd.reason)
        if code == _GONE:
            raise SequenceLost(410, reason.partition(":")[0], reason)
        if code not in _RESUMABLE:
            raise SessionClosed(code, reason)
        if self._is_greeted and not self._progress.is_resumable:
            raise SequenceLost(410, "sequence_lost", "The connection is lost, and the model has no store of sequences.")

    async def _wait(self, end: float, why: str) -> None:
        """Wait a little before the next attempt. Raises SessionClosed: the patience is at an end."""
        if asyncio.get_running_loop().time() + self._delay > end:
            raise SessionClosed(_NO_CONNECTION, f"not within {self._patience:g} seconds: {why}")
        await asyncio.sleep(self._delay)
        self._delay = min(2 * self._delay, _MOST_DELAY)
