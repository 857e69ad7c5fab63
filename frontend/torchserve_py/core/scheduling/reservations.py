"""Sessions with a guarantee: on which worker each of them runs, and whether one more would let any of them be late."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from torchserve_py.core.scheduling.capacity import EARLY, SessionKind, fits, load, longest_batch, slack
from torchserve_py.core.scheduling.sequence import CLOSED, IDLE, Sequence, SequenceLane
from torchserve_py.core.scheduling.step_times import StepTimes
from torchserve_py.core.scheduling.timing import Timing

#: How many kinds of sessions with a guarantee one worker has at the most: a test looks at each of them.
_MOST_KINDS = 64
#: After so many batches a session that was accepted before anything was measured is tested.
_TRIAL_BATCHES = 16
#: The guarantee of a session ends that sends nothing for so many periods and seconds after its next step was due.
_SILENT_PERIODS = 10
_SILENT_SECONDS = 10.0
#: How many seconds after a test that has failed a session without a guarantee is tested again: one of all of them.
_TEST_AGAIN = 1.0


@dataclass(slots=True, eq=False)
class _Reserved:
    """What a session was promised; the next step is expected at a moment, and may come `EARLY`."""

    kind: SessionKind
    expected: float
    is_tested: bool  # whether it was accepted because of measured times


class Reservations:
    """The sessions that have asked for a guarantee, until their sequences are closed or send no further steps."""

    def __init__(self, times: StepTimes, safety: float) -> None:
        """Begin without sessions; ``safety`` is the share of the time that is kept free."""
        self._times = times
        self._safety = safety
        #: None for a session without a guarantee.
        self._reserved: dict[Sequence, _Reserved | None] = {}
        #: For each worker the table that its slack was computed with, and the slack.
        self._slack: dict[SequenceLane, tuple[tuple[float, ...], float]] = {}
        self._test_again_at = 0.0

    def knows(self, sequence: Sequence) -> bool:
        """Whether the session has asked for a guarantee before, under its present worker."""
        return sequence in self._reserved

    def moved(self, sequence: Sequence) -> None:
        """Note that a sequence goes on at another worker, where its next step asks for a guarantee again."""
        if sequence in self._reserved:
            self.forget(sequence)

    def is_due_again(self, sequence: Sequence, now: float) -> bool:
        """Whether to test again if a session that runs without a guarantee fits by now."""
        return now >= self._test_again_at and self.is_degraded(sequence)

    def forget(self, sequence: Sequence) -> None:
        """Forget a session: its next step, or this one, asks for a guarantee as if for the first time."""
        del self._reserved[sequence]
        self._slack.pop(sequence.lane, None)

    def choose(self, timing: Timing, lanes: Iterable[SequenceLane], now: float) -> SequenceLane | None:
        """Return which of these workers has the most room for one more session; None if none has enough."""
        self._forget_ended(now)
        best, most = None, 0.0
        for lane in lanes:
            room = self._room(lane, kind_of(timing))
            if room > most or (best is None and room == most):
                best, most = lane, room
        return best

    def _room(self, lane: SequenceLane, kind: SessionKind) -> float:
        """Return how many seconds remain if one more session of the kind runs; less than 0: it does not fit."""
        sessions = self._sessions(lane)
        if (table := self._times.table) is None:
            return -math.inf if sessions else 0.0  # what was never measured is tried with one session
        if kind not in sessions and len(sessions) >= _MOST_KINDS:
            return -math.inf
        sessions[kind] += 1
        return slack(sessions, table, self._safety) - longest_batch(sessions, table)

    def reserve(self, sequence: Sequence, timing: Timing, now: float) -> None:
        """Note that the session has a guarantee, and that its first step has come."""
        kind = kind_of(timing)
        self._reserved[sequence] = _Reserved(kind, now + kind.period, self._times.count > 0)
        self._slack.pop(sequence.lane, None)

    def degrade(self, sequence: Sequence, now: float) -> None:
        """Note that the session runs without a guarantee."""
        self._reserved[sequence] = None
        self._slack.pop(sequence.lane, None)
        self._test_again_at = now + _TEST_AGAIN

    def covers(self, sequence: Sequence, timing: Timing, now: float) -> bool:
        """Whether a step that comes now has a guarantee: it is not earlier, nor more urgent, than was agreed."""
        reserved = self._reserved.get(sequence)
        if reserved is not None and not reserved.is_tested and self._times.count >= _TRIAL_BATCHES:
            self._test(sequence, reserved, now)
            reserved = self._reserved[sequence]
        if reserved is None or timing.within < reserved.kind.within:
            return False
        return now >= reserved.expected - EARLY * reserved.kind.period

    def _test(self, sequence: Sequence, reserved: _Reserved, now: float) -> None:
        """Take the guarantee from a session that cannot have it even alone: it would keep all others out."""
        table = self._times.table
        assert table is not None, "batches were measured"
        reserved.is_tested = True
        if not fits({reserved.kind: 1}, table, self._safety):
            self.degrade(sequence, now)

    def came(self, sequence: Sequence, now: float) -> None:
        """Note that a step with a guarantee has come."""
        if (reserved := self._reserved.get(sequence)) is not None:
            reserved.expected = max(now, reserved.expected) + reserved.kind.period

    def is_degraded(self, sequence: Sequence) -> bool:
        """Whether the session has asked for a guarantee and has none."""
        return self._reserved.get(sequence, ...) is None

    def slack(self, lane: SequenceLane) -> float:
        """Return how many seconds a batch of other work may take, so that no step with a guarantee is late."""
        table = self._times.table
        if table is None or not self._reserved:
            return math.inf
        known = self._slack.get(lane)
        if known is None or known[0] is not table:
            known = self._slack[lane] = table, slack(self._sessions(lane), table, self._safety)
        return known[1]

    def count(self, now: float) -> int:
        """Return how many sessions have a guarantee."""
        self._forget_ended(now)
        return sum(each is not None for each in self._reserved.values())

    def load(self, now: float) -> float:
        """Return which part of the time that may be promised is, on the worker that has promised the most."""
        self._forget_ended(now)
        if (table := self._times.table) is None:
            return 0.0
        lanes = {sequence.lane for sequence, reserved in self._reserved.items() if reserved is not None}
        return max((load(self._sessions(lane), table, self._safety) for lane in lanes), default=0.0)

    def _sessions(self, lane: SequenceLane) -> Counter[SessionKind]:
        there = (each for sequence, each in self._reserved.items() if sequence.lane is lane)
        return Counter(each.kind for each in there if each is not None)

    def _forget_ended(self, now: float) -> None:
        """Forget sessions whose sequences are closed, and those that have sent nothing for long."""
        for sequence, reserved in [*self._reserved.items()]:
            if sequence.state is CLOSED or (reserved is not None and _is_silent(sequence, reserved, now)):
                self.forget(sequence)


def _is_silent(sequence: Sequence, reserved: _Reserved, now: float) -> bool:
    patience = max(_SILENT_SECONDS, _SILENT_PERIODS * reserved.kind.period)
    return now > reserved.expected + patience and sequence.state is IDLE


def kind_of(timing: Timing) -> SessionKind:
    """Return the kind of a session that asks for a guarantee."""
    assert timing.period is not None, "a session without a period has no guarantee"
    return SessionKind(timing.period, timing.within)
