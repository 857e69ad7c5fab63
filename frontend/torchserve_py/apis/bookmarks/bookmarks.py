"""What is done with one stored sequence of a model: it is shown, forked, goes back, is exported and imported.

All of it works in the store, whichever server holds the sequence. A sequence that goes back, or is replaced, is taken
from its holder: that is asked to let go first, and a step that it still runs then is refused by the store, as after any
takeover. So every step counts either before the change or after it. Everything here blocks.
"""

import contextlib
import importlib
import io
import time
from collections.abc import Iterator
from typing import Final, NamedTuple

from ts.sequences.steps.record import Damaged
from ts.sequences.steps.stores.maintenance import Examined, Maintenance, StoredSequence
from ts.sequences.steps.stores.portable import read_sequences, write_sequences
from ts.sequences.steps.stores.sequence_fork import fork
from ts.sequences.steps.stores.sequence_rewind import replacement, rewind
from ts.sequences.steps.stores.store import StoreError

#: How long (seconds) the server that holds a sequence may take to let go of it, before it is taken from it, and how
#: often the store is asked whether it has.
_PATIENCE: Final = 1.0
_PAUSE: Final = 0.02


class NoSuchSequence(Exception):
    """The store has no such sequence."""


class IdInUse(Exception):
    """The store has a sequence with the id that a new one is to have."""


class UnreadableSequence(Exception):
    """What the store has of the sequence is damaged; the message says how."""


class UnusableFile(Exception):
    """What is to be imported is not the export of this sequence; the message says what is wrong with it."""


class StorePlace(NamedTuple):
    """Where the sequences of a model are: the module of its store, and a path or a URL."""

    module: str
    place: str


class Known(NamedTuple):
    """A sequence as its store has it, and the identity of the server that holds it; "" if none does."""

    sequence: StoredSequence
    holder: str


class Bookmarks:
    """The sequences of one model. Every method raises `StoreError`: the store cannot be used."""

    def __init__(self, model: str, place: StorePlace) -> None:
        self._model = model
        self._place = place

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Maintenance]:
        """Open the store, which workers have made: one that this process made might not be theirs to use."""
        try:
            module = importlib.import_module(self._place.module)
        except ModuleNotFoundError as error:
            raise StoreError(f"the server lacks the package {error.name}, which the store needs") from error
        with contextlib.closing(module.open_maintenance(self._place.place, create=False)) as store:
            yield store

    def show(self, sequence_id: str) -> Known:
        """Return what the store has of a sequence. Raises NoSuchSequence, UnreadableSequence."""
        with self._opened() as store:
            return Known(self._read(store, sequence_id), store.holder(self._model, sequence_id))

    def fork(self, sequence_id: str, new_id: str, step: int | None) -> StoredSequence:
        """Copy a sequence, as it was after a step; None: after its last one.

        Raises NoSuchSequence, UnreadableSequence, IdInUse; NoStateThere: the store has no state after that step.
        """
        with self._opened() as store:
            made = fork(self._read(store, sequence_id), new_id, step)
            if not store.write(made, replace=False):
                raise IdInUse
            return made

    def rewind(self, sequence_id: str, step: int) -> StoredSequence:
        """Let a sequence go on after an earlier step. Raises as `fork`."""
        made: list[StoredSequence] = []

        def change(found: Examined | None) -> StoredSequence:
            made.append(rewind(_readable(found), step))
            return made[-1]

        with self._opened() as store:
            rewind(self._read(store, sequence_id), step)  # what is refused disturbs nobody
            self._ask_for(store, sequence_id)
            store.change(self._model, sequence_id, change)
        return made[-1]

    def exported(self, sequence_id: str) -> bytes:
        """Return a file with a sequence. Raises NoSuchSequence, UnreadableSequence."""
        with self._opened() as store:
            sequence = self._read(store, sequence_id)
        out = io.BytesIO()
        write_sequences([sequence], out)
        return out.getvalue()

    def imported(self, sequence_id: str, file: bytes, *, replace: bool) -> StoredSequence:
        """Store the sequence in a file, instead of the one with its id if it is to replace that.

        Raises UnusableFile; IdInUse: there is one, and it is to stay.
        """
        sequence = self._in_file(sequence_id, file)
        made = [sequence]

        def change(found: Examined | None) -> StoredSequence:
            if found is not None:
                made.append(replacement(sequence, found.sequence))
            return made[-1]

        with self._opened() as store:
            if not replace:
                if not store.write(sequence, replace=False):
                    raise IdInUse
                return sequence
            self._ask_for(store, sequence_id)
            store.change(self._model, sequence_id, change)
        return made[-1]

    def _in_file(self, sequence_id: str, file: bytes) -> StoredSequence:
        try:
            sequences = list(read_sequences(io.BytesIO(file)))
        except Damaged as damage:
            raise UnusableFile(str(damage)) from damage
        if len(sequences) != 1:
            raise UnusableFile(f"it has {len(sequences)} sequences, and must have one")
        (sequence,) = sequences
        if isinstance(sequence, Damaged):
            raise UnusableFile(str(sequence))
        if (sequence.model, sequence.sequence_id) != (self._model, sequence_id):
            found = f"sequence {sequence.sequence_id!r} of model {sequence.model!r}"
            raise UnusableFile(f"it has {found}, and must have sequence {sequence_id!r} of model {self._model!r}")
        return sequence

    def _read(self, store: Maintenance, sequence_id: str) -> StoredSequence:
        return _readable(store.examine_one(self._model, sequence_id))

    def _ask_for(self, store: Maintenance, sequence_id: str) -> None:
        """Ask the server that holds a sequence to let go, and wait for that for a while."""
        end = time.monotonic() + _PATIENCE
        while (holder := store.holder(self._model, sequence_id)) and time.monotonic() < end:
            store.ask(self._model, sequence_id, holder)
            time.sleep(_PAUSE)


def _readable(found: Examined | None) -> StoredSequence:
    if found is None:
        raise NoSuchSequence
    if found.sequence is None:
        raise UnreadableSequence("; ".join(found.problems))
    return found.sequence
