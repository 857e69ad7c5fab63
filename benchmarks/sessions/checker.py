"""Judges the answers of one session: whether every step was counted once, and in order."""

from __future__ import annotations

from enum import StrEnum

from benchmarks.sessions.state import State


class Verdict(StrEnum):
    """What an answer shows about the steps up to it."""

    RIGHT = "right"
    LOST = "lost"
    DOUBLED = "doubled"
    REORDERED = "reordered"


class Checker:
    """Follows one session. After a wrong answer it goes on from that answer, so that each fault counts once.

    Attributes:
        lost: Steps that were answered and are not in the state any more.
        doubled: Steps that are in the state twice.
        reordered: Answers with the right number of steps, but not these in this order.
    """

    def __init__(self) -> None:
        self.lost = self.doubled = self.reordered = 0
        self._last = State()

    def answered(self, number: int, state: State) -> Verdict:
        """Judge the answer to the step that adds a number."""
        expected, self._last = self._last.after(number), state
        if state == expected:
            return Verdict.RIGHT
        if state.count < expected.count:
            self.lost += expected.count - state.count
            return Verdict.LOST
        if state.count > expected.count:
            self.doubled += state.count - expected.count
            return Verdict.DOUBLED
        self.reordered += 1
        return Verdict.REORDERED

    def gone(self) -> None:
        """Note that the server says that the session's state is lost."""
        self.lost += self._last.count
        self._last = State()
