"""Which version of a model has a sequence on this server: every decision on that, on one page. No I/O, no clock.

A sequence is the version's whose scheduler has it open. It may change hands between two of its steps, with all that
waits behind them. The store has the last word: a wrong decision here costs a client an attempt, and no step.

    what happens                                        asked            decided
    a step arrives                                      `arrival`        who runs it, and whether its sequence moves
    a sequence is to be another version's               `move`           now, once it rests, or never
    the last step in flight of a sequence is answered   `at_rest`        whether it moves now that it was to
    the store says that a step is another version's     `belongs_to`     who runs it, or why it is refused
    a version is to run what waits at another one       `may_leave`      whether a step goes
    a version ends, or another one takes its place      `loses_states`   whether its sequences are lost

Other servers are kept apart by the leases of the store; `refused_steps` says how long a step waits for one.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from torchserve_py.base.causes import Cause
from torchserve_py.core.jobs.call import Call
from torchserve_py.core.scheduling import sequence as sequences

if TYPE_CHECKING:
    from torchserve_py.core.dispatch.dispatcher import Dispatcher


class Version(Protocol):
    """A version of a model, as far as it counts here."""

    @property
    def version(self) -> str:
        """Its name."""

    @property
    def dispatcher(self) -> Dispatcher:
        """What runs its jobs."""


V = TypeVar("V", bound=Version)


class Move(Enum):
    """When a sequence goes to another version."""

    now = auto()
    at_rest = auto()
    never = auto()


class Arrival(NamedTuple, Generic[V]):
    """What becomes of a step that arrives.

    Attributes:
        runs: The version that runs it; None: it is refused with `Cause.sequence_moved`, since its client has named a
            version that does not have the sequence.
        move: When the sequence goes to the version that the step is meant for.
    """

    runs: V | None
    move: Move


class Ownership(Generic[V]):
    """Decides for the versions of one model: those that are served, by their names, and those of them that are to go.

    Both are read when something is decided; whoever serves versions changes them.
    """

    def __init__(self, served: Mapping[str, V], leaving: Container[V]) -> None:
        self._served = served
        self._leaving = leaving

    def named(self, name: str) -> V | None:
        """Return the version of this name, None if there is none."""
        return self._served.get(name)

    def _takes(self, version: V) -> bool:
        """Whether a version gets sequences that it does not have."""
        is_served = self._served.get(version.version) is version and version not in self._leaving
        return is_served and not version.dispatcher.scheduler.drains

    def arrival(
        self,
        meant: V,
        owner: V | None,
        sequence: sequences.Sequence | None,
        default: V,
        *,
        named: bool,
        continues: bool,
    ) -> Arrival[V]:
        """A step has come that is ``meant`` for a version: its client has ``named`` that, or it has the step by weight.

        ``owner`` has its ``sequence`` open; the version that is meant ``continues`` what the owner has stored.
        """
        if owner is None or sequence is None:
            return Arrival(meant if named or self._takes(meant) else default, Move.never)
        if owner is meant:
            return Arrival(owner, Move.never)
        move = self.move(sequence, meant) if continues else Move.never
        if move is Move.now:
            return Arrival(meant, move)
        return Arrival(None if named else owner, move)

    def move(self, sequence: sequences.Sequence, to: V) -> Move:
        """A version is to have a sequence of another one, which it continues.

        It never gets one that it was found not to run since that is open.
        """
        if not self._takes(to) or sequence.handed_over_by is to or sequence.state is sequences.CLOSED:
            return Move.never
        return Move.now if sequence.state is sequences.IDLE else Move.at_rest

    def at_rest(self, sequence: sequences.Sequence, answered: Call, to: V) -> bool:
        """The last part of a step is there, whose sequence is to move ``to`` a version: return whether it does now.

        The sequence stays if it ends with the step. Until another step rests, it also stays if one waits that only its
        version may run.
        """
        if sequence.in_flight != (answered,) or sequence.ending or answered.ends_sequence or not self._takes(to):
            return False
        waiting: Sequence[Any] = sequence.queue
        return all(each.may_be_handed_over and not each.sends for each in waiting)

    def belongs_to(self, name: str, job: Call, here: Version | None, refusal: Cause) -> V | Cause:
        """The store says that a step belongs to a version with this name; ``refusal`` says so if it is not here.

        A step of which a worker has some inputs stays, and so does one whose client names its version.
        """
        owner = self._served.get(name)
        if owner is None or owner is here or not owner.dispatcher.durable:
            return refusal
        return owner if job.may_be_handed_over else Cause.sequence_moved


def may_leave(job: Call, sequence: sequences.Sequence | None, to: Version) -> bool:
    """Whether another version may run a job that waits; if its sequence is not that version's, it comes back."""
    is_free = sequence is None or (sequence.state is sequences.PENDING and sequence.handed_over_by is not to)
    return is_free and job.may_be_handed_over and not job.sends


def loses_states(version: Version, others: Collection[Version]) -> bool:
    """Whether the open sequences of a version that ends are lost, since ``others`` stay, or none."""
    if not version.dispatcher.durable:
        return True
    return bool(others) and not any(each.dispatcher.durable for each in others)
