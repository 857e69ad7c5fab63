"""The interface of a store of sequences, and the rule that keeps two servers from running the same sequence.

A store holds, for each sequence of a model version, its state and the answers to its last steps. A worker that runs a
sequence has a **lease** on it: the name of its server, the time until which the lease is valid, and a **token** that is
new with every lease. Only the holder of the latest token may write (*fencing*). So the store refuses writes of a worker
that was believed dead and wakes up, and of a server whose lease another server has taken over.

A store grants a lease if the sequence has no holder; if the holder is the same server (its scheduler runs a sequence on
one worker at a time, so the earlier worker is gone); if the holder's lease has run out; or if the holder's process is
known to have ended. A sequence that has ended or expired has no holder.

Sequence ids can be reused: each new beginning of a sequence is an **incarnation** with a number of its own. A store
finds the answers of the latest incarnation only.

Only the holder knows the **idle time** of a sequence: its scheduler ends a sequence that had nothing queued and nothing
in flight for too long. When the holder releases the sequence, the store records the moment, past or future, at which
the sequence has been idle for too long. A server that asks for the sequence afterwards says since when it has had a
step of the sequence queued: if that was before the moment, the sequence continues; otherwise it has expired for all
servers. The store keeps the state for a while for that purpose. If the holder did not release the sequence (it was
killed, or is frozen), it is unknown what the holder had queued, so the sequence does not count as idle.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from ts.protocol.server_identity import is_gone

#: How long (seconds) a store remembers that a sequence has ended, so that a step which continues it is refused; and how
#: long it keeps the state of an abandoned sequence beyond its idle time, in case its server is only suspended.
REMEMBERED_SECONDS = 3600.0
#: How long (seconds) the state of a released sequence is kept after it has been idle for too long: for a step that has
#: waited for a worker of another server since before that.
REVIVABLE_SECONDS = 300.0
#: The most steps of a sequence whose answers are kept, beside the first.
MOST_KEPT = 64
#: The slot for the answer to the incarnation's first step; the answers to further steps rotate through the other slots.
FIRST_SLOT = 0
#: The values of `Lease.closed`: why a sequence is over; "" means that it is not.
IDLE: Final = "idle"
#: No request ids: those of a new sequence.
NO_IDS: Final[Mapping[int, str]] = MappingProxyType({})
#: No step of any sequence was queued before now; see `Store.acquire`.
JUST_NOW: Final[Mapping[str, float]] = MappingProxyType({})


class StoreError(Exception):
    """The store cannot do the operation. The message gives the operator of the server the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """The settings of every kind of store."""

    model: str  # name and version of the model
    owner: str  # the server's identity, see `ts.protocol.server_identity`
    lease: float  # seconds for which a lease is valid after it was taken or used
    lifetime: float  # seconds for which a sequence may be idle
    kept: int  # the number of steps of a sequence whose answers are kept, beside the first


@dataclass(slots=True, weakref_slot=True, eq=False)
class Lease:
    """The right to run a sequence, held by this process.

    Args:
        kept_ids: The request ids of the kept answers by slot.

    Attributes:
        token: The fencing token.
        kept: The number of further steps whose answers are kept.
        incarnation: The number of the sequence's incarnation.
        further_steps: How many answers to further steps were stored for the incarnation so far.
        closed: Why the incarnation is over, "" if it is not.
        first_id: The request id of the step that began the incarnation; None before that step was applied.
        request_ids: Those of the further steps whose answers are kept, the oldest first.
        awaits_first: Whether the next step is the incarnation's first.
        resident: Whether the state, or its absence, is known in memory.
        fresh_until: The moment (monotonic seconds) until which no other holder can have taken the lease over.
        number, mark: For the file store's own use.
    """

    sequence_id: str
    token: int
    kept: int
    kept_ids: InitVar[Mapping[int, str]] = NO_IDS
    incarnation: int = 1
    further_steps: int = 0
    closed: str = ""
    number: int = 0
    mark: int = 0
    resident: bool = True
    fresh_until: float = 0.0
    first_id: str | None = field(init=False)
    request_ids: deque[str] = field(init=False)
    awaits_first: bool = field(init=False)

    def __post_init__(self, kept_ids: Mapping[int, str]) -> None:
        self.first_id = kept_ids.get(FIRST_SLOT)
        # The slot that is written next is the oldest.
        slots = sorted(kept_ids.keys() - {FIRST_SLOT}, key=lambda slot: (slot - self._next_slot) % self.kept)
        self.request_ids = deque((kept_ids[slot] for slot in slots), self.kept)
        self.awaits_first = not self.has_begun

    @property
    def has_begun(self) -> bool:
        """Whether a step of the incarnation was applied."""
        return self.first_id is not None

    @property
    def _next_slot(self) -> int:
        return FIRST_SLOT + 1 + self.further_steps % self.kept

    def begin_anew(self) -> None:
        """Make the next step begin the next incarnation, which is stored with that step's commit and not before."""
        self.incarnation += 1
        self.first_id = None
        self.further_steps = 0
        self.request_ids.clear()
        self.closed = ""
        self.awaits_first = True

    def place(self, request_id: str, *, first: bool) -> int:
        """Record a step as applied and return the slot for its answer; ``first``: the step begins the incarnation."""
        if first:
            self.first_id = request_id
            return FIRST_SLOT
        slot = self._next_slot
        self.further_steps += 1
        self.request_ids.append(request_id)
        return slot

    def has_applied(self, request_id: str) -> bool:
        """Whether a step with this id was applied in this incarnation, and its answer is kept."""
        return request_id == self.first_id or request_id in self.request_ids


