"""The worker's end of the hand-over of sequences: gives what it has of one, and takes what another worker had of it.

    the server asks `GIVE` ──▶ pieces of the state (`STATE`), then the answer: how many bytes, or why not
    the server sends the same pieces to the successor (`STATE`), then asks `TAKE` ──▶ whether it has the sequence now

While it moves the sequence runs no step. So the answer to `GIVE` may be that the state is large. Then the server lets
the sequence go on, and asks `GIVE_AHEAD` for some pieces at a time, between which the worker runs steps. The next
`GIVE` sends what has changed since (`sent_ahead`).

What is given stays here until the server says that the sequence is over at this worker (`END_SEQUENCE`): it does so
once the successor has taken it. What has come of a sequence that is not taken in the end goes in the same way.
"""

import logging
import struct
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any, Final, NamedTuple

import msgpack

from ts.jobs.errors import device_failure
from ts.protocol.frames import Buffer
from ts.protocol.messages import (
    GIVE,
    GIVE_AHEAD,
    GIVES_AHEAD,
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
from ts.sequence.state_size import size_of
from ts.sequences.handover.sent_ahead import LARGE, Copy, changed_since, copy_of, put_together
from ts.sequences.steps.record import KeptStep, SequenceRecord
from ts.sequences.steps.step import KeptFields

logger = logging.getLogger(__name__)

#: The most seconds that the handler's ``migrate`` may take.
_MIGRATION_LIMIT: Final = 5.0
#: Of what stands before the state.
_LENGTH: Final = struct.Struct(">I")
#: How many pieces of a large state the worker sends before it looks for steps to run.
_AHEAD_AT_ONCE: Final = 8


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
        #: What was sent ahead, of large states.
        self._ahead: dict[str, Copy] = {}

    def open(self, send: Callable[[list[Any]], None], most: int) -> None:
        """Send with ``send`` what the server asks for; a sequence of more than ``most`` bytes stays here."""
        self._send, self._most = send, most

    @property
    def questions(self) -> Mapping[str, Callable[..., Any]]:
        """What answers the server's questions, by their kind."""
        return {GIVE: self.give, GIVE_AHEAD: self.give_ahead, TAKE: self.take}

    def give(self, sequence_id: str, move: int, ahead: int | None = None) -> list[Any]:
        """Send all there is of a sequence, for a move; return how many bytes, or why it stays: a reason and a text.

        Args:
            ahead: How many pieces of its state were sent ahead. With 0 nothing of a large state is sent, and the answer
                is `GIVES_AHEAD`; with None, all of it.
        """
        before = self._ahead.pop(sequence_id, None)
        try:
            self._check(sequence_id)
            if ahead == 0 and size_of(self._cache.look_at(sequence_id), LARGE) > LARGE:
                return [GIVES_AHEAD]
            state = self._changed(sequence_id, before) if ahead else self._whole(sequence_id)
            parts = self._known(sequence_id), *state
        except _Refused as refused:
            return list(refused.reason)
        except Exception as error:  # an encoder is the handler's code
            return _refusal("The state of %r cannot be handed over: %s", sequence_id, error)
        for part in parts:
            view = memoryview(part)
            for start in range(0, len(view), STATE_PIECE):
                self._send([STATE, move, view[start : start + STATE_PIECE]])
        return [sum(map(len, parts))]

    def give_ahead(self, sequence_id: str, move: int, sent: int) -> list[Any]:
        """Send some pieces of a large state behind those that were ``sent``; return how many were, and of how many.

        The first ones are of a copy that is made of the state as it is; it is dropped if ``sent`` is below zero. What
        is returned may also be why nothing is sent: a reason and a text.
        """
        if sent < 0:
            self._ahead.pop(sequence_id, None)
            return [0, 0]
        try:
            if not sent:
                self._check(sequence_id)
                self._ahead[sequence_id] = copy_of(self._parts(sequence_id))
        except _Refused as refused:
            return list(refused.reason)
        except Exception as error:  # as above
            return _refusal("The state of %r cannot be sent ahead: %s", sequence_id, error)
        pieces = list(chain.from_iterable(self._ahead.get(sequence_id, ())))
        some = pieces[sent : sent + _AHEAD_AT_ONCE]
        for piece in some:
            self._send([STATE, move, piece])
        return (
            [sent + len(some), len(pieces)] if some else [MOVE_FAILED, "there is nothing more of it to be sent ahead"]
        )

    def _check(self, sequence_id: str) -> None:
        """Raises _Refused: the sequence cannot be given now, or ever."""
        if sequence_id in self._sequences.running:
            raise _Refused(MOVE_FAILED, "a step of it runs")
        if sequence_id in self._sequences.records and not self._cache.is_used:
            raise _Refused(STATE_ELSEWHERE, "the handler keeps no state in context.state")

    def _known(self, sequence_id: str) -> bytes:
        """Return what the server remembers of a sequence, behind its length."""
        record, cache = self._sequences.records.get(sequence_id), self._cache
        answers = self._sequences.answers.get(sequence_id, {})
        fields = None if record is None else _fields_of(record)
        parts = [fields, list(answers.items()), sequence_id in cache, cache.is_lost(sequence_id)]
        known: bytes = msgpack.packb(parts, unicode_errors="surrogatepass")
        return _LENGTH.pack(len(known)) + known

    def _whole(self, sequence_id: str) -> tuple[bytes]:
        """Return the state. Raises _Refused: it has too many bytes; StateError, or what an encoder raises."""
        self._cache.before_commit([sequence_id])
        state = self._cache.encoded(sequence_id) or b""
        self._check_size(len(state))
        return (state,)

    def _parts(self, sequence_id: str) -> list[Buffer]:
        """Return the parts of the state, which may change with it. Raises as `_whole` does."""
        self._cache.before_commit([sequence_id])
        parts = self._cache.encoded_in_parts(sequence_id)
        self._check_size(sum(map(len, parts)))
        return parts

    def _changed(self, sequence_id: str, before: Copy | None) -> tuple[bytes, ...]:
        """Return what the state is made of, behind its length, and what of it was not sent ``before``; as `_parts`."""
        change = changed_since(before or [], self._parts(sequence_id))
        makeup: bytes = msgpack.packb(change.makeup)
        return _LENGTH.pack(len(makeup)) + makeup, *change.rest

    def _check_size(self, size: int) -> None:
        if size > self._most:
            raise _Refused(NO_ROOM, f"it has {size} bytes; no more than {self._most} are handed over")

    def add(self, sequence_id: str, piece: Buffer) -> None:
        """Keep a piece of a sequence that another worker gives."""
        self._arriving.setdefault(sequence_id, []).append(piece)

    def take(self, sequence_id: str, size: int, version: str = "", ahead: int = 0) -> list[Any]:
        """Have a sequence of which all pieces have come; it may come from another ``version``.

        Args:
            size: How many bytes have come behind the pieces of its state that were sent ``ahead``.

        Return an empty list, or why it is not taken, of which nothing is kept then: a reason and a text.
        """
        pieces = self._arriving.pop(sequence_id, [])
        rest = b"".join(pieces[ahead:])
        if len(rest) != size:
            return [MOVE_FAILED, f"{len(rest)} bytes of it have come, not {size}"]
        try:
            self._put(sequence_id, rest, pieces[:ahead], version)
        except _Refused as refused:
            return list(refused.reason)
        except Exception as error:  # a decoder is the handler's code, and memory may run out
            return _refusal("The state of %r cannot be taken over: %s", sequence_id, error)
        return []

    def _put(self, sequence_id: str, encoded: bytes, ahead: list[Buffer], version: str) -> None:
        """Raises _Refused: there is no room; LookupError, ValueError: other pieces have come; what a decoder raises."""
        known, behind = _block(encoded, 0)
        fields, answers, has_state, is_lost = known
        record = None if fields is None else _record_of(fields)
        kept_answers = {number: KeptFields(*kept) for number, kept in answers}
        cache = self._cache
        if has_state:
            value = self._decoded(encoded, behind, ahead)
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

    def _decoded(self, encoded: bytes, start: int, ahead: list[Buffer]) -> Any:
        """Return the state that begins there; see `_put`."""
        if not ahead:
            return self._cache.encoding.decode(encoded[start:])
        makeup, start = _block(encoded, start)
        parts = put_together(makeup, ahead, memoryview(encoded)[start:])
        return self._cache.encoding.decode(b"".join(parts[0]), parts)

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
        self._ahead.pop(sequence_id, None)
        return self._arriving.pop(sequence_id, None) is not None


def _drop(message: list[Any]) -> None:
    """Nobody asks before `Handover.open`."""


class _Refused(Exception):
    """A sequence stays where it is, for a ``reason``."""

    def __init__(self, *reason: str) -> None:
        super().__init__(*reason)
        self.reason = reason


def _refusal(text: str, sequence_id: str, error: Exception) -> list[Any]:
    """Log why a state cannot be handed over, and return it as the server is to have it."""
    logger.warning(text, sequence_id, error)
    return [NOT_ENCODABLE if device_failure(error) is None else MOVE_FAILED, str(error)]


def _block(encoded: bytes, start: int) -> tuple[Any, int]:
    """Return what msgpack has written behind its length, and where it ends."""
    begin = start + _LENGTH.size
    end = begin + _LENGTH.unpack_from(encoded, start)[0]
    return msgpack.unpackb(encoded[begin:end], unicode_errors="surrogatepass"), end


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
