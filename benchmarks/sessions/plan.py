"""When sessions begin, when their steps are due, when they go away: an open load, which no slow server slows down."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Offered:
    """What is offered to a server.

    Attributes:
        rate: Sessions that begin per second, on average; they come at random.
        period: Seconds between the steps of a session.
        steps: Steps of each session.
        seconds: How long sessions begin.
        leaving: The share of sessions that go away after half of their steps, and come back.
        away: Seconds for which they are away.
        seed: Of the random moments and numbers.
    """

    rate: float = 5.0
    period: float = 0.1
    steps: int = 50
    seconds: float = 30.0
    leaving: float = 0.2
    away: float = 5.0
    seed: int = 1


class Step(NamedTuple):
    """A step of a session: when it is due, in seconds from the beginning of the load, and what it adds."""

    due: float
    number: int


def sessions_of(offered: Offered) -> list[tuple[Step, ...]]:
    """Return the steps of each session, in the order in which the sessions begin."""
    chance = random.Random(offered.seed)
    sessions = []
    begins = chance.expovariate(offered.rate)
    while begins < offered.seconds:
        pause = offered.away if chance.random() < offered.leaving else 0.0
        steps = []
        for index in range(offered.steps):
            is_back = index >= offered.steps // 2
            due = begins + index * offered.period + (pause if is_back else 0.0)
            steps.append(Step(due, chance.randint(1, 999)))
        sessions.append(tuple(steps))
        begins += chance.expovariate(offered.rate)
    return sessions
