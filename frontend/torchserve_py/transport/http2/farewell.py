"""Ending a connection so that no call is lost, in two steps (RFC 9113, 6.8).

A call that is under way when the server refuses further calls would fail without need. So the first GOAWAY only asks
the client to open no more calls. A ping follows; its answer arrives behind all calls that the client opened before it
read the GOAWAY. The last GOAWAY then names the last call that is served.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from torchserve_py.transport.http2 import frames
from torchserve_py.transport.http2.frames import ErrorCode
from torchserve_py.transport.http2.stream import Buffer

#: Time limit for the answer to the ping (seconds).
_PONG_LIMIT: Final = 5.0
_PING: Final = b"farewell"


class Farewell:
    """The farewell of one connection.

    Args:
        out: The frames that are about to leave.
        done: Called when no further call can be under way.
    """

    __slots__ = ("_done", "_timer")

    def __init__(self, out: list[Buffer], done: Callable[[], None]) -> None:
        self._done = done
        out.append(frames.goaway(frames.MAX_STREAM_ID, ErrorCode.NO_ERROR))
        out.append(frames.header(len(_PING), frames.PING, 0, 0) + _PING)
        self._timer = asyncio.get_running_loop().call_later(_PONG_LIMIT, done)

    def take_pong(self, payload: bytes) -> None:
        """Take the client's answer to a ping."""
        if payload == _PING and not self._timer.cancelled():
            self._timer.cancel()
            self._done()

    def cancel(self) -> None:
        """Stop: the connection is gone."""
        self._timer.cancel()
