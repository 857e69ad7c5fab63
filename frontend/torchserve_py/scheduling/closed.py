"""What is remembered of sequences that are not open, so that late jobs are refused: why each is over or where it is.

What is over, is over for all versions of a model: they share one `Over`.
"""

import math
from collections import OrderedDict

from torchserve_py.scheduling.effects import Cause, CloseReason
from torchserve_py.scheduling.job import Job
from torchserve_py.scheduling.policy import SequencePolicy
from torchserve_py.scheduling.sequence import IDLE, Sequence

REMEMBERED_IDS = 100_000

REFUSALS = {
    CloseReason.idle: Cause.sequence_expired,
    CloseReason.timeout: Cause.sequence_expired,
    CloseReason.evicted: Cause.sequence_lost,
    CloseReason.worker_lost: Cause.sequence_lost,
}
_OF_TOKENS = {**REFUSALS, CloseReason.unregistered: Cause.sequence_lost}


class ClosedIds:
    """Id -> why a job that continues that sequence is refused; bounded in number and time, the oldest goes first.

    The causes are kept as text: the collector does not look at tuples that hold nothing but text and numbers.
    Sequences that ended for a reason without a refusal are not remembered.
    """

    __slots__ = ("_ids", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._ids: OrderedDict[str | None, tuple[str, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._ids)

    def remember(self, sequence_id: str, reason: CloseReason, now: float) -> None:
        """Remember why the sequence closed, if that refuses jobs; other sequences may begin again."""
        if (cause := REFUSALS.get(reason)) is None:
            return
        self._ids[sequence_id] = (cause.value, now)
        self._ids.move_to_end(sequence_id)
        while len(self._ids) > REMEMBERED_IDS or now - next(iter(self._ids.values()))[1] > self.seconds:
            self._ids.popitem(last=False)

    def refusal(self, sequence_id: str | None, now: float) -> Cause | None:
        """Return why a job that continues this sequence is refused, or None if it is not."""
        cause, closed_at = self._ids.get(sequence_id, ("", -math.inf))
        return Cause(cause) if now - closed_at <= self.seconds else None

    def forget(self, sequence_id: str) -> None:
        """Forget an id that is open again."""
        self._ids.pop(sequence_id, None)


class ClosedTokens:
    """The tokens of sequences that are over, each with why a job that names it is refused; bounded as `ClosedIds`."""

    __slots__ = ("_tokens", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._tokens: OrderedDict[tuple[str | None, str], tuple[str, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tokens)

    def remember(self, sequence_id: str, token: str, reason: CloseReason, now: float) -> None:
        """Remember that no job may begin a sequence of this id under this token once more."""
        cause = _OF_TOKENS.get(reason, Cause.sequence_ended)
        self._tokens[sequence_id, token] = (cause.value, now)
        self._tokens.move_to_end((sequence_id, token))
        while len(self._tokens) > REMEMBERED_IDS or now - next(iter(self._tokens.values()))[1] > self.seconds:
            self._tokens.popitem(last=False)

    def refusal(self, sequence_id: str | None, token: str, now: float) -> Cause | None:
        """Return why a job with this token is refused, None if no sequence that is over had it."""
        cause, closed_at = self._tokens.get((sequence_id, token), ("", -math.inf))
        return Cause(cause) if now - closed_at <= self.seconds else None


class Over:
    """The sequences of a model, whatever their version, that are over and whose states no store has."""

    __slots__ = ("ids", "tokens")

    def __init__(self, seconds: float) -> None:
        self.ids = ClosedIds(seconds)
        self.tokens = ClosedTokens(seconds)

    def __len__(self) -> int:
        return len(self.ids) + len(self.tokens)

    def remember_for(self, seconds: float) -> None:
        """Remember for at least so long what is over from now on; a version of the model asks for that."""
        self.ids.seconds = self.tokens.seconds = max(self.ids.seconds, seconds)

    def known_cause(self, job: Job, now: float) -> Cause | None:
        """Why a job is refused whose token is that of a sequence that is over: it comes too late, or once more."""
        if job.token is None or not self.tokens:
            return None
        cause = self.tokens.refusal(job.sequence_id, job.token, now)
        return Cause.step_applied if cause is Cause.sequence_ended and job.step == 1 else cause


def may_begin(job: Job, policy: SequencePolicy) -> bool:
    """Whether a job may open a sequence of an id whose earlier state is gone."""
    if (job.step or 1) > 1:
        return False
    return job.starts_sequence or job.step == 1 or (policy.restart_expired and not policy.require_start)


def closed_cause(job: Job, over: Over, policy: SequencePolicy, now: float) -> Cause | None:
    """Why a job must not open a sequence: it continues one whose state is gone, or that is over for good.

    Only its store can tell whether a stored sequence continues.
    """
    if not policy.durable and (cause := over.known_cause(job, now)) is not None:
        return cause
    if may_begin(job, policy):
        return None
    cause = over.ids.refusal(job.sequence_id, now)
    if policy.durable:
        return cause
    must_begin = policy.require_start or (job.step or 1) > 1
    return Cause.sequence_unknown if cause is None and must_begin else cause


class SuspendedIds:
    """Sequences that are not open, but whose states are stored; their idle time runs.

    Bounded in number, the oldest goes first: the store knows nearly the same about those.
    """

    __slots__ = ("_ids",)

    def __init__(self) -> None:
        self._ids: OrderedDict[str | None, tuple[float, float]] = OrderedDict()  # keyed as jobs are

    def remember(self, sequence: Sequence, now: float) -> None:
        """Remember a sequence that leaves its worker, or had none; its next job opens it again."""
        idle_since = sequence.idle_since if sequence.state is IDLE else now
        self._ids[sequence.id] = (sequence.active_since, idle_since + sequence.lane.max_idle)
        self._ids.move_to_end(sequence.id)
        if len(self._ids) > REMEMBERED_IDS:
            self._ids.popitem(last=False)

    def asked_for(self, sequence_id: str | None, now: float, max_idle: float) -> None:
        """A job of the sequence was refused because there is no worker: until now the sequence was not idle."""
        active_since, idle_at = self._ids.get(sequence_id, (now, now))
        if now < idle_at:
            self._ids[sequence_id] = (active_since, now + max_idle)

    def take(self, sequence_id: str | None, now: float) -> float:
        """Forget a sequence that opens again; return since when it is known not to have been idle for too long."""
        active_since, idle_at = self._ids.pop(sequence_id, (now, now))
        return active_since if now < idle_at else now
