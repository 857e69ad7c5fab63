"""Ending a connection so that no call is lost, in two steps (RFC 9113, 6.8).

A call that is under way to the server when it says that it takes no more would fail, although nothing is wrong. So
GOAWAY first says no more than "open no more calls". A ping follows it: when its answer is here, so is every call that
the client opened before it knew. Only then does the last GOAWAY say which calls are served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from torchserve_py.transport.http2 import frames
from torchserve_py.transport.http2.frames import ErrorCode
from torchserve_py.transport.http2.stream import Buffer

#: How long the answer to the ping is waited for (seconds).
_PONG_LIMIT: Final = 5.0
_PING: Final = b"farewell"


class Farewell:
    """One that has begun.

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
        """The client has answered a ping."""
        if payload == _PING and not self._timer.cancelled():
            self._timer.cancel()
            self._done()

    def cancel(self) -> None:
        """The connection is gone."""
        self._timer.cancel()
