"""Sessions with a guarantee: on which worker each of them runs, and whether one more would let any of them be late."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from torchserve_py.core.scheduling.capacity import EARLY, SessionKind, fits, load, longest_batch, slack
from torchserve_py.core.scheduling.sequence import CLOSED, Sequence, SequenceLane
from torchserve_py.core.scheduling.step_times import StepTimes
from torchserve_py.core.scheduling.timing import Timing

#: How many kinds of sessions with a guarantee one worker has at the most: a test looks at each of them.
_MOST_KINDS = 64
#: After so many batches a session that was accepted before anything was measured is tested.
_TRIAL_BATCHES = 16


@dataclass(slots=True, eq=False)
class _Reserved:
    """What a session was promised; the next step is expected at a moment, and may come `EARLY`."""

    kind: SessionKind
    expected: float
    is_tested: bool  # whether it was accepted because of measured times


class Reservations:
    """The sessions that have asked for a guarantee, until their sequences are closed."""

    def __init__(self, times: StepTimes, safety: float) -> None:
        """Begin without sessions; ``safety`` is the share of the time that is kept free."""
        self._times = times
        self._safety = safety
        #: None for a session without a guarantee.
        self._reserved: dict[Sequence, _Reserved | None] = {}
        #: For each worker the table that its slack was computed with, and the slack.
        self._slack: dict[SequenceLane, tuple[tuple[float, ...], float]] = {}

    def knows(self, sequence: Sequence) -> bool:
        """Whether the session has asked for a guarantee before, under its present worker."""
        return sequence in self._reserved

    def choose(self, timing: Timing, lanes: Iterable[SequenceLane]) -> SequenceLane | None:
        """Return which of these workers has the most room for one more session; None if none has enough."""
        self._forget_closed()
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

    def degrade(self, sequence: Sequence) -> None:
        """Note that the session runs without a guarantee."""
        self._reserved[sequence] = None

    def covers(self, sequence: Sequence, timing: Timing, now: float) -> bool:
        """Whether a step that comes now has a guarantee: it is not earlier, nor more urgent, than was agreed."""
        reserved = self._reserved.get(sequence)
        if reserved is not None and not reserved.is_tested and self._times.count >= _TRIAL_BATCHES:
            self._test(sequence, reserved)
            reserved = self._reserved[sequence]
        if reserved is None or timing.within < reserved.kind.within:
            return False
        return now >= reserved.expected - EARLY * reserved.kind.period

    def _test(self, sequence: Sequence, reserved: _Reserved) -> None:
        """Take the guarantee from a session that cannot have it even alone: it would keep all others out."""
        table = self._times.table
        assert table is not None, "batches were measured"
        reserved.is_tested = True
        if not fits({reserved.kind: 1}, table, self._safety):
            self.degrade(sequence)
            self._slack.pop(sequence.lane, None)

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
            self._forget_closed()
            known = self._slack[lane] = table, slack(self._sessions(lane), table, self._safety)
        return known[1]

    @property
    def count(self) -> int:
        """How many sessions have a guarantee."""
        self._forget_closed()
        return sum(each is not None for each in self._reserved.values())

    @property
    def load(self) -> float:
        """Return which part of the time that may be promised is, on the worker that has promised the most."""
        self._forget_closed()
        if (table := self._times.table) is None:
            return 0.0
        lanes = {sequence.lane for sequence, reserved in self._reserved.items() if reserved is not None}
        return max((load(self._sessions(lane), table, self._safety) for lane in lanes), default=0.0)

    def _sessions(self, lane: SequenceLane) -> Counter[SessionKind]:
        there = (each for sequence, each in self._reserved.items() if sequence.lane is lane)
        return Counter(each.kind for each in there if each is not None)

    def _forget_closed(self) -> None:
        closed = [sequence for sequence in self._reserved if sequence.state is CLOSED]
        for sequence in closed:
            del self._reserved[sequence]
            self._slack.pop(sequence.lane, None)


def kind_of(timing: Timing) -> SessionKind:
    """Return the kind of a session that asks for a guarantee."""
    assert timing.period is not None, "a session without a period has no guarantee"
    return SessionKind(timing.period, timing.within)
