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

**Idle time** is what the holder knows: its scheduler ends a sequence that had nothing queued and nothing in flight for
too long. The moment at which the sequence is idle for too long is stored for those who continue it after the holder has
let it go, be it that the moment is past. Whoever asks for the sequence then, says since when it has had something of it
queued: if that was before the moment, the sequence goes on, or else it has expired for everybody. Its state is kept for
a while for that. Where the holder did not let go (it was killed, or is frozen), nobody can tell what it had queued, so
the sequence is not taken for idle.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from ts.protocol.server_identity import is_gone

#: How long (seconds) it is remembered that a sequence is over, so that a step which continues it is refused; and how
#: long the state of an abandoned one is kept beyond its idle time, in case that its server only sleeps.
REMEMBERED_SECONDS = 3600.0
#: How long (seconds) the state of a sequence is kept that was let go and has been idle for too long since then: for a
#: step of it that waits for a worker of another server since before that.
REVIVABLE_SECONDS = 300.0
#: The most steps of a sequence whose answers are kept, beside the first.
MOST_KEPT = 64
#: Where the answer is kept to the step that has begun the incarnation; those of further steps take turns in the others.
FIRST_SLOT = 0
#: Why a sequence is over, as `Acquired.closed` says it; "" of one that is not.
ENDED, IDLE = "ended", "idle"
#: Nothing of any sequence was queued before now; see `Store.acquire`.
JUST_NOW: Final[Mapping[str, float]] = MappingProxyType({})


class StoreError(Exception):
    """The store cannot do the operation. The message gives the operator of the server the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """The settings of every kind of store.

    model      name and version, whose sequences these are
    owner      the server's identity, see `ts.protocol.server_identity`
    lease      seconds that a lease holds after it was taken or used
    lifetime   seconds for which a sequence may be idle
    kept       of how many steps of a sequence the answers are kept, beside the first
    """

    model: str
    owner: str
    lease: float
    lifetime: float
    kept: int


class Lease:
    """The right to run a sequence, held by this process.

    key          what the store finds the sequence by
    token        the fencing token
    incarnation  which of the sequences that have had this id
    first_id     the request id of the step that has begun the incarnation; None before there is one
    steps        how many answers to further steps were stored for the incarnation so far
    request_ids  those of the further steps whose answers are kept, the oldest first
    closed       why the incarnation is over, "" if it is not
    awaits_first whether the next step is the incarnation's first
    resident     whether the state (or that there is none) is known in memory
    fresh_until  the moment (monotonic seconds) until which nobody else can have taken the lease over
    mark         what a store notes about it for itself
    """

    __slots__ = (
        "__weakref__",
        "awaits_first",
        "closed",
        "first_id",
        "fresh_until",
        "incarnation",
        "key",
        "mark",
        "request_ids",
        "resident",
        "sequence_id",
        "steps",
        "token",
    )

    def __init__(
        self,
        sequence_id: str,
        key: object,
        token: int,
        settings: StoreSettings,
        *,
        incarnation: int = 1,
        first_id: str | None = None,
        steps: int = 0,
        request_ids: Sequence[str] = (),
        closed: str = "",
    ) -> None:
        self.sequence_id = sequence_id
        self.key = key
        self.token = token
        self.incarnation = incarnation
        self.first_id = first_id
        self.steps = steps
        self.request_ids = deque(request_ids, settings.kept)
        self.closed = closed
        self.awaits_first = first_id is None and not steps
        self.resident = True
        self.fresh_until = time.monotonic() + settings.lease
        self.mark = 0

    def begin_anew(self) -> None:
        """The next step begins the next incarnation; nothing of it is stored before that step is."""
        self.incarnation += 1
        self.first_id = None
        self.steps = 0
        self.request_ids.clear()
        self.closed = ""
        self.awaits_first = True

    def place(self, request_id: str, *, first: bool) -> int:
        """Return the slot in which the answer to a step is to be kept; ``first``: it has begun the incarnation."""
        if first:
            self.first_id = request_id
            return FIRST_SLOT
        slot = slot_of(self.steps, self.request_ids.maxlen or 1)
        self.steps += 1
        self.request_ids.append(request_id)
        return slot

    def has_applied(self, request_id: str) -> bool:
        """Whether a step with this id was applied in this incarnation, and its answer is kept."""
        return request_id == self.first_id or request_id in self.request_ids


def slot_of(number: int, kept: int) -> int:
    """Return the slot of an incarnation's further step, counted from 0."""
    return FIRST_SLOT + 1 + number % kept


class Acquired(NamedTuple):
    """What came of asking for a sequence: a lease and the stored state, or None because another server runs it.

    ``closed`` says that the sequence is over, and why; then there is no state, but answers may still be kept.
    """

    lease: Lease | None
    state: bytes | None
    closed: str


class Commit(NamedTuple):
    """What one sequence has become: its state (None: it has none), and the answers to the steps that made it so.

    ``answers`` are triples of the slot that the answer is kept in, the step's request id and the answer. With a reason
    in ``closed`` the sequence is over, and nobody holds it any more.
    """

    lease: Lease
    state: bytes | None
    closed: str
    answers: Sequence[tuple[int, str, bytes]]


class Store(Protocol):
    """Keeps sequences. Every method raises `StoreError`."""

    def acquire(self, sequence_ids: Sequence[str], active_since: Mapping[str, float] = JUST_NOW) -> list[Acquired]:
        """Take the leases of sequences, which begin to exist with that, and read what is stored of them.

        Args:
            sequence_ids: Each once.
            active_since: By id, since which moment (monotonic seconds) the server knows that the sequence is not idle
                for too long: what had idle time left then has it still. ``-inf`` where the sequence is open here.
        """

    def renew(self, leases: Sequence[Lease]) -> list[bool]:
        """Prolong leases; False for one that another has taken."""

    def commit(self, commits: Sequence[Commit]) -> list[bool | None]:
        """Write all; False for a sequence that another has taken: nothing of it was written.

        None: another has taken it, but it may have been written before that. After `StoreError` everything may have
        been written, or be written later on; `settle` tells.
        """

    def settle(self, commits: Sequence[Commit]) -> list[bool | None]:
        """Whether commits that have failed were written all the same; from now on none of them can be written.

        None: that cannot be told any more. The leases are not to be used again.
        """

    def answer(self, lease: Lease, request_id: str) -> bytes | None:
        """Return the kept answer to a step."""

    def find(self, sequence_id: str, request_id: str, incarnation: int | None = None) -> bytes | None:
        """Return the kept answer to a step of a sequence that another may hold, if it is of the latest incarnation.

        With ``incarnation`` only if that is the latest one.
        """

    def end(self, leases: Sequence[Lease]) -> None:
        """These sequences have ended: drop their states, and remember that."""

    def release(self, released: Sequence[tuple[Lease, float]]) -> None:
        """Let anybody take these sequences over at once.

        Args:
            released: Leases, and the moments (monotonic seconds), past or to come, at which they are idle for too long.
        """

    def tidy(self) -> None:
        """The answers have left: do what a commit has put off."""

    def sweep(self) -> None:
        """Drop the states of abandoned sequences, and what needs to be remembered no longer."""

    def close(self) -> None:
        """Let go of the file or the connection."""


def may_take(owner: str, until: float, now: float, settings: StoreSettings) -> bool:
    """Whether a lease that ``owner`` has until then may be taken over."""
    return owner in {"", settings.owner} or until <= now or is_gone(owner)
