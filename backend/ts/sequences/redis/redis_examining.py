"""What of a sequence in Redis can be read, piece by piece."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from ts.protocol.messages import ENDED
from ts.sequences.redis.redis_keys import SequenceKey
from ts.sequences.redis.redis_record import (
    ANSWER_FIELDS,
    KEPT_FIELDS,
    NO_ANSWER,
    check_answer,
    check_version,
    reading_of,
    unpack_kept,
)
from ts.sequences.steps.record import (
    DIGEST_SIZE,
    Damaged,
    RecordHead,
    check_state,
    headless_record,
    pack_head,
    pack_logged_head,
    record_of,
    unpack_head,
    unseal,
)
from ts.sequences.steps.state_log import LogEntry, latest_whole, read_log
from ts.sequences.steps.stores.maintenance import StoredSequence
from ts.sequences.steps.stores.store import ENDS_WORKERS, KeptAnswer

#: For how long (seconds) it is remembered that a sequence is over whose end a repair has made.
_REMEMBERED: Final = 86_400.0
#: For how long (seconds) a sequence may be idle whose idle time cannot be read.
_LEFT: Final = 3_600.0
_IDS_LOST: Final = "its request ids are forgotten"
_STEP_LOST: Final = "a kept step is forgotten"
_NUMBERS: Final = ("until", "lease", "lifetime", "expires")

Piece = TypeVar("Piece")


class Found(NamedTuple):
    """What Redis has of a sequence; an exception where a key is of the wrong type.

    Attributes:
        now: Redis's time (seconds).
        left: For how long the hash remains (seconds).
    """

    now: float
    fields: Mapping[bytes, bytes] | Exception
    state: bytes | Exception | None
    ids: bytes | Exception | None
    log: Sequence[bytes] | Exception
    left: float


@dataclass
class Reading:
    """The pieces of a sequence that can be read.

    Attributes:
        problems: What is damaged.
        lost: What of it a server needs to continue the sequence, as sentences that say what a repair makes of it.
    """

    key: SequenceKey
    found: Found
    problems: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    head: RecordHead | None = None
    closed: str = ""
    time_left: float = _LEFT
    tokens: bytes = b""
    ids: bytes = b""
    state: bytes | None = None
    log: Sequence[LogEntry] = ()
    answers: list[KeptAnswer] = field(default_factory=list)
    latest: tuple[int, int] = (1, 0)  # incarnation and number of the latest step of which something is kept

    @property
    def sequence(self) -> StoredSequence:
        """The sequence, of what can be read; it is over if its head or its state cannot be."""
        closed, time_left, state = self.closed, self.time_left, self.state
        if self.head is None:
            incarnation, last = self.latest
            record = headless_record(incarnation, max(last, 1))
        else:
            record = record_of(self.head, closed, self.tokens, self.ids, {})
            record.forgotten_ids = record.forgotten_ids or not {_IDS_LOST, _STEP_LOST}.isdisjoint(self.lost)
        log, head = self.log, self.head
        is_incomplete = head is None or (state is None and head.checkpoint >= 0) or bool(head.log_from and not log)
        if is_incomplete and not closed:
            closed, time_left, state, log = ENDED, _REMEMBERED, None, ()
        return StoredSequence(
            model=self.key.model,
            sequence_id=self.key.sequence_id,
            head=pack_logged_head(record, record.checkpoint) if log else pack_head(record, state),
            closed=closed,
            time_left=time_left,
            tokens=self.tokens,
            ids=self.ids,
            state=state,
            answers=sorted(self.answers),
            log=log,
        )

    def read(self, read: Callable[[Any], Piece], value: Any, instead: Piece, lost: str = "") -> Piece:
        """Return a piece; if it cannot be read, note that, and what is ``lost`` to servers by it."""
        try:
            if isinstance(value, Exception):
                raise Damaged(str(value))
            return read(value)
        except Damaged as damage:
            self.problems.append(str(damage))
        except Exception as error:  # bytes that were never written here may be anything
            self.problems.append(repr(error))
        if lost:
            self.lost.append(lost)
        return instead


def examine(key: SequenceKey, found: Found) -> Reading | None:
    """Read what Redis has of a sequence; None if there is nothing, or it has not begun."""
    reading = Reading(key, found)
    read, fields = reading.read, found.fields
    if isinstance(fields, Exception):
        read(_text, fields, "", "it is over, since it was unreadable")
        return reading
    if b"head" not in fields and not any(name[:1] in b"ka" for name in fields):
        return None
    over = "it is over, since its head was unreadable"
    reading.head = read(unpack_head, fields.get(b"head", b""), None, over)
    reading.closed = read(_text, fields.get(b"closed", b"\xff"), _guessed_end(found), "why it was over was unreadable")
    reading.time_left = found.left if reading.closed else read(_idle_at, fields, found.now + _LEFT) - found.now
    missing = [name for name in ("fence", "owner") if name.encode() not in fields]
    read(
        _nothing_missing,
        [*missing, *(name for name in _NUMBERS if not _is_number(fields, name))],
        None,
        "its lease is dropped",
    )
    if reading.head is not None:
        check = partial(check_version, reading.head, fields.get(b"version"))
        read(check, fields.get(b"states"), None, "its version is that of its head")
    reading.tokens = read(_tokens, fields.get(b"earlier", b""), b"", "the tokens of its sequences are forgotten")
    reading.ids = read(_ids(fields), found.ids, b"", _IDS_LOST)
    _read_kept(reading, fields)
    if reading.head is not None and not reading.closed:
        head = reading.head
        reading.state = read(lambda state: _state(head, state), found.state, None, "it is over without its state")
        log = partial(read_log, head, problems=reading.problems)
        reading.log = read(log, found.log, (), "it is over without its log")
        read(partial(_reading, head), fields.get(b"reading"), None)
        read(partial(_skip, reading.log), fields.get(b"skip", b"0"), None)
    return reading


def _read_kept(reading: Reading, fields: Mapping[bytes, bytes]) -> None:
    head = reading.head
    for slot, (kept_name, answer_name) in enumerate(zip(KEPT_FIELDS, ANSWER_FIELDS, strict=True)):
        sealed, answer = fields.get(kept_name.encode()), fields.get(answer_name.encode())
        if sealed is None:
            continue
        stored = reading.read(partial(unpack_kept, slot), sealed, None, _STEP_LOST)
        if stored is None or (head is not None and stored.incarnation != head.incarnation):
            continue
        reading.latest = max(reading.latest, (stored.incarnation, stored.step.number))
        if head is not None and stored.step.number == head.last:
            reading.ids += stored.recent
        if stored.checksum != NO_ANSWER:
            kept = reading.read(partial(check_answer, stored), answer, None)
            reading.answers += [] if kept is None else [KeptAnswer(stored.step, kept)]
    if head is not None and reading.latest[1] != head.last:
        reading.read(_missing, head.last, None, _STEP_LOST)


def _missing(number: int) -> None:
    raise Damaged(f"what is known of step {number}, the last one, is missing")


def _text(value: bytes) -> str:
    return value.decode()


def _guessed_end(found: Found) -> str:
    return ENDED if found.state is None else ""


def _idle_at(fields: Mapping[bytes, bytes]) -> float:
    until, lease, lifetime, expires = (float(fields[name.encode()]) / 1000 for name in _NUMBERS)
    return expires if until == 0 else until - lease + lifetime


def _is_number(fields: Mapping[bytes, bytes], name: str) -> bool:
    try:
        float(fields[name.encode()])
    except (KeyError, ValueError):
        return False
    return True


def _nothing_missing(names: list[str]) -> None:
    if names:
        raise Damaged(f"fields are missing or no numbers: {', '.join(names)}")


def _tokens(sealed: bytes) -> bytes:
    digests = bytes(unseal(sealed))
    if len(digests) % DIGEST_SIZE:
        raise Damaged("the tokens of the sequences with its id are incomplete")
    return digests


def _ids(fields: Mapping[bytes, bytes]) -> Callable[[bytes | None], bytes]:
    def read(ids: bytes | None) -> bytes:
        if len(ids or b"") != int(fields.get(b"ids", 0)) or len(ids or b"") % DIGEST_SIZE:
            raise Damaged("its request ids are incomplete")
        return ids or b""

    return read


def _reading(head: RecordHead, field: bytes | None) -> None:
    if field is not None and field.decode("ascii", "replace") == reading_of(head):
        raise Damaged(ENDS_WORKERS)


def _skip(log: Sequence[LogEntry], skipped: bytes) -> None:
    latest = latest_whole(log) or 0
    if log and not (skipped.isdigit() and int(skipped) <= latest):
        raise Damaged(
            f"its field skip is {_text(skipped)!r}, and its latest state has {latest} pieces of its log before it"
        )


def _state(head: RecordHead, state: bytes | None) -> bytes | None:
    check_state(head, state)
    return state
