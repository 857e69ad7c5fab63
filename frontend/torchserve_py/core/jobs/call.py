"""A call of a model: what a client asks, the job that the scheduler keeps, and the answer as its reader gets it.

Endpoints make a call and submit it; the scheduler, the dispatcher and the connection of a worker know nothing else of a
request. It is in one table, the scheduler's, from its submission until its worker no longer has it.

Every call ends in one of three ways: a part with ``more`` false, `JobFailed`, or `cancel` by its reader.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, Self

from torchserve_py.base.causes import Cause
from torchserve_py.core.jobs.parts import Exceeded, Inputs, JobFailed, Part
from torchserve_py.core.scheduling.job import NEW, WAITING, Job
from torchserve_py.core.scheduling.timing import Timing
from ts.protocol.messages import StepHistory
from ts.protocol.request_names import REQUEST_NAME, header_among

if TYPE_CHECKING:
    from torchserve_py.core.jobs.job_observer import Account, OnEnd, OnPart

#: The header by which a request names its version although its path names none, for testers.
VERSION_HEADER: Final = "x-model-version"
#: The header whose value decides for requests without a sequence, so that a user gets the same version each time.
USER_HEADER: Final = "x-user-id"
#: How long the client of a call that was lost with its worker waits for the reason (seconds).
_END_SECONDS: Final = 0.5

#: A random UUID (version 4) without its last 48 bits, which count. An id has to be unique, not secret, and this is many
#: times cheaper than fresh random bits for each request.
_ID_PREFIX: Final = str(uuid.uuid4())[:-12]
_numbers = itertools.count(secrets.randbits(40))

#: How a request comes to a model: from a client, a workflow, a function that calls it, or from the server itself.
Via = Literal["http", "grpc", "websocket", "zmq", "workflow", "call", "server"]
#: Ways of a job that belongs to a request which was accepted before.
_WITHIN: Final = frozenset[Via](("workflow", "call"))
#: The headers of a request that the calls within it have, too.
_PASSED_ON: Final = frozenset(("traceparent", "tracestate", REQUEST_NAME))


class SequenceRequest(NamedTuple):
    """The sequence that a request belongs to."""

    id: str  # its id, generated if the client named none
    starts: bool  # whether a sequence that has ended may be opened again
    ends: bool  # whether the sequence ends with this request
    headers: tuple[tuple[str, str], ...]  # the pairs that tell the handler so
    step: int | None = None  # the number of the request in the sequence, from 1, if the client says so
    token: str | None = None  # what names the sequence among all that have had its id, if the client says so
    is_made_up: bool = False  # whether the client named none


class CallOwner(Protocol):
    """Takes what the reader of an answer does: it has taken a part that was waiting, or has left before the end."""

    def was_read(self, call: Call) -> None: ...
    def gave_up(self, call: Call) -> None: ...


class _Nobody:
    """Owns a call that is not submitted, or was refused: there is no worker to resume, and no job to cancel."""

    def was_read(self, call: Call) -> None:
        pass

    def gave_up(self, call: Call) -> None:
        pass


_NOBODY: Final = _Nobody()


class Call(Job):
    """One call. What the client asks does not change once it is submitted, but for what the server adds to the headers,
    and for a newer body (`replace_body`).

    Attributes:
        headers: Pairs of name and value, ``bytes`` as received or ``str`` as set by the server; later ones win. Those
            of the sequence are among them.
        body: The raw body, or the parameters as ``(name, content type, value)`` triples.
        content_type: The media type of a raw body.
        protocol: The protocol that the body is in and the response is to be in, one of those that
            `ts.protocol.messages` names; None for TorchServe's own forms.
        sequence: The sequence that it belongs to, if it names one; a model that keeps none ignores it.
        by_default: Whether the client named no version; the request is counted under TorchServe's ``default`` then.
        expires_in: How many seconds it may wait for a worker, if its client has said so; the model's own limit holds as
            well.
        answer_in: After how many seconds its client gives up, if it has said so: after that, running it is pointless.
        via: How it has come, for the counts of outcomes.
        depth: How many calls of models lie between it and the client's request; 0: it is that.
        account: The account of the client's key, if it has one.
        only_ask: Whether it must not run, but asks for the kept answer to an earlier one with its request id or
            number. Only for a model whose sequences are stored.
        inputs: The further inputs, if it takes several.
        trace_id: The trace that has a span for it, if there is one.
        other_version: The version that has it, if it is another one than it was submitted to.
        exceeded: What the client is told of the limit for which it was refused: one of the client, or of its patience.
        ended: Whether the last part, or a failure, has arrived (it may still wait to be read): it has its outcome.
        buffered_bytes: The size of the parts that have arrived and were not read yet.
        heard_at: When it was sent or last answered, by the time in which this process runs; None while it may last as
            long as its client likes, because it takes several inputs.
        refusal: The answer to a call that no worker can be sent.
        owner: Is told what the reader does.
        held_since: Since when another server holds its sequence (the scheduler's time).
        part_at: When the last part of its stream came (the scheduler's time).
        overdue: Whether the worker said nothing about it for too long, and was told to drop it.
        at, ended_at, told, succeeded, state_size: What `metrics.model_metrics.EndedJob` says, once it has ended.
    """

    __slots__ = (
        *(
            "account",
            "answer_in",
            "body",
            "by_default",
            "content_type",
            "depth",
            "expires_in",
            "headers",
            "only_ask",
            "protocol",
        ),
        *("owner", "sequence", "via"),
        *("_buffer", "_copy_to", "_failure", "_is_awaited", "_waiter", "_worker_end"),
        *("buffered_bytes", "ended", "exceeded", "inputs", "other_version", "trace_id"),
        *("heard_at", "held_since", "on_end", "on_part", "overdue", "part_at", "refusal"),
        *("at", "ended_at", "state_size", "succeeded", "told"),
    )

    at: float
    ended_at: float
    told: Cause | int
    succeeded: bool
    state_size: int

    def __init__(
        self,
        headers: Sequence[tuple[Any, Any]],
        body: Any,
        content_type: str | None = None,
        protocol: str | None = None,
        *,
        sequence: SequenceRequest | None = None,
        by_default: bool = False,
        priority: int = 0,
        expires_in: float | None = None,
        answer_in: float | None = None,
        unbatched: bool = False,
        open_ended: bool = False,
        via: Via = "http",
        client: str = "",
        account: Account | None = None,
        only_ask: bool = False,
    ) -> None:
        Job.__init__(self, f"{_ID_PREFIX}{next(_numbers):012x}")
        self.headers = headers
        self.body = body
        self.content_type = content_type
        self.protocol = protocol
        self.sequence = sequence
        self.by_default = by_default
        self.priority = priority
        self.expires_in = expires_in
        self.answer_in = answer_in
        self.unbatched = unbatched
        self.open_ended = open_ended
        self.via = via
        self.depth = 0
        self.client = client
        self.account = account
        self.only_ask = only_ask
        self.on_end: OnEnd | None = None
        self.on_part: OnPart | None = None
        self.heard_at: float | None = None
        self.refusal: Part | None = None
        self.held_since: float | None = None
        self.part_at = 0.0
        self.overdue = False
        self.ended = False
        self.exceeded: Exceeded | None = None
        self.trace_id: str | None = None
        self.other_version: str | None = None
        self.inputs: Inputs | None = None
        self.buffered_bytes = 0
        self.owner: CallOwner = _NOBODY
        self._buffer: deque[Part] | None = None
        self._failure: Cause | None = None
        self._is_awaited = False
        self._worker_end: asyncio.Future[str] | None = None
        self._waiter: asyncio.Future[Part] | None = None
        self._copy_to: Callable[[Part | Cause | None], None] | None = None

    @property
    def request_line(self) -> tuple[str, str, str] | None:
        """Method, target and route of a request that has come over HTTP."""
        return None

    def keep_time(
        self,
        within: float,
        *,
        waited: float = 0.0,
        drops: bool = False,
        period: float | None = None,
        degrades: bool = False,
    ) -> None:
        """Give the call a deadline; the arguments are those of `scheduling.timing.Timing`."""
        self.timing = Timing(within, waited, drops, period, degrades)

    def header(self, name: str) -> str | None:
        """Return a header of the request, whose name is given in lower case; of several the last one counts."""
        return header_among(self.headers, name)

    def again(self, *, via: Via) -> Call:
        """Return a further call with what the client asks, which nothing else is shared with."""
        again = Call(
            self.headers,
            self.body,
            self.content_type,
            self.protocol,
            sequence=self.sequence,
            by_default=self.by_default,
            priority=self.priority,
            expires_in=self.expires_in,
            answer_in=self.answer_in,
            unbatched=self.unbatched,
            open_ended=self.open_ended,
            via=via,
            client=self.client,
            account=self.account,
            only_ask=self.only_ask,
        )
        again.depth = self.depth
        return again

    def within(
        self, body: Any, content_type: str | None, via: Via, more_headers: Sequence[tuple[str, str]] = ()
    ) -> Call:
        """Return a call that a model's answer to this one leads to: of the same client, and part of the same trace."""
        names = ((name.decode("latin-1") if isinstance(name, bytes) else name).lower() for name, _ in self.headers)
        passed_on = [pair for name, pair in zip(names, self.headers, strict=True) if name in _PASSED_ON]
        client, account = (self.account or self).client, self.account
        within = Call(
            [*passed_on, *more_headers],
            body,
            content_type,
            priority=self.priority,
            via=via,
            client=client,
            account=account,
        )
        within.depth = self.depth + 1
        return within

    # What the dispatcher and the worker's connection do.

    @property
    def is_part_of_another(self) -> bool:
        return self.via in _WITHIN

    @property
    def may_be_handed_over(self) -> bool:
        """Whether another version may run it: its client has named none, and no worker has some of its inputs."""
        return self.by_default and not (self.open_ended or self.handed_over_by is not None)

    def replace_body(self, make: Callable[[], bytes]) -> bool:
        """Make a newer body, and take it, if the call still waits for its first worker; return whether it does."""
        if self.state is not WAITING or self.sends:
            return False
        self.body = make()
        return True

    def begin_again(self, by: object | None) -> Self:
        """Become a job that no scheduler has seen, for another version; ``by`` does not run its sequence, if so."""
        self.state, self.number, self.worker_id, self.timer = NEW, 0, "", 0
        self.sent_at = self.ready_since = self.active_since = self.part_at = 0.0
        self.opens = self.failed = self.overdue = False
        self.heard_at = self.held_since = None
        self.handed_over_by = by
        return self

    def history(self, moment_of: Callable[[float], float]) -> StepHistory | None:
        """Return what the worker of a stored sequence has to know of the time before, if there is anything.

        ``moment_of`` converts the scheduler's time to that of `ts.protocol.boot_clock`.
        """
        if not (self.opens or self.was_sent_before or self.only_ask):
            return None
        asks_after = Cause.not_applied.value if self.only_ask else self.asks_after
        return StepHistory(moment_of(self.active_since), self.was_sent_before, asks_after)

    def lost_with(self, worker_end: asyncio.Future[str]) -> None:
        """Note that a worker was lost with the call, and what tells how it has ended."""
        self._worker_end = worker_end

    def deliver(self, part: Part) -> None:
        """Hand over the next part."""
        self.ended = not part.more
        if self._copy_to is not None:
            self._copy_to(part)
        if self._is_awaited:
            self._is_awaited = False
            self.first(part)
            return
        # A waiter that were kept would hold a failure, whose traceback holds the frames of the reader, and these this.
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(part)
            return
        if self._buffer is None:
            self._buffer = deque()
        self._buffer.append(part)
        self.buffered_bytes += len(part.body)

    def fail(self, cause: Cause) -> None:
        """End without an answer; parts that have arrived can still be read.

        The reader of a call that was lost with its worker is told a moment later, once it is known how that ended.
        """
        self.ended = True
        if self._copy_to is not None:
            self._copy_to(cause)
        end = self._worker_end
        if cause is not Cause.worker_died or end is None or end.done():
            self._tell(cause)
            return
        end.add_done_callback(lambda _: self._tell(cause))
        asyncio.get_running_loop().call_later(_END_SECONDS, self._tell, cause)

    def _tell(self, cause: Cause) -> None:
        """Let the reader know of a failure, unless it does."""
        if self._failure is not None:
            return
        self._failure = cause
        if self._is_awaited:
            self._is_awaited = False
            self.first(cause)
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_exception(JobFailed(cause))

    # What the reader of the answer does.

    @property
    def worker_end(self) -> str:
        """How the worker ended that was lost with the call, as in ``exited with code 1``; empty if that is unknown."""
        end = self._worker_end
        return "" if end is None or not end.done() or end.cancelled() else end.result()

    def copy_to(self, take: Callable[[Part | Cause | None], None]) -> None:
        """Call ``take``, too, with each part to come, the cause of a failure, or None if the reader leaves early.

        The call comes while the dispatcher works: ``take`` must raise nothing, submit nothing and cancel nothing.
        """
        self._copy_to = take

    def await_first(self) -> None:
        """Have `first` called with the first part, or with the cause of a failure without parts, now or later.

        `next` returns the parts that follow.
        """
        if self._buffer:
            self.first(self._take(self._buffer))
        elif self._failure is not None:
            self.first(self._failure)
        else:
            self._is_awaited = True

    def first(self, outcome: Part | Cause) -> None:
        """Take what `await_first` has waited for.

        The dispatcher may be at work: an implementation must raise nothing, submit nothing and cancel nothing.
        """
        raise NotImplementedError

    def next(self) -> Awaitable[Part]:
        """The next part, to be awaited at once. (No coroutine: this is on the path of every part.)

        Raises JobFailed: the call ended without (the rest of) an answer; awaiting the part may raise it, too.
        """
        if self._failure is not None and not self._buffer:
            raise JobFailed(self._failure)
        waiter: asyncio.Future[Part] = asyncio.get_running_loop().create_future()
        if self._buffer:
            waiter.set_result(self._take(self._buffer))
        else:
            self._waiter = waiter
        return waiter

    def take_arrived(self, limit: int) -> Sequence[Part]:
        """Return the parts that have arrived behind the one that `next` gave last, without waiting for any.

        No further part is taken once those taken have ``limit`` bytes.
        """
        if not self._buffer:
            return ()
        arrived: list[Part] = []
        size = 0
        while self._buffer and size < limit:
            arrived.append(self._buffer.popleft())
            size += len(arrived[-1].body)
        self.buffered_bytes -= size
        self.owner.was_read(self)
        return arrived

    def _take(self, buffer: deque[Part]) -> Part:
        part = buffer.popleft()
        self.buffered_bytes -= len(part.body)
        self.owner.was_read(self)
        return part

    async def send_input(self, body: bytes, *, more: bool) -> None:
        """Pass a further input on, once there is room for it; does nothing when the call has ended.

        Raises ValueError: it was not submitted as one that takes several.
        """
        if self.inputs is None:
            raise ValueError(f"job {self.id} takes no further inputs")
        await self.inputs.send(body, more=more)

    def cancel(self) -> None:
        """Give up: the reader is gone. Does nothing once the call has ended."""
        self._is_awaited = False
        if not self.ended:
            if self._copy_to is not None:
                self._copy_to(None)
            self.owner.gave_up(self)
