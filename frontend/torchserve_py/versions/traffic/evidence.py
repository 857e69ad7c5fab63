"""Evidence that one version is worse than another: a sequential test whose false alarms are bounded. Pure.

The test is a bet. While the version is not worse, each observation of it is a number of at least -1 whose mean is at
most 0; a player stakes shares of a capital on these numbers. No such player gains in the mean, so the capital exceeds
its start n-fold with a probability of at most 1/n, no matter how often one looks (Ville's inequality). If the version
is worse, the capital grows exponentially.

Nothing is assumed of how long answers take, or that versions are steady: each observation compares requests of the same
time, so that what happens to both versions, such as the failure of a database, is evidence of nothing. It is assumed
that one observation has no influence on the mean of the next. What comes in bursts is therefore one observation: the
requests of a batch, and all latencies of a second.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final

#: The shares of its capital that a player stakes; there is one for each size of the effect.
_STAKES: Final = (0.95, 0.5, 0.2, 0.07, 0.02)
#: Of the capital, the players have this much from the beginning. The rest is paid out evenly in a day, and so in each
#: further day: what goes wrong only after hours finds players that have not yet lost theirs.
_AT_THE_BEGINNING: Final = 0.5
_DAY: Final = 86_400.0


class Evidence:
    """What bets have brought. The probability that ``odds`` reach n in a day is at most 1/n."""

    def __init__(self) -> None:
        self._capital = [_AT_THE_BEGINNING / len(_STAKES)] * len(_STAKES)

    @property
    def odds(self) -> float:
        """How many times the capital of a day has grown."""
        return sum(self._capital)

    def bet(self, observed: float, seconds: float) -> None:
        """Bet on what was observed ``seconds`` after the last time."""
        paid = (1 - _AT_THE_BEGINNING) / len(_STAKES) * seconds / _DAY
        self._capital = [
            (capital + paid) * (1 + stake * observed) for capital, stake in zip(self._capital, _STAKES, strict=True)
        ]


def difference(new: Sequence[float], old: Sequence[float], allowed: float) -> float:
    """Return how far the mean of the new version's shares (0 to 1) is above the old one's, beyond what is allowed."""
    return (_mean(new) - _mean(old) - allowed) / (1 + allowed)


def exceedance(new: Sequence[float], old: Sequence[float], allowed: float) -> float:
    """Return how much more often than not a number of the new version exceeds one of the old, by ranks: -1 to 1.

    Those of the old version count as greater by the share ``allowed`` of their size (less, if that is negative). It is
    the statistic of Mann and Whitney: the numbers themselves, however far out, do not matter.
    """
    limits = sorted(number + allowed * abs(number) for number in old)
    below = sum(bisect_left(limits, number) + bisect_right(limits, number) for number in new)
    return below / (len(new) * len(limits)) - 1


def tail_difference(new: Sequence[float], old: Sequence[float], limit: float, ratio: float) -> float:
    """Return by how much the new version's share beyond ``ratio`` times a limit exceeds the old one's beyond it."""
    return _mean([number > limit * ratio for number in new]) - _mean([number > limit for number in old])


def surprise(share: float, expected: float) -> float:
    """Return what it tells that something happened to a share (0 to 1) of which at most ``expected``, above 0, was."""
    return (share - expected) / expected


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)
