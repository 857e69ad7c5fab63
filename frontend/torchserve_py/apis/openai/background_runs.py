"""Responses that are made in the background: this server's part of `ts.apis.openai.background_response`.

A run claims a response, has it generated as a request of its own, and appends what comes in groups to the sequence of
the response. After a failure another run goes on; if that was the server's end, once it is back (`continue_runs`), or
another server is asked for the response.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from torchserve_py.apis.openai import owned_ids
from torchserve_py.apis.openai.unfinished_runs import UnfinishedRuns
from torchserve_py.base.causes import Cause
from torchserve_py.core.jobs.call import Call, SequenceRequest
from torchserve_py.core.jobs.job_observer import Account
from torchserve_py.core.jobs.parts import JobFailed, Part
from torchserve_py.core.serving.errors import ModelError
from torchserve_py.core.serving.serving import ServedModel, Serving
from torchserve_py.endpoints.failures import INTERNAL, Failure, failure_of_job
from torchserve_py.endpoints.routing import EndpointContext
from torchserve_py.endpoints.sequences import NO_CLAIM, SequenceHeaders, StepClaim
from ts.apis.openai.openai_calls import CALL_HEADER, OPENAI, SEQUENCE_PREFIX, ResponsesCall
from ts.protocol.media_types import JSON

logger = logging.getLogger(__name__)

_COMPLETIONS: Final = "v1/chat/completions"
#: Seconds between two appends, unless more text than this comes earlier: each append is a commit.
_GROUP_SECONDS: Final = 0.25
_GROUP_BYTES: Final = 16_384
#: After how many seconds without text an append says that the run goes on; see `background_response.STALE`.
_ALIVE_SECONDS: Final = 4.0
#: How often a step is tried again, and how long to wait before it (seconds).
_PAUSES: Final = (0.1, 0.3, 1.0, 2.0, 4.0, 8.0)
#: How many runs in a row may bring nothing new.
_MOST_FRUITLESS: Final = 5
#: How many runs of a server that has ended go on at a time, and how often it is looked whether their model is loaded
#: (seconds).
_CONTINUED_AT_ONCE: Final = 16
_LOOK_SECONDS: Final = 1.0
#: The status of a step of a response that is there no more.
_GONE: Final = (404, 410)
#: The least status of a failure for which the client is not to blame.
_SERVERS_FAULT: Final = 500
#: Further statuses that may be others a moment later: it waited too long, another server has the sequence, or the key
#: asks for too much at once.
_MAY_PASS: Final = (408, 409, 429)


class StepRefused(Exception):
    """A step of a response's sequence was refused.

    Attributes:
        may_pass: Whether it was refused again and again, for what may be over later.
    """

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.may_pass = failure.status >= _SERVERS_FAULT or failure.status in _MAY_PASS


class _RunFailed(Exception):
    """A generation broke off, and may be made again."""


class BackgroundResponse:
    """A response that may be made in the background.

    Args:
        account: That of the client's key.

    Attributes:
        is_durable: Whether it outlives its worker.
    """

    def __init__(
        self,
        response_id: str,
        sequence: str,
        model: ServedModel,
        serving: Serving,
        headers: SequenceHeaders,
        account: Account | None,
    ) -> None:
        self.id = response_id
        self.is_durable = model.is_durable
        self._sequence = sequence
        self._model = model
        self._serving = serving
        self._headers = headers
        self._account = account

    async def step(self, call: ResponsesCall, body: bytes = b"", request_id: str | None = None) -> dict[str, Any]:
        """Run an operation on the response; try again while the worker or the store is away.

        Raises StepRefused: it is refused, or was tried often enough.
        """
        for pause in (*_PAUSES, None):
            claim = StepClaim(request_id, None, None) if request_id else NO_CLAIM
            sequence = self._headers.of_values(f"{SEQUENCE_PREFIX}{self._sequence}", None, None, claim)
            made = self._call(call, body, sequence)
            try:
                part = await made.next()
            except JobFailed as failed:
                failure = failure_of_job(failed.cause, self._model.name, None, made.sequence_id, self._model)
                if made.exceeded is not None:
                    failure = failure._replace(message=made.exceeded.message, retry_after=made.exceeded.retry_after)
            else:
                if part.error is None:
                    answer: dict[str, Any] = json.loads(part.body)
                    return answer
                failure = Failure(part.status, INTERNAL, part.error)
            finally:
                made.cancel()  # without effect on a job that has ended
            refusal = StepRefused(failure)
            if pause is None or not refusal.may_pass:
                raise refusal
            await asyncio.sleep(pause)
        raise AssertionError("the last pause ends the loop")

    def operation(self, name: str, starting_after: int = -1) -> ResponsesCall:
        """Return an operation on the response."""
        return ResponsesCall(name, self.id, starting_after=starting_after)

    async def has_loaded_since(self, refusal: StepRefused) -> bool:
        """Return whether a step was refused as no worker had loaded the model, and one has since: waits for it."""
        try:
            awaits = refusal.may_pass and not self._serving.is_loaded(self._model)
            return (awaits or refusal.failure.cause == Cause.no_worker.value) and await self._until_loaded()
        except ModelError:
            return False

    async def _until_loaded(self) -> bool:
        """Wait while the model is being loaded, as long as that may take; return whether it is loaded.

        Raises ModelError: it is served no more.
        """
        loop = asyncio.get_running_loop()
        latest = loop.time() + self._model.config.startup_timeout
        while not (is_loaded := self._serving.is_loaded(self._model)):
            if self._model.load_failure() or loop.time() > latest:
                break
            await asyncio.sleep(_LOOK_SECONDS)
        return is_loaded

    async def run(self, on_append: Callable[[], None]) -> None:
        """Make the response, unless it has ended or another server makes it; ``on_append``: after each commit."""
        fruitless, number, made = 0, 0, 0
        while fruitless < _MOST_FRUITLESS:
            with contextlib.suppress(ModelError):  # the step says so
                await self._until_loaded()
            work = await self.step(self.operation("claim_run"), json.dumps({"run": number}).encode())
            if "wait" in work:
                await asyncio.sleep(work["wait"])
                continue
            if "run" not in work:
                return
            fruitless = 0 if len(work["made"]) > made else fruitless
            number, made = work["run"], len(work["made"])
            try:
                await self._generate(work, on_append)
            except (_RunFailed, StepRefused) as failure:
                if isinstance(failure, StepRefused) and not await self.has_loaded_since(failure):
                    raise
                fruitless += 1
                logger.warning("The response %s is made again: %s", self.id, failure)
                await asyncio.sleep(_PAUSES[fruitless])
            else:
                return
        error = {"code": "server_error", "message": "The generation broke off again and again."}
        await self._append(number, "given-up", _Group(end={"error": error}))
        on_append()

    async def _generate(self, work: dict[str, Any], on_append: Callable[[], None]) -> None:
        call = self._call(ResponsesCall("run_response", self.id), json.dumps(work).encode(), self._own_sequence())
        number = 0
        try:
            async for group in _groups(call):
                answer = await self._append(work["run"], str(number), group)
                number += 1
                on_append()
                if answer["over"]:
                    return
        finally:
            call.cancel()

    async def _append(self, run: int, name: str, group: _Group) -> dict[str, Any]:
        body = json.dumps({"run": run, **vars(group)}).encode()
        return await self.step(self.operation("append_part"), body, f"{self.id}/{run}/{name}")

    def _own_sequence(self) -> SequenceRequest:
        """Return a sequence that has no other request than the generation."""
        return self._headers.of_values("", None, True)

    def _call(self, call: ResponsesCall, body: bytes, sequence: SequenceRequest) -> Call:
        headers = ((CALL_HEADER, call.encoded()), ("url_path", _COMPLETIONS), ("explain", "False"), *sequence.headers)
        made = Call(
            headers, body, JSON, OPENAI, sequence=sequence, by_default=True, via="server", account=self._account
        )
        self._serving.submit(self._model, made)
        return made


@dataclass
class _Group:
    """What is appended at a time: pieces, their tokens, and how the generation has ended, once it has."""

    pieces: list[Any] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    end: dict[str, Any] | None = None


async def _groups(call: Call) -> AsyncIterator[_Group]:
    """Yield what a generation brings, the last group with its end. Raises _RunFailed: it broke off."""
    group = _Group()
    loop = asyncio.get_running_loop()
    size, since, waiting = 0, loop.time(), None
    try:
        while True:
            waiting = waiting or asyncio.ensure_future(_next(call))
            patience = _GROUP_SECONDS if size else _ALIVE_SECONDS
            await asyncio.wait((waiting,), timeout=max(0.0, since + patience - loop.time()))
            if waiting.done():
                part, waiting = waiting.result(), None
                if part.error is not None:
                    group.end = _failure(part.status, part.error)
                    yield group
                    return
                size += len(part.body)
                for line in map(json.loads, bytes(part.body).splitlines()):
                    group.pieces += line["pieces"]
                    group.tokens += line["tokens"]
                    group.end = line["end"]
                if not part.more:
                    yield group
                    return
            if size >= _GROUP_BYTES or loop.time() >= since + (_GROUP_SECONDS if size else _ALIVE_SECONDS):
                yield group
                group, size, since = _Group(), 0, loop.time()
    finally:
        if waiting is not None:
            waiting.cancel()


def _failure(status: int, message: str) -> dict[str, Any]:
    """Return how a generation ends that is refused. Raises _RunFailed: it may be made again."""
    if status >= _SERVERS_FAULT:
        raise _RunFailed(message)
    return {"error": {"code": "invalid_prompt", "message": message}}


async def _next(call: Call) -> Part:
    try:
        return await call.next()
    except JobFailed as failed:
        raise _RunFailed(failed.cause.name) from None


class BackgroundRuns:
    """The runs of this server, and who waits for what they append."""

    def __init__(self, unfinished: UnfinishedRuns) -> None:
        self.unfinished = unfinished
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._appended: dict[str, asyncio.Event] = {}

    def ensure(self, response: BackgroundResponse) -> asyncio.Task[None]:
        """Make the response, unless this server does so already; return what does."""
        if response.id not in self._tasks:
            self._appended[response.id] = asyncio.Event()
            self._tasks[response.id] = asyncio.create_task(self._run(response))
        return self._tasks[response.id]

    async def _run(self, response: BackgroundResponse) -> None:
        try:
            if response.is_durable:
                await self.unfinished.add(response.id)
            if await self._is_made(response) and response.is_durable:
                await self.unfinished.remove(response.id)
        finally:
            del self._tasks[response.id]
            self._appended.pop(response.id).set()

    async def _is_made(self, response: BackgroundResponse) -> bool:
        """Make a response; return whether nothing is left to do for it."""
        try:
            await response.run(lambda: self._notify(response.id))
        except StepRefused as refusal:
            logger.warning("The response %s cannot be made now: %s", response.id, refusal)
            return refusal.failure.status in _GONE
        except Exception:
            logger.exception("The response %s cannot be made now", response.id)
            return False
        return True

    def _notify(self, response_id: str) -> None:
        appended, self._appended[response_id] = self._appended[response_id], asyncio.Event()
        appended.set()

    async def wait(self, response_id: str, seconds: float) -> None:
        """Wait until something may have been appended to a response."""
        appended = self._appended.get(response_id)
        if appended is None:
            await asyncio.sleep(seconds)
            return
        try:
            await asyncio.wait_for(appended.wait(), seconds)
        except TimeoutError:
            pass  # another server may have appended

    async def drain(self, limit: float) -> bool:
        """End all runs: they begin again where they were, here or on another server."""
        for task in self._tasks.values():
            task.cancel()
        return True

    async def close(self) -> None:
        """End what still runs."""
        await self.drain(0)


def runs_of(context: EndpointContext) -> BackgroundRuns:
    """Return the runs that this server has on all listeners; for `EndpointContext.shared`."""
    runs = BackgroundRuns(UnfinishedRuns(context.settings.data_folder))
    context.work.append(runs)
    return runs


async def continue_runs(context: EndpointContext) -> None:
    """Go on with what had not ended when this server did, the oldest first; what another server makes is waited for."""
    runs, room = context.shared(runs_of), asyncio.Semaphore(_CONTINUED_AT_ONCE)
    names = await runs.unfinished.oldest_first()
    await asyncio.gather(*(_continue(context, runs, name, room) for name in names))


async def _continue(context: EndpointContext, runs: BackgroundRuns, name: str, room: asyncio.Semaphore) -> None:
    """Go on with a response once its model is loaded; forget it in time if that or the client's key is gone."""
    sequence = owned_ids.sequence_of(name, owned_ids.RESPONSE) or ""
    while True:
        model = next((each for each in context.serving.models() if owned_ids.is_of_model(sequence, each)), None)
        if model is None:
            await runs.unfinished.remove_if_old(name)
            return
        if context.serving.is_loaded(model):
            break
        await asyncio.sleep(_LOOK_SECONDS)
    accounts: list[Account | None] = [None, *([] if context.tokens is None else context.tokens.accounts())]
    for account in accounts:
        if owned_ids.is_of_key(sequence, account):
            async with room:
                headers = SequenceHeaders(context.settings)
                response = BackgroundResponse(name, sequence, model, context.serving, headers, account)
                await asyncio.wait((runs.ensure(response),))
            return
    await runs.unfinished.remove_if_old(name)
