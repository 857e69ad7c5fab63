"""Requests of the chaos clients: a step, one attempt to have it answered, and what came of the attempt."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

import aiohttp
from tests.chaos.ledger import Contradiction, Ledger

#: How long a request may take to be answered, whatever happens (seconds).
ANSWER_LIMIT = 60.0
#: Causes of refusals that never reach the sequence: it is idle meanwhile.
NOT_ADMITTED = {"sequence_moved", "draining", "queue_full", "sequence_capacity", "too_many_connections"}
#: All that a request may be told besides 200; anything else is a contradiction to the documentation.
KNOWN = {
    (409, "sequence_moved"),
    (409, "request_running"),
    (410, "sequence_expired"),
    (500, "worker_died"),
    (500, "response_timeout"),
    (503, "draining"),
    (503, "handler_error"),
    (503, "no_worker"),
    (503, "outcome_unknown"),
    (503, "sequence_queue_full"),
    (503, "sequence_store"),
}


class Result(StrEnum):
    """What an attempt says about its step."""

    ANSWERED = "answered"
    REFUSED = "refused"  # this attempt does not count; no other either unless it may be tried again
    UNKNOWN = "unknown"  # the client is asked to ask
    UNHEARD = "unheard"  # no answer: the connection is broken
    GAVE_UP = "gave up"  # no answer: the client has closed the connection
    UNREACHED = "unreached"  # the server has not got the request


@dataclass
class Step:
    """A request of a sequence, however often it is sent."""

    token: str
    request_id: str | None = None
    starts: bool = False
    ends: str = ""  # "", by the client's "header", or by the "handler"
    sleep: float = 0.0
    fail: float = 0.0
    stream: int = 0

    @property
    def body(self) -> str:
        """What the handler gets."""
        end = self.ends == "handler"
        content = {"token": self.token, "sleep": self.sleep, "fail": self.fail, "stream": self.stream, "end": end}
        return json.dumps(content)

    def headers(self, sequence: str) -> dict[str, str]:
        """The request's headers."""
        headers = {"ts_request_sequence_id": sequence, "content-type": "text/plain"}
        if self.request_id is not None:
            headers["ts_request_id"] = self.request_id
        if self.starts:
            headers["ts_request_sequence_start"] = "true"
        if self.ends == "header":
            headers["ts_request_sequence_end"] = "true"
        return headers


@dataclass
class Attempt:
    """What came of sending a step once."""

    result: Result
    status: int = 0
    cause: str = ""
    again: bool = False  # whether there was a Retry-After
    tokens: list[str] = field(default_factory=list)
    request_id: str | None = None  # the server's, if the client heard of it

    def __str__(self) -> str:
        told = f"{self.status} {self.cause}{' Retry-After' if self.again else ''} " if self.status else ""
        return f"{self.result}: {told}{self.tokens or ''} x-request-id={self.request_id}"


@dataclass
class Tally:
    """What all clients together have seen."""

    acknowledged: int = 0
    requests: int = 0
    incarnations: int = 0
    slowest: float = 0.0  # seconds from the first attempt of a step to its outcome
    asked: int = 0  # unknown outcomes that were settled by asking
    outcomes: Counter[str] = field(default_factory=Counter)
    #: Why open sequences may truly have expired that are said to; see `Timeline.why_expired`.
    expired: Counter[str] = field(default_factory=Counter)
    contradictions: list[str] = field(default_factory=list)


class Sender:
    """Sends steps to one of several servers.

    Args:
        servers: Their addresses.
        proxy: What statuses mean that a proxy before the servers answers itself, without a cause.
    """

    def __init__(
        self,
        servers: list[str],
        session: aiohttp.ClientSession,
        tally: Tally,
        proxy: Mapping[int, Result] = MappingProxyType({}),
    ) -> None:
        self.servers = servers
        self._proxy = proxy
        self._session = session
        self._tally = tally

    async def send(self, step: Step, ledger: Ledger, server: int, patience: float = ANSWER_LIMIT) -> Attempt:
        """Send a step once, and say what came of it.

        Raises:
            Contradiction: The answer is none that the documentation knows, or there is none at all.
        """
        began = time.monotonic()
        ledger.longest_gap = max(ledger.longest_gap, began - ledger.active_until)
        self._tally.requests += 1
        markers = f"{'start ' if step.starts else ''}{f'end by {step.ends} ' if step.ends else ''}"
        about = f"to {server}, {step.token}, id {step.request_id} {markers}"
        ledger.note(f"-> {about}sleep {step.sleep:.1f} fail {step.fail} stream {step.stream}")
        try:
            async with asyncio.timeout(patience):
                attempt = await self._send(step, ledger.sequence, server)
        except TimeoutError:
            attempt = Attempt(Result.GAVE_UP)
        ledger.note(f"<- {about}{attempt}")
        name = f"{attempt.status} {attempt.cause}" if attempt.status not in {0, 200} else str(attempt.result)
        self._tally.outcomes[name] += 1
        if attempt.result is Result.GAVE_UP and patience == ANSWER_LIMIT:
            raise Contradiction(f"no answer within {ANSWER_LIMIT:.0f} s")
        if attempt.status not in {0, 200} and (attempt.status, attempt.cause) not in KNOWN:
            raise Contradiction(f"an answer that is not documented here: {attempt}")
        self._was_active(ledger, server, attempt)
        return attempt

    def _was_active(self, ledger: Ledger, server: int, attempt: Attempt) -> None:
        """Who has run a sequence knows what is queued there, and nothing of requests that wait elsewhere."""
        now, is_admitted = time.monotonic(), attempt.status != 0 and attempt.cause not in NOT_ADMITTED
        if server != ledger.holder is not None:
            ledger.longest_gap = max(ledger.longest_gap, now - ledger.active_until)
            if not is_admitted:
                return
        if attempt.result is not Result.UNREACHED and attempt.cause not in NOT_ADMITTED:
            ledger.active_until = now
            ledger.holder = server

    async def _send(self, step: Step, sequence: str, server: int) -> Attempt:
        url = f"{self.servers[server]}/predictions/chaos"
        request_id = None
        try:
            async with self._session.post(url, data=step.body, headers=step.headers(sequence)) as response:
                request_id = response.headers.get("x-request-id")
                body = await response.text()
        except aiohttp.ClientConnectorError:
            return Attempt(Result.UNREACHED)
        except aiohttp.ClientPayloadError:  # a stream that broke off
            return Attempt(Result.UNKNOWN, request_id=request_id)
        except (aiohttp.ClientError, ConnectionError):
            return Attempt(Result.UNHEARD)
        if response.status == 200:
            return Attempt(Result.ANSWERED, 200, tokens=_tokens(body), request_id=request_id)
        cause = response.headers.get("ts-error-cause", "")
        if not cause and response.status in self._proxy:
            return Attempt(self._proxy[response.status])
        result = Result.UNKNOWN if cause == "outcome_unknown" else Result.REFUSED
        if result is Result.UNKNOWN and "retry-after" in response.headers:
            raise Contradiction("an unknown outcome with Retry-After")
        return Attempt(result, response.status, cause, "retry-after" in response.headers, request_id=request_id)


def _tokens(body: str) -> list[str]:
    *parts, last = body.split("\n")
    try:
        tokens = json.loads(last)
    except ValueError:
        tokens = None
    if not isinstance(tokens, list) or set(parts) - {"part"}:
        raise Contradiction(f"200 with a body that the handler has not made: {body[:200]!r}")
    return [str(token) for token in tokens]
