"""The thread that answers the frontend's pings on a connection of its own, while the main thread is busy.

A stopped process, or one whose interpreter is stuck, does not answer; a long inference does.
"""

import os
import threading
import time

from ts.frontend_connection import Connection, FrontendGone
from ts.protocol.frames import FrameError
from ts.protocol.messages import HEARTBEAT_CHANNEL, PING, PONG

#: How long the main thread may go on after the frontend has gone: an inference that hangs must not keep the process.
_GRACE_SECONDS = 10.0


def start_heartbeat(address: str, token: str, rank: int = 0) -> None:
    """Connect to the frontend and answer its pings. Raises OSError: the frontend does not listen at ``address``."""
    connection = Connection(address, HEARTBEAT_CHANNEL, token, rank)
    threading.Thread(target=_answer_pings, args=(connection,), name="heartbeat", daemon=True).start()


def _answer_pings(connection: Connection) -> None:
    try:
        while True:
            message = connection.receive(wait=True)
            if message is not None and message[0] == PING:
                connection.send([PONG, message[1]])
    except (FrontendGone, FrameError):
        # The main thread sees the end of its own connection as soon as it looks there; usually it is gone before this.
        time.sleep(_GRACE_SECONDS)
        os._exit(1)
