"""The record of a sequence: what is remembered of its steps, the same with every store, and its form as bytes.

A sequence id may be used again: each sequence under it, from its first step to its end, is an **incarnation**, which
has a **token** of its own. The steps of an incarnation are numbered from 1. `SequenceRecord.last` is the number of the
last step that was applied, so a number tells for ever whether its step was. A step without a number from its client is
recognized by its request id: the record has a digest of each.

All that a store keeps is sealed with a checksum and the version of its format, piece by piece: what was damaged is
noticed when it is read, and costs no other sequence anything.
"""

import secrets
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import msgpack

from ts.protocol.frames import Buffer
from ts.sequences.steps.sequence_limits import MOST_EARLIER_TOKENS

#: The version of the format of what is sealed; the first byte of each piece.
FORMAT: Final = 2
#: Bytes of a digest of a request id, a token or a body.
DIGEST_SIZE: Final = 8
#: The beginning of the tokens that servers make up: a step with one continues what it names, and never begins anything.
_MADE_BY_SERVER: Final = "server-"
_SEAL_SIZE: Final = 5
#: How many digests of clients' request ids are remembered: more than a batch has.
_DIGESTS: Final = 1024

_seal = struct.Struct(">BI").pack
_unseal = struct.Struct(">BI").unpack_from
_pack = msgpack.Packer().pack


class Damaged(Exception):
    """What a store has of a sequence cannot be read. The message says what is wrong with it."""


class KeptStep(NamedTuple):
    """An applied step whose answer is kept."""

    number: int
    request_id: str
    digest: bytes  # of the request, see `request_digest`; of its values only if the client had not named it


class Checkpoint(NamedTuple):
    """How a store has the state of a sequence after its last step: as the state after an earlier one, and a log.

    Attributes:
        step: The number of the step after which the stored state was; -1 if there is no state.
        checksum: The CRC-32 of the stored state, which may be too large to be copied into a seal.
        log_from: The number of the first step whose entries in the log are needed to get from the stored state to
            that after the last step; 0 if none are.
    """

    step: int = -1
    checksum: int = 0
    log_from: int = 0


NO_STATE: Final = Checkpoint()


@dataclass(slots=True, eq=False)
class SequenceRecord:
    """The latest incarnation of a sequence.

    Attributes:
        incarnation: Its number; 0 if nothing was ever applied under the sequence's id.
        token: What names the incarnation, to clients as well; "" of one that began before there were tokens, until a
            step that names one is applied.
        version, state_version: The version of the model that began it, and the version of its states, if it has one.
        last: The number of the last step that was applied.
        closed: Why the incarnation is over, "" if it is not.
        ids: The digests of the request ids of its steps whose clients sent no number, in order.
        forgotten_ids: Whether the oldest of them were forgotten.
        kept: The steps whose answers are kept, by number.
        earlier: The digests of the tokens of earlier incarnations, in order.
        checkpoint: What the store has of its state.
    """

    incarnation: int = 0
    token: str = ""
    version: str = ""
    state_version: str = ""
    last: int = 0
    closed: str = ""
    ids: bytearray | None = None
    forgotten_ids: bool = False
    kept: dict[int, KeptStep] | None = None
    earlier: bytes = b""
    checkpoint: Checkpoint = NO_STATE

    @property
    def has_begun(self) -> bool:
        """Whether a step of the incarnation was applied."""
        return self.last > 0

    @property
    def tokens(self) -> bytes:
        """The digests of the tokens of all incarnations, in order, for a store: it can tell them without a head."""
        return self.earlier + digest_of(self.token)

    def begin(self, token: str, version: str, state_version: str) -> None:
        """Make this the record of the next incarnation, which has no step yet."""
        if self.token and self.has_begun:
            self.earlier = self.tokens[-MOST_EARLIER_TOKENS * DIGEST_SIZE :]
        self.incarnation += 1
        self.token, self.version, self.state_version = token, version, state_version
        self.last, self.closed, self.forgotten_ids = 0, "", False
        self.ids = self.kept = None
        self.checkpoint = NO_STATE

    def apply(self, step: KeptStep, most_kept: int, id_digest: bytes = b"") -> None:
        """Record the next step as applied.

        Args:
            most_kept: Of how many of the latest steps the answers are kept, besides the first.
            id_digest: That of the request's id, if the client sent no number.
        """
        self.last = number = step.number
        kept = self.kept
        if kept is None:
            kept = self.kept = {}
        kept[number] = step
        if (old := number - most_kept) > 1:
            kept.pop(old, None)
        if id_digest:
            if self.ids is None:
                self.ids = bytearray()
            self.ids += id_digest

    def forget_ids_beyond(self, most: int) -> int:
        """Forget the oldest ids if there are more than that; return how many."""
        excess = 0 if self.ids is None else len(self.ids) // DIGEST_SIZE - most
        if self.ids is None or excess <= 0:
            return 0
        del self.ids[: excess * DIGEST_SIZE]
        self.forgotten_ids = True
        return excess

    def kept_with(self, request_id: str) -> KeptStep | None:
        """Return the latest step with this request id whose answer is kept."""
        for step in reversed((self.kept or {}).values()):
            if step.request_id == request_id:
                return step
        return None

    def has_id(self, request_id: str) -> bool:
        """Whether a step with this request id, and no number from its client, was applied."""
        return self.ids is not None and _holds(self.ids, digest_of_sent_id(request_id))

    def is_earlier(self, token: str) -> bool:
        """Whether the token is that of an earlier incarnation."""
        return bool(self.earlier) and _holds(self.earlier, digest_of(token))


