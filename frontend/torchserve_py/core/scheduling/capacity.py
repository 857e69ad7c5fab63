"""Whether the steps of periodic sessions are all in time on one worker, whatever their phases.

A worker takes a batch whenever it is idle: the waiting steps with the earliest deadlines, as many as fit. Take a step
that is late, and the last moment before at which a batch was begun that took every waiting step with a deadline no
later than that step's. Since then only steps with such deadlines ran, in full batches but for the last, and all of them
arrived after that moment. So no step is late if, in every interval, the longest batch that can be under way at its
beginning and the batches of all steps that arrive and are due within it take no longer than the interval. That is the
processor demand criterion (S. Baruah, A. Mok, L. Rosier, "Preemptively Scheduling Hard-Real-Time Sporadic Tasks on One
Processor", RTSS 1990) with blocking and with batches.
"""

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

#: A step may come earlier than its session's period says, by this share of the period.
EARLY = 0.25
#: How many intervals are looked at; a load that needs more is so near to the limit that it counts as too much.
_MOST_INTERVALS = 1_000


class SessionKind(NamedTuple):
    """Sessions with a step in each period, to be answered within some time of its arrival. Both are in seconds."""

    period: float
    within: float


#: How many sessions there are of each kind.
Sessions = Mapping[SessionKind, int]


def slack(sessions: Sessions, table: Sequence[float], safety: float) -> float:
    """Return how many seconds a batch may take that is under way when steps come, so that all of them are in time.

    Args:
        table: The seconds that a batch takes, by its size from 0 to that of a full one.
        safety: The share of the time that is kept free.

    Returns:
        Infinity without sessions, minus infinity if there are too many.
    """
    size, share = len(table) - 1, 1 - safety
    of_step = table[size] / size
    beyond = max(seconds - number * of_step for number, seconds in enumerate(table))
    rate = sum(count / kind.period for kind, count in sessions.items())
    burst = sum(count * max(0.0, 1 + EARLY - kind.within / kind.period) for kind, count in sessions.items())
    if of_step * rate >= share:
        return -math.inf
    least = math.inf
    for number, length in enumerate(_intervals(sessions)):
        if length * (share - of_step * rate) - of_step * burst - beyond >= least:
            return least  # no longer interval leaves less
        if number == _MOST_INTERVALS:
            return -math.inf
        steps = sum(count * _due_within(length, kind) for kind, count in sessions.items())
        least = min(least, length * share - _seconds(steps, table))
    return least


def fits(sessions: Sessions, table: Sequence[float], safety: float) -> bool:
    """Return whether the steps of all these sessions are in time on one worker; see `slack`."""
    return slack(sessions, table, safety) >= longest_batch(sessions, table)


def longest_batch(sessions: Sessions, table: Sequence[float]) -> float:
    """Return how many seconds a batch of these sessions takes at the most."""
    return table[min(sum(sessions.values()), len(table) - 1)]


def load(sessions: Sessions, table: Sequence[float], safety: float) -> float:
    """Return which part of the time that may be promised is: 1 is all of it, more is too much."""
    if not sessions:
        return 0.0
    rate = sum(count / kind.period for kind, count in sessions.items())
    promised = rate * table[-1] / (len(table) - 1)
    before = longest_batch(sessions, table)
    for kind in sessions:
        steps = sum(count * _due_within(kind.within, each) for each, count in sessions.items())
        promised = max(promised, (before + _seconds(steps, table)) / kind.within)
    return promised / (1 - safety)


def _intervals(sessions: Sessions) -> Iterator[float]:
    """Return the lengths of intervals within which one more step can arrive and be due, the shortest first."""
    return heapq.merge(*map(_intervals_of, sessions))


def _intervals_of(kind: SessionKind) -> Iterator[float]:
    number = 0
    while True:
        yield kind.within + max(0.0, number - EARLY) * kind.period
        number += 1


def _due_within(length: float, kind: SessionKind) -> int:
    """Return how many steps of one session can arrive and be due in an interval."""
    left = length - kind.within
    return 0 if left < 0 else int(left / kind.period + EARLY + 1e-9) + 1


def _seconds(steps: int, table: Sequence[float]) -> float:
    """Return how long so many steps take in full batches, but for the last."""
    full, rest = divmod(steps, len(table) - 1)
    return full * table[-1] + table[rest]
