"""The pieces in which the file store keeps a sequence, as bytes.

Each is sealed by itself and says whose it is, so that what is damaged is noticed, and costs no other sequence anything.
"""

import zlib
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgpack

from ts.protocol import backed_msgpack
from ts.protocol.frames import Buffer
from ts.sequences.steps.record import (
    DIGEST_SIZE,
    Checkpoint,
    Damaged,
    KeptStep,
    SequenceRecord,
    pack_head,
    pack_logged_head,
    seal,
    seal_all,
    unseal,
)

#: How many digests of request ids a chunk has at most: a commit of one more id writes so many at most.
CHUNK: Final = 512
_OWNER_SIZE: Final = 16
#: Makes a named tuple of its fields: on the hot path, since calling its class takes more than twice as long.
_new: Final = tuple.__new__

_pack = msgpack.Packer().pack
_pack_any = msgpack.Packer(unicode_errors="surrogatepass").pack


def pack(piece: Any) -> bytes:
    """Return a piece as bytes; its text may have anything."""
    try:
        packed: bytes = _pack(piece)
    except UnicodeEncodeError:
        packed = _pack_any(piece)
    return packed


def sealed_changes(changes: Iterable[Any]) -> list[bytes]:
    """Return changes as entries of the journal; a change has the fields of a `PieceChange`, and in it of a `Latest`."""
    try:
        return seal_all(map(_pack, changes))
    except UnicodeEncodeError:
        return seal_all(map(_pack_any, changes))


def unpack(packed: Buffer) -> Any:
    """Return what `pack` has packed. Raises Damaged: it is something else."""
    try:
        return backed_msgpack.unpack(packed, unicode_errors="surrogatepass")
    except (ValueError, msgpack.UnpackException) as error:
        raise Damaged(f"it is unreadable: {error or type(error).__name__}") from error


class Latest(NamedTuple):
    """What a commit makes of a sequence's row, instead of what earlier commits made of it."""

    fence: int
    lease_until: float
    expires_at: float
    closed: str
    incarnation: int
    token: str
    version: str
    state_version: str
    last: int
    forgotten_ids: bool
    state: bytes | None
    #: The fields of a `Checkpoint` if the commit has written to the log; None if it has written the state.
    checkpoint: Any = None

    def head(self) -> bytes:
        """Return the sealed head."""
        record = SequenceRecord(
            *(self.incarnation, self.token, self.version, self.state_version, self.last),
            forgotten_ids=self.forgotten_ids,
        )
        if self.checkpoint is None:
            return pack_head(record, self.state)
        return pack_logged_head(record, Checkpoint._make(self.checkpoint))


class PieceChange(NamedTuple):
    """What a commit changes of one sequence, as the journal has it.

    Attributes:
        sequence: The number of the sequence in the file.
        latest: A `Latest`.
        tokens: Those of the record; None if the commit did not change them.
        kept, log: As those of `ts.sequences.steps.stores.store.Commit`.
    """

    sequence: int
    incarnation: int
    latest: Latest
    tokens: bytes | None
    new_ids: bytes
    kept: Any
    log: Any = None


#: How many fields there are; of each the last one is missing where the commit has not written to the log.
_LATEST_FIELDS: Final = len(Latest._fields)
_CHANGE_FIELDS: Final = len(PieceChange._fields)


def read_change(entry: Buffer) -> PieceChange:
    """Return the change in an entry of the journal. Raises Damaged."""
    fields = unpack(unseal(entry))
    try:
        latest = fields[2]
        if len(latest) == _LATEST_FIELDS - 1:
            latest.append(None)
        if len(fields) == _CHANGE_FIELDS - 1:
            fields.append(None)
    except (AttributeError, TypeError, LookupError) as error:
        raise Damaged("it is no entry of a journal") from error
    if len(latest) != _LATEST_FIELDS or len(fields) != _CHANGE_FIELDS:
        raise Damaged("it is no entry of a journal")
    fields[2] = _new(Latest, latest)
    return _new(PieceChange, fields)


class KeptPiece(NamedTuple):
    """What is kept of an applied step, besides the answer.

    Attributes:
        fence: That of the lease with which it was committed; 0 if that was in another file.
        checksum: The CRC-32 of the answer.
    """

    fence: int
    incarnation: int
    step: KeptStep
    checksum: int

    def check(self, answer: Buffer) -> bytes:
        """Return the answer. Raises Damaged: it is another one."""
        if zlib.crc32(answer) != self.checksum:
            raise Damaged(f"the checksum of the kept answer to step {self.step.number} is wrong")
        return bytes(answer)


def pack_kept(sequence: int, fence: int, incarnation: int, step: Any, answer: bytes) -> bytes:
    return seal(pack((sequence, fence, incarnation, step, zlib.crc32(answer))))


def unpack_kept(sealed: Any, sequence: int) -> KeptPiece:
    """Return what is kept of a step of this sequence. Raises Damaged."""
    try:
        owner, fence, incarnation, step, checksum = unpack(_unsealed(sealed))
        if owner == sequence:
            return KeptPiece(fence, incarnation, KeptStep._make(step), checksum)
    except (ValueError, TypeError) as error:
        raise Damaged(f"it is unreadable: {error}") from error
    raise Damaged("it belongs to another sequence")


def pack_digests(sequence: int, incarnation: int, digests: bytes) -> bytes:
    return seal(b"%b%b%b" % (sequence.to_bytes(8, "big"), incarnation.to_bytes(8, "big"), digests))


def unpack_digests(sealed: Any, sequence: int) -> tuple[int, bytes]:
    """Return an incarnation of this sequence, and digests. Raises Damaged."""
    payload = _unsealed(sealed)
    if len(payload) < _OWNER_SIZE or len(payload) % DIGEST_SIZE:
        raise Damaged("its length is wrong")
    if int.from_bytes(payload[:8], "big") != sequence:
        raise Damaged("it belongs to another sequence")
    return int.from_bytes(payload[8:_OWNER_SIZE], "big"), bytes(payload[_OWNER_SIZE:])


def checked_bytes(found: Any) -> bytes:
    """Return what is in a column, which has bytes. Raises Damaged."""
    if type(found) is not bytes:
        raise Damaged("there is something else than bytes")
    return found


def _unsealed(found: Any) -> memoryview:
    return unseal(checked_bytes(found))
