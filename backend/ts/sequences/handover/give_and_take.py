"""The worker's end of the hand-over of sequences: gives what it has of one, and takes what another worker had of it.

    the server asks `GIVE` ──▶ pieces of the state (`STATE`), then the answer: how many bytes, or why not
    the server sends the same pieces to the successor (`STATE`), then asks `TAKE` ──▶ whether it has the sequence now

What is given stays here until the server says that the sequence is over at this worker (`END_SEQUENCE`): it does so
once the successor has taken it. What has come of a sequence that is not taken in the end goes in the same way.
"""

import logging
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgpack

from ts.jobs.errors import device_failure
from ts.protocol.frames import Buffer
from ts.protocol.messages import (
    GIVE,
    MOVE_FAILED,
    NO_ROOM,
    NOT_ENCODABLE,
    STATE,
    STATE_ELSEWHERE,
    STATE_PIECE,
    TAKE,
)
from ts.sequence.sequence_cache import SequenceCache
from ts.sequence.state_error import StateError
from ts.sequences.steps.record import KeptStep, SequenceRecord
from ts.sequences.steps.step import KeptFields

logger = logging.getLogger(__name__)

#: The most seconds that the handler's ``migrate`` may take.
_MIGRATION_LIMIT: Final = 5.0
#: Of what stands before the state.
_LENGTH: Final = struct.Struct(">I")


class OpenSequences(NamedTuple):
    """What a worker has of its open sequences besides their states, by id: the dictionaries of `Steps`."""

    records: dict[str, SequenceRecord]
    answers: dict[str, dict[int, KeptFields]]
    running: Mapping[str, object]


