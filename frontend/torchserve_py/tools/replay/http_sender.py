"""Sends requests over HTTP."""

from typing import Final

import aiohttp
from yarl import URL

from torchserve_py.tools.journal.journal_record import JournalRecord
from torchserve_py.tools.replay.recorded_outcomes import BROKEN_OFF, broke_off
from torchserve_py.tools.replay.replay_requests import ReplayRequest
from torchserve_py.tools.replay.senders import NoAnswer, NotConnected, SentAnswer

#: The statuses of a server that is full.
_FULL: Final = frozenset((429, 503))
#: The most of an answer that is read, and of one that says why there is none (bytes).
LONGEST_ANSWER: Final = 256 << 20
_CHUNK: Final = 1 << 16
_MOST_SHOWN: Final = 200


class HttpSender:
    """Sends to the server at this URL."""

    def __init__(self, http: aiohttp.ClientSession, server: str) -> None:
        self._http = http
        self._server = server

    def recorded_status(self, record: JournalRecord) -> str:
        """Return the status of HTTP, or that the answer broke off."""
        return BROKEN_OFF if broke_off(record) else str(record["status"])

    async def send(self, request: ReplayRequest, sequence_id: str | None) -> SentAnswer:
        """Send a request, and read all of the answer."""
        read, is_whole = bytearray(), True
        try:
            async with self._http.request(
                request.method,
                URL(self._server + request.path, encoded=True),  # as it is: nothing in it is a step up or a host
                headers=request.headers,
                data=request.body,
                allow_redirects=False,
            ) as response:
                try:
                    async for chunk in response.content.iter_chunked(_CHUNK):
                        read += chunk
                        if len(read) > LONGEST_ANSWER:
                            raise NoAnswer(f"the answer has more than {LONGEST_ANSWER} bytes")
                except aiohttp.ClientPayloadError:
                    is_whole = False
        except aiohttp.ClientConnectorError as error:
            raise NotConnected(str(error)) from error
        except TimeoutError as error:
            raise NoAnswer(f"no answer within {self._http.timeout.total:g} s") from error
        except aiohttp.ClientError as error:
            raise NoAnswer(str(error) or type(error).__name__) from error
        told = bytes(read[:_MOST_SHOWN]).decode("utf-8", "backslashreplace") if response.status >= 400 else ""
        failure = " ".join(told.split())
        headers = {name.lower(): value for name, value in response.headers.items()}
        status = str(response.status) if is_whole else BROKEN_OFF
        return SentAnswer(status, (bytes(read),), headers, failure, response.status in _FULL)
