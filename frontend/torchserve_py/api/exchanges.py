"""Exchanges: what doors make of inference requests, from the job to the answer.

A door that has turned a request into a job returns the `Exchange`. Who waits for the outcome is another matter: the
task that the door runs in (`answered`), or nobody but a callback (`fast_path`).
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol

from torchserve_py.api.requests import HttpRequest
from torchserve_py.api.responses import Responses, Sent
from torchserve_py.scheduling.effects import Cause
from torchserve_py.workers.parts import JobFailed, Part, Parts


class Exchange(Protocol):
    """A request that has become a job, and what is made of the job's outcome."""

    @property
    def parts(self) -> Parts:
        """What the job answers."""

    def tell(self, outcome: Part | Cause) -> Sent | Coroutine[Any, Any, Sent]:
        """Write the answer, of which ``outcome`` is the first part, or why there is none.

        Returns:
            The answer, if one write is all of it, be it that the client has yet to take it; else what writes it.
        """


async def answered(exchange: Exchange, request: HttpRequest, responses: Responses) -> Sent:
    """Wait for the outcome, and write the answer at the client's pace."""
    outcome: Part | Cause
    try:
        try:
            outcome = await exchange.parts.next()
        except JobFailed as failed:
            outcome = failed.cause
        return await told(exchange, outcome, request, responses)
    finally:
        exchange.parts.cancel()  # does nothing to a job that has ended; the client of any other is gone


async def told(exchange: Exchange, outcome: Part | Cause, request: HttpRequest, responses: Responses) -> Sent:
    """Write the answer at the client's pace."""
    answer = exchange.tell(outcome)
    if not isinstance(answer, Sent):
        return await answer
    return await responses.taken(request, answer) if request.protocol.writing_paused else answer
