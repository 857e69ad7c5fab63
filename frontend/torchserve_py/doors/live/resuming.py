"""How a client resumes a live session of a stored sequence, at any server that uses the same store.

The id of a sequence is a digest of its resume token, so a server finds the sequence of a token without storing tokens.
The number of a step is its request id, under which the store keeps the step's answer.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import TYPE_CHECKING, Final

from torchserve_py.doors.failures import HANDLER_ERROR, DoorError, failure_of_job
from torchserve_py.doors.live.live_steps import GONE, Goodbye, StepExchange, try_again
from torchserve_py.doors.live.message_forms import POLICY_VIOLATION, Resume
from torchserve_py.scheduling.effects import Cause

if TYPE_CHECKING:
    from torchserve_py.doors.live.live_session import LiveSession

_TOKEN_BYTES: Final = 24


def new_token() -> str:
    """Return a resume token that cannot be guessed."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


def sequence_of(token: str) -> str:
    """Return the id of the sequence that belongs to a resume token; the token cannot be computed from the id."""
    return f"live-{hashlib.sha256(token.encode()).hexdigest()[:40]}"


async def resume(session: LiveSession, asked: Resume) -> Goodbye | None:
    """Continue an earlier session, and send the answers that its client has missed.

    Returns:
        Why the session is over; None if it goes on.
    """
    if session.last:
        return Goodbye(POLICY_VIOLATION, "A session is resumed before its first step.")
    if len(asked.unanswered) > session.terms.window:
        return Goodbye(POLICY_VIOLATION, f"unanswered: up to {session.terms.window} steps.")
    if not session.terms.durable:
        return await _lost(session)
    session.adopt(asked.resume)
    applied: StepExchange | None = None
    for number in sorted({asked.after, *asked.unanswered} - {0}):
        step = session.ask(number)
        try:
            first = await step.next()
            applied, session.last = step, number
            if number != asked.after:
                await step.relay(first)
        except DoorError as error:
            failure = error.failure
            if failure.cause == HANDLER_ERROR:  # the step was applied, and its answer was too large to be kept
                applied, session.last = step, number
            elif failure.cause == Cause.not_applied:
                if number == asked.after:
                    return await _lost(session)
                continue
            await session.send(session.form.failure(number, failure))
            if failure.cause != HANDLER_ERROR:
                return try_again(failure)
    return await session.resumed(has_ended=applied is not None and applied.ends)


async def _lost(session: LiveSession) -> Goodbye:
    model = session.terms.model
    lost = failure_of_job(Cause.sequence_lost, model.name, session.terms.version, session.sequence_id)
    await session.send(session.form.failure(0, lost))
    return Goodbye(GONE, lost.cause)