class Acquired(NamedTuple):
    """The result of acquiring a sequence: a lease and the stored state; no lease if another server runs the sequence.

    A sequence that is over (see `Lease.closed`) has no state, but its answers may still be kept.
    """

    lease: Lease | None
    state: bytes | None


class Commit(NamedTuple):
    """A change of one sequence: its new state (None: it has none), and the answers to the steps that produced it.

    ``kept`` are triples of the answer's slot, the step's request id and the answer. A reason in ``closed`` ends the
    sequence and releases its lease.
    """

    lease: Lease
    state: bytes | None
    closed: str
    kept: Sequence[tuple[int, str, bytes]]


class Store(Protocol):
    """Keeps sequences. Every method raises `StoreError`."""

    def acquire(self, sequence_ids: Sequence[str], active_since: Mapping[str, float] = JUST_NOW) -> list[Acquired]:
        """Take the leases of sequences, creating those that do not exist, and read their stored states.

        Args:
            sequence_ids: The sequences, each once.
            active_since: By id, the moment (monotonic seconds) since which the server knows that the sequence is not
                idle for too long: a sequence whose idle time had not run out at that moment continues. ``-inf`` for a
                sequence that is open at this worker.
        """

    def renew(self, leases: Sequence[Lease]) -> list[bool]:
        """Prolong leases; return False for each lease that another holder has taken."""

    def commit(self, commits: Sequence[Commit]) -> list[bool | None]:
        """Write all changes; return for each whether it was written.

        False means that another holder has taken the sequence and the change was not written. None means that another
        holder has taken the sequence, but the change may have been written before. After a `StoreError` any change may
        have been written, or may still be written later; `settle` finds out.
        """

    def settle(self, commits: Sequence[Commit]) -> list[bool | None]:
        """Return whether each of some failed commits was written after all, None if the store cannot tell.

        After this call none of them can be written. The caller must not use their leases again.
        """

    def find(self, sequence_id: str, request_id: str, incarnation: int | None = None) -> bytes | None:
        """Return the kept answer to a step of a sequence's latest incarnation, or None; no lease is needed.

        If ``incarnation`` is given, return an answer only if it is the latest one.
        """

    def end(self, leases: Sequence[Lease]) -> None:
        """Drop the states of sequences that have ended, and remember that they have."""

    def release(self, released: Sequence[tuple[Lease, float]]) -> None:
        """Release leases, so that every worker can take the sequences over immediately.

        Args:
            released: Leases, each with the past or future moment (monotonic seconds) at which its sequence has been
                idle for too long.
        """

    def tidy(self) -> None:
        """Do the work that commits have deferred; called after the answers have left."""

    def sweep(self) -> None:
        """Drop the states of abandoned sequences, and the records of sequences that ended long ago."""

    def close(self) -> None:
        """Close the file or the connection."""


def may_take(owner: str, until: float, now: float, settings: StoreSettings) -> bool:
    """Return whether a lease that ``owner`` holds until the time ``until`` may be taken over at the time ``now``."""
    return owner in {"", settings.owner} or until <= now or is_gone(owner)
