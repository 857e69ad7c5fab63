"""Sends observations to openpi's endpoint: a socket for each episode, from its first step to its last.

The server names the sequence of a socket, so the steps of a recorded sequence go over one socket, and the sequence ends
with it.
"""

import contextlib
from typing import Final

import aiohttp
from yarl import URL

from torchserve_py.tools.journal.journal_record import JournalRecord
from torchserve_py.tools.replay.http_sender import LONGEST_ANSWER
from torchserve_py.tools.replay.replay_requests import ReplayRequest
from torchserve_py.tools.replay.senders import NoAnswer, NotConnected, SentAnswer

_ANSWERED: Final = "answered"
_FAILED: Final = "failed"


class EpisodeSender:
    """Sends to the server at this URL."""

    def __init__(self, http: aiohttp.ClientSession, server: str) -> None:
        self._http = http
        self._server = server
        self._sockets: dict[str, aiohttp.ClientWebSocketResponse] = {}

    def recorded_status(self, record: JournalRecord) -> str:
        """Return whether a client got actions: of failures it learns the message only."""
        return _FAILED if record["failed"] else _ANSWERED

    async def send(self, request: ReplayRequest, sequence_id: str | None) -> SentAnswer:
        """Send an observation, and read the actions, or why there are none."""
        assert sequence_id is not None, "an episode is a sequence"
        try:
            socket = self._sockets.get(sequence_id) or await self._open(request, sequence_id)
            await socket.send_bytes(request.body)
            message = await socket.receive(self._http.timeout.total)
        except aiohttp.ClientConnectorError as error:
            raise NotConnected(str(error)) from error
        except aiohttp.WSServerHandshakeError as error:
            return SentAnswer(_FAILED, (), {}, f"the server refuses the socket: {error.status} {error.message}")
        except TimeoutError as error:
            raise NoAnswer(f"no answer within {self._http.timeout.total:g} s") from error
        except (aiohttp.ClientError, ConnectionError) as error:
            raise NoAnswer(str(error) or type(error).__name__) from error
        match message.type:
            case aiohttp.WSMsgType.BINARY:
                return SentAnswer(_ANSWERED, (message.data,), {})
            case aiohttp.WSMsgType.TEXT:
                return SentAnswer(_FAILED, (), {}, str(message.data))
        raise NoAnswer(f"the server has closed the socket ({message.data}): {message.extra or 'it says no reason'}")

    async def leave(self, sequence_id: str) -> None:
        """End an episode, if it has begun."""
        if (socket := self._sockets.pop(sequence_id, None)) is not None:
            with contextlib.suppress(aiohttp.ClientError, ConnectionError, TimeoutError):
                await socket.close()

    async def _open(self, request: ReplayRequest, sequence_id: str) -> aiohttp.ClientWebSocketResponse:
        url = URL(self._server + request.path, encoded=True)
        socket = await self._http.ws_connect(url, headers=request.headers, max_msg_size=LONGEST_ANSWER)
        self._sockets[sequence_id] = socket
        await socket.receive(self._http.timeout.total)  # what the policy tells of itself
        return socket
