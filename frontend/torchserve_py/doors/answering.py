"""What doors reply to a request, and how a reply becomes an answer.

A door says what is to become of a request, and not who waits for it. Where that is known at once, or is one answer of
one job, `Answering` needs no task: it goes on in the callback of the read that completes the request's body, and in the
callback of the job's result. Everything else runs in a task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple

from torchserve_py.doors.access_log import log_answer
from torchserve_py.doors.pipeline import HttpDialect, HttpExchange
from torchserve_py.doors.requests import body_refusal
from torchserve_py.doors.responses import Sent
from torchserve_py.jobs.parts import Part, Parts
from torchserve_py.scheduling.effects import Cause
from torchserve_py.transport.http1.errors import BodyError
from torchserve_py.transport.http1.request import Request

if TYPE_CHECKING:
    from torchserve_py.doors.routing import Router

logger = logging.getLogger(__name__)


class AfterBody(NamedTuple):
    """A reply that needs the request's body.

    Attributes:
        limit: Bytes that the body may have.
        then: Gives the reply, once the body is there.
        dialect: How to tell the client what goes wrong with the body, and what ``then`` raises; None for TorchServe's.
    """

    limit: int
    then: Callable[[bytes], Reply]
    dialect: HttpDialect | None = None


#: An answer that was sent, a job, a body to wait for, or a coroutine that gives another reply and takes a task.
Reply = Sent | HttpExchange | AfterBody | Coroutine[Any, Any, Any]


class Answering:
    """One request, from its head to its answer, as far as that takes no task; and the task, where it takes one."""

    __slots__ = ("_dialect", "_is_logged", "_parts", "_request", "_router", "_task")

    def __init__(self, request: Request, router: Router, *, is_logged: bool) -> None:
        self._request = request
        self._router = router
        self._is_logged = is_logged
        self._dialect: HttpDialect | None = None
        self._parts: Parts | None = None
        self._task: asyncio.Task[None] | None = None
        request.on_lost = self._lost

    def begin(self) -> None:
        """Ask the doors for a reply, and follow it."""
        try:
            self._follow(self._router.reply(self._request))
        except Exception as error:
            self._fail(error)

    def _follow(self, reply: Reply) -> None:
        if isinstance(reply, AfterBody):
            self._dialect = reply.dialect
            self._request.when_read(reply.limit, lambda body: self._go_on(reply, body))
        elif isinstance(reply, Sent):
            self._finish(reply)
        elif isinstance(reply, HttpExchange):
            self._parts = reply.parts
            reply.parts.tell_first(lambda outcome: self._tell(reply, outcome))
        else:
            self._run(reply)

    def _go_on(self, reply: AfterBody, body: bytes | BodyError) -> None:
        try:
            if isinstance(body, BodyError):
                raise body_refusal(body)
            self._follow(reply.then(body))
        except Exception as error:
            self._fail(error)

    def _tell(self, exchange: HttpExchange, outcome: Part | Cause) -> None:
        """Write the answer. This is called amid the dispatcher's work: no error may leave it."""
        try:
            told = exchange.tell(outcome)
            if not isinstance(told, Sent):
                self._run(told)
                return
            if not exchange.parts.ended:
                asyncio.get_running_loop().call_soon(exchange.parts.cancel)
            self._finish(told)
        except Exception as error:
            self._fail(error)

    def _run(self, coroutine: Coroutine[Any, Any, Reply]) -> None:
        self._task = asyncio.get_running_loop().create_task(self._wait(coroutine))
        self._task.add_done_callback(lambda _: coroutine.close())  # it may not have begun when the client left

    async def _wait(self, coroutine: Coroutine[Any, Any, Reply]) -> None:
        try:
            self._follow(await coroutine)
        except Exception as error:
            if isinstance(error, ConnectionError) and not self._request.is_connected:
                logger.debug("The client left before it was answered")
                self._request.finish()
            else:
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Answer with what a door has raised, if it can still be told."""
        if self._parts is not None and not self._parts.ended:
            asyncio.get_running_loop().call_soon(self._parts.cancel)
        if self._request.status:
            logger.error(
                "The answer to a request could not be finished", exc_info=error, extra=self._request.log_fields
            )
            self._request.finish()
            return
        try:
            self._finish(self._router.fail(self._request, error, self._dialect))
        except Exception:
            logger.exception("An answer could not be written")
            self._request.finish()

    def _finish(self, sent: Sent) -> None:
        if self._is_logged and not sent.is_quiet:
            log_answer(self._request)
        self._request.finish()

    def _lost(self) -> None:
        """The client is gone."""
        if self._parts is not None:
            self._parts.cancel()
        if self._task is not None:
            self._task.cancel()
