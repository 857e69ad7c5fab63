"""Requests of the chaos clients: a step, one attempt to have it answered, and what came of the attempt."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from tests.chaos.endpoints import TORN, UNHEARD, UNREACHED, Endpoint, HttpListeners, Server
from tests.chaos.ledger import Contradiction, Ledger

#: How long a request may take to be answered, whatever happens (seconds).
ANSWER_LIMIT = 60.0
#: Causes of refusals that never reach the sequence: it is idle meanwhile.
NOT_ADMITTED = {"sequence_moved", "draining", "queue_full", "sequence_capacity", "too_many_connections"}
#: Causes of refusals by a worker, whose server counts the idle time of the sequence from then on.
BY_WORKER = {"handler_error", "sequence_ended", "step_applied", "step_differs", "step_gap"}
#: All that a request may be told besides 200; anything else is a contradiction to the documentation.
KNOWN = {
    (409, "sequence_moved"),
    (409, "request_running"),
    (409, "step_applied"),
    (409, "step_differs"),
    (409, "step_gap"),
    (410, "sequence_ended"),
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

KNOWN_CAUSES = {cause for _, cause in KNOWN}


class Result(StrEnum):
    """What an attempt says about its step."""

    ANSWERED = "answered"
    REFUSED = "refused"  # this attempt does not count; no other either unless it may be tried again
    UNKNOWN = "unknown"  # the client is asked to ask
    UNHEARD = "unheard"  # no answer: the connection is broken
    GAVE_UP = "gave up"  # no answer: the client has closed the connection
    UNREACHED = "unreached"  # the server has not got the request


@dataclass(eq=False)
class Incarnation:
    """One sequence of a client that numbers its steps.

    Attributes:
        name: What ``ts_request_sequence_token`` says; None until the server has made it up.
        last: The number of the last step that was acknowledged.
        left: Whether the client has begun another one under the same id, or tried to.
        over: Whether the client was told that it is over.
    """

    name: str | None
    last: int = 0
    left: bool = False
    over: bool = False


@dataclass(eq=False)
class Step:
    """A request of a sequence, however often it is sent."""

    token: str
    request_id: str | None = None
    incarnation: Incarnation | None = None
    number: int | None = None
    starts: bool = False
    ends: str = ""  # "", by the client's "header", or by the "handler"
    sleep: float = 0.0
    fail: float = 0.0
    stream: int = 0
    answer: list[str] | None = None  # that was acknowledged

    @property
    def begins(self) -> bool:
        """Whether it can only be the first step of an incarnation."""
        return self.starts or self.number == 1

    @property
    def has_name(self) -> bool:
        """Whether it can be sent again and be recognized."""
        return self.request_id is not None or self.number is not None

    @property
    def body(self) -> str:
        """What the handler gets."""
        end = self.ends == "handler"
        content = {"token": self.token, "sleep": self.sleep, "fail": self.fail, "stream": self.stream, "end": end}
        return json.dumps(content)

    @property
    def said(self) -> dict[str, str]:
        """What its headers say of the sequence, besides its id."""
        headers = {}
        if self.incarnation is not None and self.incarnation.name is not None:
            headers["ts_request_sequence_token"] = self.incarnation.name
        if self.number is not None:
            headers["ts_request_step"] = str(self.number)
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
    incarnation: str | None = None  # its token, as the server says
    ended_at: float = field(default_factory=time.monotonic)

    @property
    def is_by_worker(self) -> bool:
        """Whether a worker has had the step."""
        return self.result is Result.ANSWERED or self.cause in BY_WORKER

    def __str__(self) -> str:
        told = f"{self.status} {self.cause}{' Retry-After' if self.again else ''} " if self.status else ""
        return f"{self.result}: {told}{self.tokens or ''} ts_request_id={self.request_id}"


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
    #: How late copies of steps were answered, and when they came.
    copies: Counter[str] = field(default_factory=Counter)
    latest_copy: float = 0.0  # seconds
    contradictions: list[str] = field(default_factory=list)


class Sender:
    """Sends steps to one of several servers.

    Args:
        endpoints: What sends them.
        proxy: What statuses mean that a proxy before the servers answers itself, without a cause.
    """

    def __init__(
        self,
        endpoints: HttpListeners,
        tally: Tally,
        proxy: Mapping[int, Result] = MappingProxyType({}),
    ) -> None:
        self._endpoints = endpoints
        self._proxy = proxy
        self._tally = tally

    @property
    def servers(self) -> Sequence[Server]:
        """Where steps may go."""
        return self._endpoints.servers

    async def send(
        self,
        step: Step,
        ledger: Ledger,
        server: int,
        patience: float = ANSWER_LIMIT,
        endpoint: Endpoint = Endpoint.HTTP,
    ) -> Attempt:
        """Send a step once, and say what came of it.

        Raises:
            Contradiction: The answer is none that the documentation knows, or there is none at all.
        """
        began = time.monotonic()
        ledger.longest_gap = max(ledger.longest_gap, began - ledger.active_until)
        self._tally.requests += 1
        markers = f"{'start ' if step.starts else ''}{f'end by {step.ends} ' if step.ends else ''}"
        name = f"id {step.request_id}" if step.incarnation is None else f"{step.incarnation.name} {step.number}"
        about = f"to {server}{'' if endpoint is Endpoint.HTTP else f' by {endpoint}'}, {step.token}, {name} {markers}"
        ledger.note(f"-> {about}sleep {step.sleep:.1f} fail {step.fail} stream {step.stream}")
        try:
            async with asyncio.timeout(patience):
                attempt = await self.attempt(step, ledger.sequence, server, endpoint)
        except TimeoutError:
            attempt = Attempt(Result.GAVE_UP)
        ledger.note(f"<- {about}{attempt}")
        name = f"{attempt.status} {attempt.cause}" if attempt.status not in {0, 200} else str(attempt.result)
        self._tally.outcomes[name] += 1
        if attempt.result is Result.GAVE_UP and patience == ANSWER_LIMIT:
            raise Contradiction(f"no answer within {ANSWER_LIMIT:.0f} s")
        is_known = (attempt.status, attempt.cause) in KNOWN or (
            endpoint is not Endpoint.HTTP and attempt.cause in KNOWN_CAUSES
        )
        if attempt.status not in {0, 200} and not is_known:
            raise Contradiction(f"an answer that is not documented here: {attempt}")
        self._was_active(ledger, server, attempt)
        return attempt

    def _was_active(self, ledger: Ledger, server: int, attempt: Attempt) -> None:
        """Who has run a sequence knows what is queued there, and nothing of requests that wait elsewhere."""
        now, is_admitted = time.monotonic(), attempt.status != 0 and attempt.cause not in NOT_ADMITTED
        if attempt.is_by_worker:
            ledger.worked()
        if attempt.result in {Result.REFUSED, Result.UNKNOWN, Result.GAVE_UP}:
            ledger.failed_at = now
        if server != ledger.holder is not None:
            ledger.longest_gap = max(ledger.longest_gap, now - ledger.active_until)
            if not is_admitted:
                return
        if attempt.result is not Result.UNREACHED and attempt.cause not in NOT_ADMITTED:
            ledger.active_until = now
            ledger.holder = server

    async def attempt(self, step: Step, sequence: str, server: int, endpoint: Endpoint = Endpoint.HTTP) -> Attempt:
        """Send a step once, and say what came of it; nobody counts it.

        Raises:
            Contradiction: The answer contradicts the documentation in its form.
        """
        reply = await self._endpoints.send(server, endpoint, sequence, step.body, step.said)
        if reply.status in {UNREACHED, UNHEARD}:
            return Attempt(Result.UNREACHED if reply.status == UNREACHED else Result.UNHEARD)
        request_id, incarnation = reply.headers.get("ts_request_id"), reply.headers.get("ts_sequence_token")
        if reply.status == TORN:
            return Attempt(Result.UNKNOWN, request_id=request_id)
        if reply.status == 200:
            tokens = _tokens(reply.text)
            return Attempt(Result.ANSWERED, 200, tokens=tokens, request_id=request_id, incarnation=incarnation)
        if not reply.cause and reply.status in self._proxy:
            return Attempt(self._proxy[reply.status])
        result = Result.UNKNOWN if reply.cause == "outcome_unknown" else Result.REFUSED
        again = "retry-after" in reply.headers
        if result is Result.UNKNOWN and again:
            raise Contradiction("an unknown outcome with Retry-After")
        return Attempt(result, reply.status, reply.cause, again, request_id=request_id)


def _tokens(body: str) -> list[str]:
    *parts, last = body.split("\n")
    try:
        tokens = json.loads(last)
    except ValueError:
        tokens = None
    if not isinstance(tokens, list) or set(parts) - {"part"}:
        raise Contradiction(f"200 with a body that the handler has not made: {body[:200]!r}")
    return [str(token) for token in tokens]
