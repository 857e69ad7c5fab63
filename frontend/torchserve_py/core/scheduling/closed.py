"""What is remembered of sequences that are not open, so that late jobs are refused: why each is over or where it is.

What is over, is over for all versions of a model: they share one `ClosedSequences`.
"""

from collections import OrderedDict
from typing import Final

from torchserve_py.base.causes import Cause, CloseReason
from torchserve_py.core.scheduling.job import Job
from torchserve_py.core.scheduling.policy import SequencePolicy
from torchserve_py.core.scheduling.remembered import Remembered
from torchserve_py.core.scheduling.sequence import IDLE, Sequence

#: How many suspended sequences are remembered.
MOST_SUSPENDED = 100_000

REFUSALS = {
    CloseReason.idle: Cause.sequence_expired,
    CloseReason.timeout: Cause.sequence_expired,
    CloseReason.evicted: Cause.sequence_lost,
    CloseReason.worker_lost: Cause.sequence_lost,
}
_OF_TOKENS = {**REFUSALS, CloseReason.unregistered: Cause.sequence_lost}
#: By the marks of names in `Remembered`.
_MARKS: Final[tuple[Cause | None, ...]] = (None, Cause.sequence_expired, Cause.sequence_lost, Cause.sequence_ended)


class ClosedIds:
    """Id -> why a job that continues that sequence is refused; bounded in number and time, see `Remembered`.

    Sequences that ended for a reason without a refusal are not remembered.
    """

    __slots__ = ("names",)

    def __init__(self, names: Remembered) -> None:
        self.names = names

    def remember(self, sequence_id: str, reason: CloseReason, now: float) -> None:
        """Remember why the sequence closed, if that refuses jobs; other sequences may begin again."""
        if (cause := REFUSALS.get(reason)) is not None:
            self.names.note(sequence_id, _MARKS.index(cause), now)

    def refusal(self, sequence_id: str | None, now: float) -> Cause | None:
        """Return why a job that continues this sequence is refused, or None if it is not."""
        return _MARKS[self.names.mark(sequence_id or "", now)]

    def forget(self, sequence_id: str, now: float) -> None:
        """Forget an id that is open again."""
        self.names.forget(sequence_id, now)


class ClosedTokens:
    """The tokens of sequences that are over, each with why a job that names it is refused; bounded as `ClosedIds`."""

    __slots__ = ("names",)

    def __init__(self, names: Remembered) -> None:
        self.names = names

    def remember(self, sequence_id: str, token: str, reason: CloseReason, now: float) -> None:
        """Remember that no job may begin a sequence of this id under this token once more."""
        cause = _OF_TOKENS.get(reason, Cause.sequence_ended)
        self.names.note(_named(sequence_id, token), _MARKS.index(cause), now)

    def refusal(self, sequence_id: str | None, token: str, now: float) -> Cause | None:
        """Return why a job with this token is refused, None if no sequence that is over had it."""
        return _MARKS[self.names.mark(_named(sequence_id, token), now)]


def _named(sequence_id: str | None, token: str) -> str:
    return f"{sequence_id}\0{token}"  # neither has such a character


class ClosedSequences:
    """The sequences of a model, whatever their version, that are over and whose states no store has."""

    __slots__ = ("_told", "ids", "tokens")

    def __init__(self, seconds: float) -> None:
        self._told = 0
        self.ids = ClosedIds(Remembered(seconds))
        self.tokens = ClosedTokens(Remembered(seconds))

    def __len__(self) -> int:
        return len(self.ids.names) + len(self.tokens.names)

    @property
    def forgotten(self) -> int:
        """How many ids and tokens were forgotten before their time, because there were too many."""
        return self.ids.names.forgotten + self.tokens.names.forgotten

    def newly_forgotten(self) -> int:
        """How many of these were forgotten since this was asked last."""
        before, self._told = self._told, self.forgotten
        return self._told - before

    def remember_for(self, seconds: float) -> None:
        """Remember for at least so long what is over from now on; a version of the model asks for that."""
        for names in (self.ids.names, self.tokens.names):
            names.seconds = max(names.seconds, seconds)

    def known_cause(self, job: Job, now: float) -> Cause | None:
        """Why a job is refused whose token is that of a sequence that is over: it comes too late, or once more."""
        if job.token is None:
            return None
        cause = self.tokens.refusal(job.sequence_id, job.token, now)
        return Cause.step_applied if cause is Cause.sequence_ended and job.step == 1 else cause


def may_begin(job: Job, policy: SequencePolicy) -> bool:
    """Whether a job may open a sequence of an id whose earlier state is gone."""
    if (job.step or 1) > 1:
        return False
    return job.starts_sequence or job.step == 1 or (policy.restart_expired and not policy.require_start)


def closed_cause(job: Job, over: ClosedSequences, policy: SequencePolicy, now: float) -> Cause | None:
    """Why a job must not open a sequence: it continues one whose state is gone, or that is over for good.

    Only its store can tell whether a stored sequence continues.
    """
    if not policy.durable and (cause := over.known_cause(job, now)) is not None:
        return cause
    if may_begin(job, policy):
        return None
    cause = over.ids.refusal(job.sequence_id, now)
    if cause is Cause.sequence_expired and policy.restart_expired and job.step is None:
        cause = None  # as of stored sequences (`ts.sequences.steps.rules`): what is missing is the start marker
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
        if len(self._ids) > MOST_SUSPENDED:
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
