"""Copies of requests that come late: minutes later, after the end, in the next incarnation, by another server or
endpoint.

Only steps with numbers are copied, and only once their fate is decided: their incarnation is over, or it has a step
with the same number that was acknowledged. From then on no copy may be applied, whatever it says besides, and its
answer is the one that was given before, or a refusal that is true.
"""

import asyncio
import random
import time
from collections import Counter
from dataclasses import replace

from tests.chaos.attempts import ANSWER_LIMIT, Attempt, Incarnation, Result, Sender, Step, Tally
from tests.chaos.endpoints import Endpoint
from tests.chaos.ledger import ELSEWHERE, Contradiction, Ledger
from tests.chaos.timeline import Timeline

#: Of the steps, how many are copied.
RATE = 0.5
#: How late copies are (seconds).
DELAYS = [(0.1, 3.0), (3.0, 20.0), (20.0, 240.0)]
#: Seconds between two looks whether the fate of a step is decided, and after which nobody looks any more.
LOOK, GIVE_UP = 0.5, 60.0
#: How often a copy is sent, at most, until its answer says something of the step.
TRIES = 4
#: Refusals that say nothing of the step.
PASSING = {"draining", "no_worker", "queue_full", "sequence_capacity", "sequence_moved", "sequence_queue_full"}
PASSING |= {"outcome_unknown", "sequence_store", "too_many_connections"}


class Copier:
    """Keeps copies of steps and sends them late."""

    def __init__(self, sender: Sender, tally: Tally, timeline: Timeline) -> None:
        self._sender = sender
        self._tally = tally
        self._timeline = timeline
        self._hurry = asyncio.Event()
        self._copies: list[asyncio.Task[None]] = []

    def keep(self, step: Step, ledger: Ledger) -> None:
        """Send perhaps a step again later."""
        if random.random() < RATE:
            self._copies.append(asyncio.create_task(self._copy(step, ledger)))

    async def finish(self) -> None:
        """Send all that is left to send now."""
        self._hurry.set()
        await asyncio.gather(*self._copies)

    async def _copy(self, step: Step, ledger: Ledger) -> None:
        incarnation, kept_at = step.incarnation, time.monotonic()
        assert incarnation is not None
        await self._wait(random.uniform(*random.choice(DELAYS)))
        while not _is_decided(step, incarnation):
            if time.monotonic() > kept_at + GIVE_UP or self._hurry.is_set():
                return
            await self._wait(LOOK)
        late = time.monotonic() - kept_at
        is_open = not (incarnation.over or incarnation.left)
        self._tally.copies["while it is open" if is_open else "after its end"] += 1
        self._tally.latest_copy = max(self._tally.latest_copy, late)
        try:
            for _ in range(TRIES):
                if await self._send(step, incarnation, ledger, late):
                    break
                await asyncio.sleep(LOOK)
        except Contradiction as contradiction:
            story = self._timeline.story(ledger)
            self._tally.contradictions.append(f"{ledger.sequence}: late copy: {contradiction}\n{story}")

    async def _wait(self, seconds: float) -> None:
        await asyncio.wait([asyncio.ensure_future(self._hurry.wait())], timeout=seconds)

    async def _send(self, step: Step, incarnation: Incarnation, ledger: Ledger, late: float) -> bool:
        """Send a copy; return whether its answer says something of the step.

        Raises:
            Contradiction: The answer cannot be.
        """
        server = random.randrange(len(self._sender.servers))
        endpoint = random.choice([Endpoint.HTTP, *self._sender.servers[server].endpoints])
        copy = replace(step, sleep=step.sleep)
        if has_other_body := random.random() < 0.25:
            copy.token = f"{step.token}-other"
        if step.number == 1:
            copy.starts = random.random() < 0.5
        about = f"copy of {step.token} ({incarnation.name} {step.number}) {late:.1f} s late to {server} by {endpoint}"
        about += f"{' start' if copy.starts else ''}{', other body' if has_other_body else ''}"
        ledger.note(f"-> {about}")
        ledger.copied_at = time.monotonic()
        try:
            async with asyncio.timeout(ANSWER_LIMIT):
                attempt = await self._sender.attempt(copy, ledger.sequence, server, endpoint)
        except TimeoutError:
            raise Contradiction(f"{about}: no answer within {ANSWER_LIMIT:.0f} s") from None
        finally:
            ledger.holder, ledger.copied_at = ELSEWHERE, time.monotonic()
        if attempt.is_by_worker:
            ledger.worked()
        ledger.note(f"<- {about}: {attempt}")
        self._tally.copies[f"{attempt.status} {attempt.cause}".strip() if attempt.status else str(attempt.result)] += 1
        is_same = None if endpoint is not Endpoint.HTTP and not has_other_body else not has_other_body
        if why := what_contradicts(step, incarnation, attempt, is_same=is_same):
            raise Contradiction(f"{about} gets {attempt}: {why}")
        return not _is_silent(attempt)


def _is_decided(step: Step, incarnation: Incarnation) -> bool:
    return incarnation.last > 0 and ((step.number or 0) <= incarnation.last or incarnation.over)


def _is_silent(attempt: Attempt) -> bool:
    return attempt.result in {Result.UNHEARD, Result.UNREACHED} or attempt.cause in PASSING


def what_contradicts(step: Step, incarnation: Incarnation, attempt: Attempt, *, is_same: bool | None) -> str:
    """Say what is wrong with the answer to a copy; "" if nothing is.

    Args:
        is_same: Whether the copy has the same body as the step; None if the same text came by another endpoint, which
        may
            be another body.
    """
    if _is_silent(attempt):
        return ""
    number, cause = step.number or 0, attempt.cause
    if attempt.result is Result.ANSWERED:
        if step.answer is None:
            return "the step does not count"
        if is_same is False:
            return "the step had another body"
        if not (attempt.tokens == step.answer and attempt.incarnation == incarnation.name):
            return f"the answer was {step.answer} under {incarnation.name}, now it is under {attempt.incarnation}"
        return ""
    if number <= incarnation.last and cause == "step_applied":
        return ""
    if number <= incarnation.last and cause == "step_differs":
        return "the body is the same" if is_same and step.answer is not None else ""
    is_over = incarnation.left or (incarnation.over and number > incarnation.last)
    if is_over and cause == "sequence_ended":
        return ""
    if incarnation.over and number > incarnation.last and cause == "sequence_expired":
        return ""
    return "no such refusal is true"


def told(copies: Counter[str]) -> str:
    """Return how copies were answered, as text."""
    return ", ".join(f"{count} × {what}" for what, count in copies.most_common())