def _holds(digests: bytes | bytearray, digest: bytes) -> bool:
    place = digests.find(digest)
    while place > 0 and place % DIGEST_SIZE:
        place = digests.find(digest, place + 1)
    return place >= 0


def new_token() -> str:
    """Return a token for an incarnation whose client has made none up."""
    return f"{_MADE_BY_SERVER}{secrets.token_hex(16)}"


def is_made_by_server(token: str) -> bool:
    """Return whether a server has made a token up: its client has got it with an answer of the incarnation."""
    return token.startswith(_MADE_BY_SERVER)


def digest_of(text: str) -> bytes:
    """Return the digest of a request id or a token."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=DIGEST_SIZE).digest()


#: `digest_of` for the id that a client has sent: it is wanted when the step arrives, and again when it is committed.
digest_of_sent_id = lru_cache(_DIGESTS)(digest_of)


def digest_of_body(body: Any) -> bytes:
    """Return the digest of the body of a `ts.protocol.messages.InferRow`."""
    if type(body) is list:  # the order of parameters is insignificant
        body = b"".join(sorted(msgpack.packb(parameter) for parameter in body))
    return blake2b(body, digest_size=DIGEST_SIZE).digest()


def slot_of(number: int, most_kept: int) -> int:
    """Return the slot for the answer to a step: 0 for the first, for others one of ``most_kept`` in turn."""
    return 0 if number == 1 else 1 + (number - 2) % most_kept


# As bytes


def seal(payload: bytes) -> bytes:
    """Return the payload with its format and checksum."""
    return _seal(FORMAT, zlib.crc32(payload)) + payload


def seal_all(payloads: Iterable[bytes]) -> list[bytes]:
    """Return what `seal` makes of each payload."""
    return [_seal(FORMAT, zlib.crc32(payload)) + payload for payload in payloads]


def unseal(sealed: Buffer) -> memoryview:
    """Return the payload of what `seal` has returned. Raises Damaged: it is something else."""
    view = memoryview(sealed)
    if len(view) < _SEAL_SIZE:
        raise Damaged(f"{len(view)} bytes are too few")
    form, checksum = _unseal(view)
    if form != FORMAT:
        raise Damaged(f"the format is {form}, and this server reads {FORMAT}")
    payload = view[_SEAL_SIZE:]
    if zlib.crc32(payload) != checksum:
        raise Damaged("the checksum is wrong")
    return payload


class RecordHead(NamedTuple):
    """The small part of a record, which every commit writes; `pack_head` seals it.

    Attributes:
        checkpoint, state_checksum, log_from: Those of the `Checkpoint`.
    """

    incarnation: int
    token: str
    version: str
    state_version: str
    last: int
    forgotten_ids: bool
    checkpoint: int
    state_checksum: int
    log_from: int


_KINDS_OF_HEAD: Final = (int, str, str, str, int, bool, int, int, int)


def checkpoint_of(state: bytes | None, last: int) -> Checkpoint:
    """Return what a store has of a state that was written whole at the step ``last``."""
    return NO_STATE if state is None else tuple.__new__(Checkpoint, (last, zlib.crc32(state), 0))


def pack_head(record: SequenceRecord, state: bytes | None) -> bytes:
    """Return the sealed head of a record whose state is now ``state``, written whole."""
    return pack_logged_head(record, checkpoint_of(state, record.last))


def pack_logged_head(record: SequenceRecord, checkpoint: Checkpoint) -> bytes:
    """Return the sealed head of a record whose state is the stored one, changed by its log."""
    step, checksum, log_from = checkpoint
    head = (
        record.incarnation,
        record.token,
        record.version,
        record.state_version,
        record.last,
        record.forgotten_ids,
        step,
        checksum,
        log_from,
    )
    payload: bytes = _pack(head)
    return _seal(FORMAT, zlib.crc32(payload)) + payload


def unpack_head(sealed: Buffer) -> RecordHead:
    """Return the head that `pack_head` has sealed. Raises Damaged: it is something else."""
    try:
        head = RecordHead(*msgpack.unpackb(unseal(sealed), max_array_len=len(_KINDS_OF_HEAD), max_map_len=0))
        for name, value, kind in zip(RecordHead._fields, head, _KINDS_OF_HEAD, strict=True):
            if type(value) is not kind:
                raise TypeError(f"{name} is a {type(value).__name__}, it must be a {kind.__name__}")
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise Damaged(f"the head is unreadable: {error or type(error).__name__}") from error
    return head


def record_of(head: RecordHead, closed: str, tokens: bytes, ids: bytes, kept: dict[int, KeptStep]) -> SequenceRecord:
    """Return the record with this head; ``tokens`` are `SequenceRecord.tokens`, or those without the head's own."""
    return SequenceRecord(
        *(head.incarnation, head.token, head.version, head.state_version, head.last, closed),
        *(bytearray(ids) if ids else None, head.forgotten_ids, kept or None),
        earlier=tokens.removesuffix(digest_of(head.token)),
        checkpoint=Checkpoint(head.checkpoint, head.state_checksum, head.log_from),
    )


def headless_record(incarnation: int, last: int) -> SequenceRecord:
    """Return the record of a sequence whose head cannot be read: no step has the token that it gets."""
    return SequenceRecord(incarnation, new_token(), last=last, forgotten_ids=True)


def check_state(head: RecordHead, state: bytes | None) -> None:
    """Raise Damaged if the state is not the one that the head was written with."""
    if state is None:
        if head.checkpoint >= 0:
            raise Damaged("its state is missing")
    elif head.checkpoint < 0 or zlib.crc32(state) != head.state_checksum:
        raise Damaged("the checksum of its state is wrong")
