"""What an operator does with a store: find what is damaged, set it right, and move sequences to another store.

All of it works while servers use the store.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ts.sequences.steps.state_log import LogEntry
from ts.sequences.steps.stores.store import KeptAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSequence:
    """A sequence as it is moved between stores, of whatever kind.

    Attributes:
        head: As `steps.record.pack_head` has sealed it.
        closed: Why the sequence is over, "" if it is not.
        time_left: Seconds after which it has been idle for too long; if it is over, after which it is forgotten.
        tokens: The digests of the tokens of its incarnations; see `steps.record.SequenceRecord.tokens`.
        ids: The digests of request ids, in order.
        state: The stored state; None if there is none, or if the sequence is over.
        answers: The kept answers, by the numbers of their steps.
        log: What steps have appended since the stored state, in order.
    """

    model: str
    sequence_id: str
    head: bytes
    closed: str
    time_left: float
    tokens: bytes
    ids: bytes
    state: bytes | None
    answers: Sequence[KeptAnswer]
    log: Sequence[LogEntry] = ()


class Examined(NamedTuple):
    """A sequence that the store has.

    Attributes:
        problems: What is damaged of it; empty if all is well.
        sequence: What can be read of it; None if its head, its state, or what recognizes its steps cannot be.
    """

    model: str
    sequence_id: str
    problems: Sequence[str]
    sequence: StoredSequence | None


class Repaired(NamedTuple):
    """What `Maintenance.repair` has done with a sequence: one sentence for a person."""

    model: str
    sequence_id: str
    what: str


#: Gets what a store has of a sequence; returns what is to be in its place, None if it is to stay as it is.
Change = Callable[[Examined | None], StoredSequence | None]


class Maintenance(Protocol):
    """A store as its operator sees it: all models and versions in it. Every method raises `StoreError`."""

    def examine(self) -> Iterator[Examined]:
        """Read each sequence that has begun, open or over."""

    def examine_one(self, model: str, sequence_id: str) -> Examined | None:
        """Read one sequence, open or over; None if the store has none with this id that has begun."""

    def other_problems(self) -> Sequence[str]:
        """Return what else is wrong with the store, or was set aside in it; each a sentence that names it."""

    def repair(self) -> Iterator[Repaired]:
        """Set damaged sequences right as far as possible.

        What cannot be read is dropped, what can is kept. A sequence without a readable head is over from now on, and is
        remembered as such. Whoever held a lease on a repaired sequence has lost it.
        """

    def write(self, sequence: StoredSequence, *, replace: bool) -> bool:
        """Store a sequence that another store had.

        Returns False, and changes nothing, if the store has one with this id and model that has begun, unless it is to
        be replaced. Whoever held a lease on a replaced sequence has lost it.
        """

    def change(self, model: str, sequence_id: str, change: Change) -> None:
        """Replace a sequence by what ``change`` makes of it; nothing is written to it meanwhile.

        ``change`` may be called again if it is changed elsewhere; what it raises is raised, and changes nothing.
        Whoever held a lease on the sequence has lost it.
        """

    def holder(self, model: str, sequence_id: str) -> str:
        """Return the identity of the server that has the lease on a sequence; "" if none has."""

    def ask(self, model: str, sequence_id: str, holder: str) -> None:
        """Ask a server to let go of a sequence that it holds, once it has no step of it; do not wait for that."""

    def close(self) -> None:
        """Close the file or the connection."""
