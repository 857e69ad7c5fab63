"""Where servers leave each other their sequences in memory, and tell which they have: a folder, or a database.

Sequences have keys: the names of the model and of the sequence (`name_of`) with a slash between them. What has another
server's clock or hand in it is data: it may be damaged, or not there. All of this blocks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from enum import Enum, auto
from typing import Final, NamedTuple, Protocol

HAS: Final = "+"
LACKS: Final = "-"
LOST: Final = "!"

#: After how many seconds without a sign of life a server has died.
DEAD: Final = 10.0
#: How often a server shows that it lives (seconds).
SIGN_INTERVAL: Final = 1.0
#: For how long it counts after the last sign of life what a server has told, and what it asks for (seconds).
KEPT: Final = 3600.0
WANTED_KEPT: Final = 60.0


class Place(Enum):
    """Where a sequence is that this server does not have."""

    left = auto()
    elsewhere = auto()
    lost = auto()
    nowhere = auto()


class Wanted(NamedTuple):
    """A sequence that a server asks for: the name of its model in keys, and its id."""

    model: str
    sequence_id: str


class Known(NamedTuple):
    """What is known of a sequence that was left, besides its state.

    Attributes:
        version: The version that the sequence is of.
        ends_at: When it has been idle for too long, in seconds since 1970.
        tokens: Those of its jobs that were answered.
        time_left: Seconds until it reaches its time limit, None if it has none.
    """

    version: str
    ends_at: float
    tokens: tuple[str, ...]
    time_left: float | None


class Found(NamedTuple):
    """A sequence that was left.

    Attributes:
        version: The version that it is of; empty if that cannot be read.
        key: Under which key it is; another one than its own once this server has taken it.
    """

    version: str
    key: str


class Seen(NamedTuple):
    """What was seen.

    Attributes:
        places: Of the sequences that were sought.
        found: Those of them that are left.
        wanted: What other servers ask for.
        usurped: What this server has to give up: another one has it, too.
        problem: Why other servers could not be told everything.
    """

    places: dict[str, Place]
    found: Mapping[str, Found]
    wanted: list[Wanted]
    usurped: list[str]
    problem: OSError | None


class LeftStates(Protocol):
    """The sequences that servers have left. What is called raises OSError where it cannot be done."""

    def all(self) -> Mapping[str, Found]:
        """Return all that this server may have without asking others; remove those that are over."""

    def write(self, key: str, known: Known, given: Iterable[bytes], counts: Callable[[], bool]) -> None:
        """Write a sequence, which appears whole, and only if it ``counts`` just before that."""

    def take(self, key: str, taken: str) -> bytes | None:
        """Return what was written after giving it another key, if it has that not yet; None if it is not there."""

    def rename(self, key: str, other: str) -> None:
        """Give a sequence another key."""

    def remove(self, keys: Iterable[str]) -> None:
        """Remove those of these that are there."""

    def drop(self, model: str) -> None:
        """Remove all of a model."""


class Lists(Protocol):
    """What servers tell each other of the sequences that they have, and ask for. Only one thread at a time uses it."""

    def look(self, marks: dict[str, str], sought: Mapping[str, Wanted]) -> Seen:
        """Change marks in the own list; look for sequences, and what others want.

        What no other server has is listed as the own one before this returns. What others have is asked for.
        Raises OSError: it cannot be seen what others tell.
        """

    def names(self, key: str) -> bool:
        """Whether the own list names a sequence, or is to do so once it can be written."""

    def place(self, key: str) -> Place:
        """Return where a sequence is that was not left, as far as is known without looking."""

    def end(self, lost: Iterable[str]) -> None:
        """Say that this server has ended, with which these sequences are lost. Raises OSError."""


class Storage(NamedTuple):
    """Where sequences are left.

    Attributes:
        states: The sequences.
        lists: What servers that run tell each other of them; None if this server is the only one.
    """

    states: LeftStates
    lists: Lists | None


def name_of(text: str) -> str:
    """Return what a model or a sequence is called in keys: names and ids may be long, or ``..``."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