class Handover:
    """Gives sequences to other workers, and takes theirs.

    Args:
        sequences: Those that are open at this worker.
        cache: Their states.
    """

    def __init__(self, sequences: OpenSequences, cache: SequenceCache) -> None:
        self._sequences = sequences
        self._cache = cache
        self._send: Callable[[list[Any]], None] = _drop
        self._most = 0
        #: The pieces that have come of sequences which are not taken yet.
        self._arriving: dict[str, list[Buffer]] = {}

    def open(self, send: Callable[[list[Any]], None], most: int) -> None:
        """Send with ``send`` what the server asks for; a sequence of more than ``most`` bytes stays here."""
        self._send, self._most = send, most

    @property
    def questions(self) -> Mapping[str, Callable[..., Any]]:
        """What answers the server's questions, by their kind."""
        return {GIVE: self.give, TAKE: self.take}

    def give(self, sequence_id: str, move: int) -> list[Any]:
        """Send all there is of a sequence, for a move; return how many bytes, or why it stays: a reason and a text."""
        try:
            parts = self._encoded(sequence_id)
        except _Refused as refused:
            return list(refused.reason)
        except Exception as error:  # an encoder is the handler's code
            logger.warning("The state of %r cannot be handed over: %s", sequence_id, error)
            return [NOT_ENCODABLE if device_failure(error) is None else MOVE_FAILED, str(error)]
        for part in parts:
            for start in range(0, len(part), STATE_PIECE):
                self._send([STATE, move, part[start : start + STATE_PIECE]])
        return [sum(map(len, parts))]

    def _encoded(self, sequence_id: str) -> tuple[memoryview, memoryview]:
        """Return what the server remembers of a sequence, behind its length, and the state.

        Raises _Refused: the sequence cannot be given now, or ever; StateError, or what an encoder raises.
        """
        record, cache = self._sequences.records.get(sequence_id), self._cache
        if sequence_id in self._sequences.running:
            raise _Refused(MOVE_FAILED, "a step of it runs")
        if record is not None and not cache.is_used:
            raise _Refused(STATE_ELSEWHERE, "the handler keeps no state in context.state")
        cache.before_commit([sequence_id])
        state = cache.encoded(sequence_id)
        answers = self._sequences.answers.get(sequence_id, {})
        fields = None if record is None else _fields_of(record)
        parts = [fields, list(answers.items()), state is not None, cache.is_lost(sequence_id)]
        known: bytes = msgpack.packb(parts, unicode_errors="surrogatepass")
        if state is not None and len(state) > self._most:
            raise _Refused(NO_ROOM, f"it has {len(state)} bytes; handler.cache.maxStateSize allows {self._most}")
        return memoryview(_LENGTH.pack(len(known)) + known), memoryview(state or b"")

    def add(self, sequence_id: str, piece: Buffer) -> None:
        """Keep a piece of a sequence that another worker gives."""
        self._arriving.setdefault(sequence_id, []).append(piece)

    def take(self, sequence_id: str, size: int, version: str = "") -> list[Any]:
        """Have a sequence of which all pieces have come, with so many bytes; it may come from another ``version``.

        Return an empty list, or why it is not taken, of which nothing is kept then: a reason and a text.
        """
        encoded = b"".join(self._arriving.pop(sequence_id, ()))
        if len(encoded) != size:
            return [MOVE_FAILED, f"{len(encoded)} bytes of it have come, not {size}"]
        try:
            self._put(sequence_id, encoded, version)
        except _Refused as refused:
            return list(refused.reason)
        except Exception as error:  # a decoder is the handler's code, and memory may run out
            logger.warning("The state of %r cannot be taken over: %s", sequence_id, error)
            return [NOT_ENCODABLE if device_failure(error) is None else MOVE_FAILED, str(error)]
        return []

    def _put(self, sequence_id: str, encoded: bytes, version: str) -> None:
        """Raises _Refused: there is no room; StateError, or what a decoder raises."""
        behind = _LENGTH.size + _LENGTH.unpack_from(encoded)[0]
        known = msgpack.unpackb(encoded[_LENGTH.size : behind], unicode_errors="surrogatepass")
        fields, answers, has_state, is_lost = known
        record = None if fields is None else _record_of(fields)
        kept_answers = {number: KeptFields(*kept) for number, kept in answers}
        cache = self._cache
        if has_state:
            value = cache.encoding.decode(encoded[behind:])
            if version:
                value = self._migrated(value, version)
            if not cache.has_room_for(value):
                raise _Refused(NO_ROOM, "the other worker's memory for states (handler.cache) is full")
            cache.put(sequence_id, value)
            cache.is_used = True
        if is_lost:
            cache.note_lost(sequence_id)
        if record is not None:
            self._sequences.records[sequence_id] = record
        if kept_answers:
            self._sequences.answers[sequence_id] = kept_answers

    def _migrated(self, state: Any, version: str) -> Any:
        """Return this version's state for that of another one, which is whole.

        Raises StateError: the result is no state; LoadError: ``migrate`` cannot be called; what the handler raises.
        """
        migrate = self._cache.migrate
        if migrate is None:
            raise StateError("the handler has no method migrate")
        # Sequences that stay with their version do without all that this imports.
        from ts.sequences.steps.migration import checked, takes_entries
        from ts.sequences.steps.time_limit import limited_to

        with limited_to(_MIGRATION_LIMIT):
            return checked(migrate(state, version, []) if takes_entries(migrate) else migrate(state, version))

    def forget(self, sequence_id: str) -> bool:
        """Drop what has come of a sequence that is not taken after all; return whether there was something."""
        return self._arriving.pop(sequence_id, None) is not None


def _drop(message: list[Any]) -> None:
    """Nobody asks before `Handover.open`."""


class _Refused(Exception):
    """A sequence stays where it is, for a ``reason``."""

    def __init__(self, *reason: str) -> None:
        super().__init__(*reason)
        self.reason = reason


def _fields_of(record: SequenceRecord) -> list[Any]:
    """Return the fields of a record as msgpack writes them; a sequence in memory has no checkpoint."""
    return [
        *(record.incarnation, record.token, record.version, record.state_version, record.last, record.closed),
        *(None if record.ids is None else bytes(record.ids), record.forgotten_ids),
        None if record.kept is None else list(record.kept.values()),
        record.earlier,
    ]


def _record_of(fields: list[Any]) -> SequenceRecord:
    """Return the record whose `_fields_of` these are."""
    incarnation, token, version, state_version, last, closed, ids, forgotten_ids, kept, earlier = fields
    return SequenceRecord(
        *(incarnation, token, version, state_version, last, closed),
        *(None if ids is None else bytearray(ids), forgotten_ids),
        kept=None if kept is None else {number: KeptStep(number, *rest) for number, *rest in kept},
        earlier=earlier,
    )
