"""One episode of a robot: each binary message is an observation, and its answer the actions."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgpack

from torchserve_py.doors.failures import DoorError, Failure
from torchserve_py.doors.live.live_steps import ENDED, Goodbye, StepExchange, Terms, end_of
from torchserve_py.doors.live.message_forms import UNSUPPORTED_DATA, Step, UnusableMessage
from torchserve_py.doors.live.socket_session import SocketSession
from torchserve_py.transport.http1.websocket import Kind, Message, WebSocket

if TYPE_CHECKING:
    from torchserve_py.jobs.parts import Part

_TIMING: Final = "server_timing"
#: The longest header of a map in msgpack.
_LONGEST_HEADER: Final = 5


class OpenpiSession(SocketSession):
    """An episode, from the upgrade to the close.

    Args:
        socket: The socket, whose handshake is accepted.
        terms: What all its steps share.
        metadata: What the client is told first.
    """

    def __init__(self, socket: WebSocket, terms: Terms, metadata: Mapping[str, Any]) -> None:
        super().__init__(socket, terms, is_text=False)
        self.sequence_id = f"openpi-{secrets.token_hex(16)}"
        self._metadata = metadata
        self._steps = 0
        self._is_begun = False
        #: When the observation came whose answer is sent now, and how long the one before took (seconds).
        self._came_at = 0.0
        self._took: float | None = None

    async def greet(self) -> None:
        """Tell the client of the policy."""
        await self.send(msgpack.packb(self._metadata))

    async def take(self, message: Message) -> Goodbye | None:
        """Submit an observation."""
        if message.kind is not Kind.binary:
            raise UnusableMessage(UNSUPPORTED_DATA, "Observations are binary messages of msgpack.")
        await self.wait_for_room()
        starts = self.is_idle and not self._is_begun
        self._steps += 1
        step = Step(self._steps, message.data)
        exchange = self.terms.submit(self.sequence_id, self._steps, step, self._send_actions, starts=starts)
        self.put(partial(self._relay, exchange, time.monotonic()), exchange)
        return None

    async def _relay(self, step: StepExchange, came_at: float) -> Goodbye | None:
        """Send the actions or why there are none; return why the session closes, if it does."""
        self._came_at = came_at
        try:
            await step.relay(await step.next())
        except DoorError as error:
            step.cancel()
            await self._socket.send(error.failure.message.encode(), is_text=True)
            return end_of(error.failure)
        self._is_begun = True
        return ENDED if step.ends else None

    async def _send_actions(self, number: int, part: Part) -> None:
        if part.more:
            message = "The model streams its answer; a policy answers in one piece."
            raise DoorError(Failure(500, "InternalServerException", message))
        timing = {"infer_ms": (time.monotonic() - self._came_at) * 1000}
        if self._took is not None:
            timing["prev_total_ms"] = self._took * 1000
        await self.send(_with_timing(part.body, timing))
        self._took = time.monotonic() - self._came_at


def _with_timing(actions: bytes | bytearray, timing: Mapping[str, float]) -> bytes:
    """Return a map of msgpack with one more entry; the entries that it has are not read."""
    reader, writer = msgpack.Unpacker(), msgpack.Packer()
    reader.feed(actions[:_LONGEST_HEADER])
    entries = reader.read_map_header()
    head, rest = writer.pack_map_header(entries + 1), memoryview(actions)[reader.tell() :]
    return b"".join((head, rest, writer.pack(_TIMING), writer.pack(timing)))
