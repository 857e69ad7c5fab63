"""The heartbeat of a worker: a connection and a thread of its own, while the main thread is busy.

A stopped process, or one whose interpreter is stuck, does not answer the frontend's pings; a long inference does.
"""

import os
import threading
import time
from collections.abc import Sequence
from typing import Final

from ts.connection.frontend_connection import FrontendConnection, FrontendGone
from ts.protocol.frames import FrameError
from ts.protocol.messages import EVICTIONS, HEARTBEAT_CHANNEL, PING, PONG, STORE_SIZE, WANTED

#: How long the main thread may go on after the frontend has gone: an inference that hangs must not keep the process.
_GRACE_SECONDS: Final = 10.0


class Heartbeat:
    """Answers pings until the frontend is gone. Raises OSError: the frontend does not listen at ``address``."""

    def __init__(self, address: str, token: str, rank: int = 0) -> None:
        self._connection = FrontendConnection(address, HEARTBEAT_CHANNEL, token, rank)
        self._sending = threading.Lock()
        threading.Thread(target=self._answer_pings, name="heartbeat", daemon=True).start()

    def tell_wanted(self, sequence_ids: Sequence[str]) -> None:
        """Tell the frontend which stored sequences other servers ask for; any thread may call this."""
        with self._sending:
            self._connection.send([WANTED, list(sequence_ids)])

    def tell_evictions(self, may_evict: bool, count: int) -> None:
        """Tell the frontend whether the store may drop sequences by itself, and how many keys it has dropped ever."""
        with self._sending:
            self._connection.send([EVICTIONS, may_evict, count])

    def tell_store_size(self, size: int, sequences: int | None) -> None:
        """Tell the frontend how many bytes the store has, and how many sequences, if it is known."""
        with self._sending:
            self._connection.send([STORE_SIZE, size, sequences])

    def _answer_pings(self) -> None:
        try:
            while True:
                message = self._connection.receive(wait=True)
                if message is not None and message[0] == PING:
                    with self._sending:
                        self._connection.send([PONG, message[1]])
        except (FrontendGone, FrameError):
            # The main thread sees the end of its own connection as soon as it looks there; usually it is gone first.
            time.sleep(_GRACE_SECONDS)
            os._exit(1)
