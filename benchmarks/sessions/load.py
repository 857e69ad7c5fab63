"""Runs the planned sessions against a server, and notes what became of each step."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from benchmarks.sessions.checker import Checker
from benchmarks.sessions.plan import Step
from benchmarks.sessions.protocols import Busy, Client, SentStep, SessionLost, Unanswered

#: Seconds between two attempts at a step.
_RETRY: Final = 0.05


class Outcome(StrEnum):
    """What became of a session."""

    COMPLETED = "completed"
    REFUSED = "refused"  # the server had no room for it
    LOST = "lost"  # the server said that its state is lost
    ABANDONED = "abandoned"  # a step had no answer within the client's patience


@dataclass
class SessionResult:
    """One session.

    Attributes:
        latencies: Seconds from the moment at which each answered step was due until its answer.
        due: Steps that were due, answered or not.
        attempts: How often steps were sent.
    """

    outcome: Outcome = Outcome.COMPLETED
    due: int = 0
    attempts: int = 0
    latencies: list[float] = field(default_factory=list)
    checker: Checker = field(default_factory=Checker)


class Sessions:
    """The clients of a load.

    Args:
        patience: Seconds for which a client sends a step again before it gives its session up.
    """

    def __init__(self, client: Client, name: str, patience: float) -> None:
        self._client = client
        self._name = name
        self._patience = patience

    async def run(self, sessions: Sequence[Sequence[Step]]) -> list[SessionResult]:
        """Return what became of the sessions, once all are over."""
        begun = time.monotonic()
        return await asyncio.gather(
            *(self._session(f"{self._name}-{number}", steps, begun) for number, steps in enumerate(sessions))
        )

    async def _session(self, name: str, steps: Sequence[Step], begun: float) -> SessionResult:
        result = SessionResult(due=len(steps))
        for index, step in enumerate(steps):
            await asyncio.sleep(begun + step.due - time.monotonic())
            sent = SentStep(name, index, step.number, is_last=index == len(steps) - 1)
            outcome = await self._step(sent, result)
            if outcome is not Outcome.COMPLETED:
                result.outcome = outcome
                break
            result.latencies.append(time.monotonic() - begun - step.due)
        return result

    async def _step(self, step: SentStep, result: SessionResult) -> Outcome:
        """Send a step until it is answered, and return what it makes of its session."""
        until = time.monotonic() + self._patience
        while True:
            result.attempts += 1
            try:
                async with asyncio.timeout_at(asyncio.get_running_loop().time() + self._patience):
                    state = await self._client.send(step)
            except SessionLost:
                result.checker.gone()
                return Outcome.LOST
            except (Unanswered, TimeoutError) as error:
                if step.index == 0 and isinstance(error, Busy):
                    return Outcome.REFUSED
                if time.monotonic() > until:
                    return Outcome.ABANDONED
                await asyncio.sleep(_RETRY)
            else:
                result.checker.answered(step.number, state)
                return Outcome.COMPLETED
