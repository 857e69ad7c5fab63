"""What a store of sequences does, and the rule that keeps two servers from running one sequence.

A store holds, for each sequence of a model version, its state and the answers to its last steps. Who runs a sequence
has a **lease** on it: the name of its server, the time until which the lease holds, and a **token** that is new with
every lease. Only the holder of the latest token may write (*fencing*): a worker that was believed dead and wakes up, or
a server whose lease another one has taken over, is refused, whatever it still thinks it has.

A lease is given if nobody holds one; if the holder is this same server, whose scheduler has one worker run a sequence,
so that the worker which had it before is gone; if its time is over; or if the holder's process is known to have ended.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ts.protocol.server_identity import is_gone

#: How long (seconds) it is remembered that a sequence is over, so that a step which continues it is refused.
REMEMBERED_SECONDS = 3600.0
#: The most steps of a sequence whose answers are kept.
MOST_KEPT = 64
#: Why a sequence is over, as `Acquired.closed` says it; "" of one that is not.
ENDED, IDLE, TIMEOUT = "ended", "idle", "timeout"


class StoreError(Exception):
    """The store cannot do what was asked; nothing of it counts. The message says why, for whoever runs the server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """What every store is told.

    model      name and version, whose sequences these are
    owner      the server's identity, see `ts.protocol.server_identity`
    lease      seconds that a lease holds after it was taken or used
    lifetime   seconds after its last step after which a sequence counts as abandoned
    kept       of how many steps of a sequence the answers are kept
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
    steps        how many answers were stored for the sequence so far
    request_ids  those of the steps whose answers are kept, the oldest first
    resident     whether the state (or that there is none) is known in memory
    fresh_until  the moment (monotonic seconds) until which nobody else can have taken the lease over
    mark         what a store notes about it for itself
    """

    __slots__ = ("fresh_until", "key", "mark", "request_ids", "resident", "sequence_id", "steps", "token")

    def __init__(
        self, sequence_id: str, key: object, token: int, steps: int, request_ids: Sequence[str], settings: StoreSettings
    ) -> None:
        self.sequence_id = sequence_id
        self.key = key
        self.token = token
        self.steps = steps
        self.request_ids = deque(request_ids, settings.kept)
        self.resident = True
        self.fresh_until = time.monotonic() + settings.lease
        self.mark = 0


class Acquired(NamedTuple):
    """What came of asking for a sequence: a lease and the stored state, or None because another server runs it.

    ``closed`` says that the sequence is over, and why; then there is no state, but answers may still be kept.
    """

    lease: Lease | None
    state: bytes | None
    closed: str


class Commit(NamedTuple):
    """What one sequence has become: its state (None: it has none), and the answers to the steps that made it so.

    ``answers`` are triples of the slot that the answer is kept in, the step's request id and the answer.
    """

    lease: Lease
    state: bytes | None
    closed: str
    answers: Sequence[tuple[int, str, bytes]]


class Store(Protocol):
    """Keeps sequences. Every method raises `StoreError`."""

    def acquire(self, sequence_ids: Sequence[str]) -> list[Acquired]:
        """Take the leases of sequences, which begin to exist with that, and read what is stored of them."""

    def renew(self, leases: Sequence[Lease]) -> list[bool]:
        """Prolong leases; False for one that another has taken."""

    def commit(self, commits: Sequence[Commit]) -> list[bool]:
        """Write all or, where it raises, nothing that counts; False for a sequence that another has taken.

        After `StoreError` it may have been written all the same: the step, sent again, will tell.
        """

    def answer(self, lease: Lease, request_id: str) -> bytes | None:
        """Return the kept answer to a step."""

    def end(self, ended: Sequence[tuple[Lease, str]]) -> None:
        """These sequences are over for these reasons: drop their states, and remember that."""

    def release(self, leases: Sequence[Lease]) -> None:
        """Let anybody take these sequences over at once."""

    def tidy(self) -> None:
        """The answers have left: do what a commit has put off."""

    def sweep(self) -> None:
        """Drop the states of abandoned sequences, and what needs to be remembered no longer."""

    def close(self) -> None:
        """Let go of the file or the connection."""


def may_take(owner: str, until: float, now: float, settings: StoreSettings) -> bool:
    """Whether a lease that ``owner`` has until then may be taken over."""
    return owner in {"", settings.owner} or until <= now or is_gone(owner)
