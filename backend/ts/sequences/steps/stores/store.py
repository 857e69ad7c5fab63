"""The interface of a store of sequences, and the rule that keeps two servers from running the same sequence.

A store holds a `steps.record.SequenceRecord` for each sequence of a model, its state, and the answers to its
last steps. A worker that runs a sequence has a **lease** on it: the name of its server, the time until which the lease
is valid, and a **fence**, a token that is new with every lease. Only the holder of the latest fence may write. So the
store refuses writes of a worker that was believed dead and wakes up, and of a server whose lease another server has
taken over.

A store grants a lease if the sequence has no holder; if the holder is the same server (its scheduler runs a sequence on
one worker at a time, so the earlier worker is gone); if the holder's lease has run out; or if the holder's process is
known to have ended. A sequence that has ended or expired has no holder. A holder is told when another
server asks for its lease (`Watch`): its server lets go of the sequence if that is idle.

A sequence stays with the version of the model that began it: other versions get no lease on it while it is open, unless
both say that they read the same version of states, or the other one migrates states. Such a version gets the lease and
the state, and its next commit makes the sequence its own.

Only the holder knows the **idle time** of a sequence: its scheduler ends a sequence that had nothing queued and nothing
in flight for too long. When the holder releases the sequence, the store records the moment, past or future, at which
the sequence has been idle for too long. A server that asks for the sequence afterwards says since when it has had a
step of the sequence queued: if that was before the moment, the sequence continues; otherwise it has expired for all
servers. The store keeps the state for a while for that purpose. If the holder did not release the sequence (it was
killed, or is frozen), it is unknown what the holder had queued, so the sequence does not count as idle.

Moments are seconds of `ts.protocol.boot_clock`. A store that several machines share has a clock of its own for leases
and idle times, and converts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from ts.jobs.sequence_steps import StoreReports
from ts.protocol.messages import ENDED, EXPIRED_REASONS
from ts.sequences.steps.record import KeptStep, SequenceRecord
from ts.sequences.steps.server_identity import is_gone
from ts.sequences.steps.state_log import LogEntry

#: How long (seconds) a store keeps the state of an abandoned sequence beyond its idle time, in case its server is only
#: suspended.
SUSPENDED_SECONDS: Final = 3600.0
#: How long (seconds) the state of a released sequence is kept after it has been idle for too long: for a step that has
#: waited for a worker of another server since before that.
REVIVABLE_SECONDS: Final = 300.0
#: For how long (seconds) a version counts as served after its last worker, which may only be restarted.
SERVED_SECONDS: Final = 60.0
#: A value of `SequenceRecord.closed`: the sequence has been idle for too long.
IDLE: Final = "idle"
#: All values of it.
REASONS_OF_END: Final = frozenset({"", IDLE, ENDED, *EXPIRED_REASONS})
#: What is damaged of a sequence whose stored state has ended a worker.
ENDS_WORKERS: Final = "a worker died while it read the state"
#: No step of any sequence was queued before now; see `Store.acquire`.
JUST_NOW: Final[Mapping[str, float]] = MappingProxyType({})


class StoreError(Exception):
    """The store cannot do the operation. The message gives the operator of the server the reason."""


class TooLarge(StoreError):
    """The store takes no state as large as that of one sequence, however often it is tried."""

    def __init__(self, message: str, sequence_id: str) -> None:
        super().__init__(message)
        self.sequence_id = sequence_id


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """The settings of every kind of store."""

    model: str
    version: str  # of the model
    state_version: str  # of its states; "" if only this version of the model reads them
    owner: str  # the server's identity, see `ts.sequences.steps.server_identity`
    lease: float  # seconds for which a lease is valid after it was taken or used
    lifetime: float  # seconds for which a sequence may be idle
    kept: int  # the number of steps of a sequence whose answers are kept, besides the first
    remembered: float  # seconds for which the store remembers that a sequence has ended or expired
    most_ids: int  # the number of request ids of an incarnation that are remembered
    checkpoint_steps: int = 0  # how many steps a log may have before the state is written whole; 0: any number
    kept_states: int = 1  # how many of the latest states that were written whole are kept
    rebuilt_at_once: int = 1  # how many states are made of their logs in one call of the handler
    migrates: bool = False  # whether this version continues sequences of any other one, whose states it migrates


@dataclass(slots=True, weakref_slot=True, eq=False)
class Lease:
    """The right to run a sequence, held by this process.

    Attributes:
        fence: The token that is new with every lease.
        record: What the store has of the sequence, and what this process has changed.
        resident: Whether the state, or its absence, is known in memory.
        fresh_until: The moment until which no other holder can have taken the lease over; an operator can.
        checkpoint_from: The number of the step before which no checkpoint is tried again.
        migrated_from: The version of the model that the sequence belongs to until the next commit, which writes this
            process's version and the migrated state; "" if it is this one.
        whole_at: The numbers of the steps whose states are in the log, in order.
        has_appended: Whether the log has more than states since the latest of these.
        is_behind: Whether the store has lost steps of the sequence that it had: the next commit writes all of it.
        number, mark, commits, stored: For a store's own use.
    """

    sequence_id: str
    fence: int
    record: SequenceRecord
    resident: bool = True
    fresh_until: float = 0.0
    checkpoint_from: int = 0
    migrated_from: str = ""
    whole_at: Sequence[int] = ()
    has_appended: bool = False
    is_behind: bool = False
    number: int = 0
    mark: int = 0
    commits: int = 0
    stored: int = 0


class HeldElsewhere(NamedTuple):
    """Another server runs the sequence; it has been asked to let go."""


class OtherVersion(NamedTuple):
    """The sequence belongs to another version of the model.

    If no living server has that, the lease is taken all the same, so that a step can begin another sequence. A version
    that migrates states takes it in any case, and reads the state.

    Attributes:
        version: Which.
        is_served: Whether a living server has it, as far as the store knows.
    """

    version: str
    is_served: bool


class Unreadable(NamedTuple):
    """What the store has of the sequence is damaged; ``problem`` says how."""

    problem: str


class Acquired(NamedTuple):
    """The result of acquiring a sequence: a lease, the stored state and the log since then, or why there is no lease.

    A sequence that is over has no state, but its answers may still be kept.
    """

    lease: Lease | None
    state: bytes | None = None
    refusal: HeldElsewhere | OtherVersion | Unreadable | None = None
    log: Sequence[LogEntry] = ()


class KeptAnswer(NamedTuple):
    """The answer to an applied step, as `steps.step` encodes it."""

    step: KeptStep
    answer: bytes


class Commit(NamedTuple):
    """A change of one sequence, whose lease's record has it already.

    Attributes:
        state: The new state; None if there is none, or if ``log`` is not None.
        closed: A reason ends the sequence and releases its lease; "" does not.
        kept: The answers to the steps that produced the state.
        new_ids: The digests that were added to the record's ids.
        begins: Whether it writes all that there is of the incarnation: it is the first one, or the store is behind.
        log: What the steps have appended to the log; the state that is stored stays, and the record's checkpoint says
            how both make the new state. An entry for a step that has one already replaces that. None: the state is
            written whole, and ends the log.
        has_log: Whether there is a log, which is ended or appended to.
        dropped: How many of its steps the log loses at its beginning.
    """

    lease: Lease
    state: bytes | None
    closed: str
    kept: Sequence[KeptAnswer]
    new_ids: bytes
    begins: bool
    log: Sequence[LogEntry] | None = None
    has_log: bool = False
    dropped: int = 0

    @property
    def state_size(self) -> int | None:
        """The size of the state that is written whole, in bytes; None if none is."""
        state = self.log[-1].state if self.log else self.state
        return None if state is None else len(state)


#: How often a watch looks at what a store has, and at what it drops by itself (seconds).
LOOK_SECONDS: Final = 30.0
NO_REPORTS: Final = StoreReports()


class Store(Protocol):
    """Keeps sequences. Every method raises `StoreError`."""

    def acquire(self, sequence_ids: Sequence[str], active_since: Mapping[str, float] = JUST_NOW) -> list[Acquired]:
        """Take the leases of sequences, creating those that do not exist, and read their stored states.

        Args:
            sequence_ids: The sequences, each once.
            active_since: By id, the moment since which the server knows that the sequence is not idle for too long: a
                sequence whose idle time had not run out at that moment continues. ``-inf`` for a sequence that is open
                at this worker.
        """

    def begin_reading(self, leases: Sequence[Lease]) -> None:
        """Note that the states of sequences are read now, by a worker which that may end.

        Until `end_reading`, and as long as the states are the same, `acquire` finds them damaged (`ENDS_WORKERS`).
        """

    def end_reading(self, leases: Sequence[Lease]) -> None:
        """Note that the worker has survived that."""

    def renew(self, leases: Sequence[Lease]) -> list[bool]:
        """Prolong leases; return False for each lease that another holder has taken."""

    def commit(self, commits: Sequence[Commit]) -> list[bool | None]:
        """Write all changes; return for each whether it was written.

        False means that another holder has taken the sequence and the change was not written. None means that another
        holder has taken the sequence, but the change may have been written before. After a `StoreError` any change may
        have been written, or may still be written later; `settle` finds out.

        A commit stands on the one before. If the store has lost that (a database that came back without its last
        second, or a replica that lacked it), the commit is not written, and `Lease.is_behind` is set.
        """

    def settle(self, commits: Sequence[Commit]) -> list[bool | None]:
        """Return whether each of some failed commits was written after all, None if the store cannot tell.

        After this call none of them can be written. The caller must use their leases for nothing but to release them.
        """

    def peek(self, sequence_id: str) -> SequenceRecord | None:
        """Return the latest incarnation of a sequence, None if there is none; no lease is needed.

        Raises Damaged: it cannot be read.
        """

    def find(self, sequence_id: str, incarnation: int, number: int) -> bytes | None:
        """Return the kept answer to a step, None if it is not kept; no lease is needed. Raises Damaged."""

    def end(self, leases: Sequence[Lease]) -> None:
        """Drop the states of sequences that have ended, and remember that they have."""

    def release(self, released: Sequence[tuple[Lease, float]]) -> None:
        """Release leases, so that every worker can take the sequences over immediately.

        Args:
            released: Leases, each with the past or future moment at which its sequence has been idle for too long.
        """

    def tidy(self) -> None:
        """Do the work that commits have deferred; called after the answers have left."""

    def sweep(self) -> None:
        """Drop the states of abandoned sequences, and the records of sequences that ended long ago."""

    def watch(self, reports: StoreReports = NO_REPORTS) -> "Watch":
        """Return what tells this process who asks for its sequences; a thread of its own waits for that.

        Every `LOOK_SECONDS` it reports what it sees of the store.
        """

    def close(self) -> None:
        """Close the file or the connection."""


class Watch(Protocol):
    """Hears which sequences other servers ask this one to let go, and says that its version of the model is served."""

    def wait(self) -> Sequence[str]:
        """Wait for a while; return the ids of sequences that were asked for. Raises StoreError."""

    def close(self) -> None:
        """Say that this process serves no more, and make `wait`, which another thread may be in, return."""


def may_take(owner: str, until: float, now: float, settings: StoreSettings) -> bool:
    """Return whether a lease that ``owner`` holds until the time ``until`` may be taken over at the time ``now``."""
    return owner in {"", settings.owner} or until <= now or is_gone(owner)


def may_run(version: str, state_version: str, settings: StoreSettings) -> bool:
    """Return whether this version of the model may continue a sequence that a version began."""
    return version == settings.version or (bool(state_version) and state_version == settings.state_version)
