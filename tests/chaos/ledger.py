"""What the client of one sequence was told, and whether what it sees later agrees with that.

Every step has a token of its own, and every answer lists the tokens that the state holds. So an answer shows which
steps count, in which order, and how often; a ledger compares that with every word that the client was told before.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

#: The holder of a sequence that a copy may have taken anywhere.
ELSEWHERE = -1


class Contradiction(Exception):
    """What a client sees is not what it was told."""


class Status(StrEnum):
    """What a client knows of its sequence."""

    NONE = "none"  # nothing was sent yet
    OPEN = "open"
    ENDED = "ended"
    GONE = "gone"  # the client was told so, with 410


@dataclass
class Ledger:
    """The steps of one sequence id, incarnation after incarnation.

    Attributes:
        state: Tokens that the open incarnation has to hold.
        at_large: Tokens that count or not: nobody has told the client yet.
        refuted: Tokens of which the client was told that they do not count.
        ghosts: Whether the client has given a request up that may still arrive. Such a sequence id is not used again.
        active_until: When the last request that had reached the sequence was answered (``time.monotonic``).
        holder: The server (its index) that has run the sequence last.
        longest_gap: How long the holder had no request, at most, since the last acknowledged step (seconds).
        copied_at: When a late copy of a step came last (``time.monotonic``); any server may have the sequence for it.
        failed_at: When an attempt failed last, or was given up (``time.monotonic``): its server may have let go of the
            sequence.
        worked_at: When a worker was last known to have a step of the sequence, be it to refuse it (``time.monotonic``).
        longest_unworked: How long no worker had one, at most, since the last acknowledged step (seconds).
        acknowledged_at: When the last step was acknowledged (``time.monotonic``).
    """

    sequence: str
    status: Status = Status.NONE
    state: list[str] = field(default_factory=list)
    at_large: set[str] = field(default_factory=set)
    refuted: set[str] = field(default_factory=set)
    ghosts: bool = False
    active_until: float = field(default_factory=time.monotonic)
    holder: int | None = None
    #: Whether the last server that was asked could not write to the store: it cannot give the sequence back, either.
    store_failed: bool = False
    copied_at: float | None = None
    failed_at: float = 0.0
    worked_at: float = 0.0
    longest_unworked: float = 0.0
    longest_gap: float = 0.0
    acknowledged_at: float = field(default_factory=time.monotonic)
    transcript: list[tuple[float, str]] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Add a line to the transcript."""
        self.transcript.append((time.monotonic(), text))

    def worked(self) -> None:
        """A worker has had a step of the sequence."""
        now = time.monotonic()
        self.longest_unworked = max(self.longest_unworked, now - max(self.worked_at, self.acknowledged_at))
        self.worked_at = now

    def acknowledged(self, when: float) -> None:
        """A step was acknowledged, perhaps some time ago: others were sent with it, and their answers waited for."""
        self.longest_gap, self.acknowledged_at = 0.0, when
        self.longest_unworked = max(0.0, self.worked_at - when)

    def answered(self, token: str, tokens: Sequence[str], *, starts: bool, ends: bool) -> None:
        """Believe the first answer to a step, if it agrees with all before.

        Raises:
            Contradiction: It does not.
        """
        if len(set(tokens)) != len(tokens):
            raise Contradiction(f"a step counts twice: {list(tokens)}")
        if not tokens or tokens[-1] != token:
            raise Contradiction(f"the answer to another step: {list(tokens)} instead of one to {token}")
        if wrong := self.refuted & set(tokens[:-1]):
            raise Contradiction(f"told not to count, but counted: {wrong} in {list(tokens)}")
        if token in self.state:
            expected = self.state[: self.state.index(token) + 1]
            if list(tokens) != expected:
                raise Contradiction(f"the answer to {token} is {list(tokens)}, it has to be {expected}")
        elif starts or self.status is not Status.OPEN:
            self._begun_anew(token, tokens, starts=starts)
        else:
            self._continued(token, tokens)
        self.at_large.discard(token)
        self.refuted.discard(token)
        if ends:
            self.status = Status.ENDED

    def _begun_anew(self, token: str, tokens: Sequence[str], *, starts: bool) -> None:
        if self.status is Status.GONE and not starts:
            raise Contradiction(f"told to be gone, but it goes on without a start marker: {list(tokens)}")
        if list(tokens) != [token]:
            raise Contradiction(f"a new incarnation begins with {list(tokens)}, it has to be {[token]}")
        self.state, self.status, self.at_large = [token], Status.OPEN, set()

    def _continued(self, token: str, tokens: Sequence[str]) -> None:
        known = [each for each in tokens[:-1] if each not in self.at_large]
        if known != self.state:
            lost = [each for each in self.state if each not in tokens]
            what = f"lost {lost}" if lost else "other steps than were acknowledged"
            raise Contradiction(f"{what}: {list(tokens)} after {self.state} were acknowledged and {token} was sent")
        self.state = list(tokens)
        self.at_large -= set(tokens)

    def doubt(self, token: str) -> None:
        """Nobody knows whether a step counts, be it that an earlier attempt at it did not."""
        self.refuted.discard(token)
        if token not in self.state:
            self.at_large.add(token)

    def refute(self, token: str) -> None:
        """Believe that a step does not count.

        Raises:
            Contradiction: A later answer has shown already that it does.
        """
        if token in self.state:
            raise Contradiction(f"told not to count, but counted: {token} in {self.state}")
        self.at_large.discard(token)
        self.refuted.add(token)

    def gone(self) -> None:
        """Believe that the state is no more."""
        self.status, self.state, self.at_large = Status.GONE, [], set()
