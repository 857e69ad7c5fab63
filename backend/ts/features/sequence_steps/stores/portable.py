"""The file in which sequences are moved between stores: its format, which has a version of its own.

The file begins with a line that names the format. Then come pieces: eight bytes with the length, four with the CRC-32
of what follows, and that many bytes of msgpack. Each piece is a map, one for each sequence, and the last one says how
many there are; so a file that was cut short is noticed. Unknown keys are ignored.
"""

import zlib
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, Final, TypeVar

import msgpack

from ts.features.sequence_steps.record import Damaged, KeptStep
from ts.features.sequence_steps.state_log import LogEntry
from ts.features.sequence_steps.stores.maintenance import StoredSequence
from ts.features.sequence_steps.stores.soundness import check_sound
from ts.features.sequence_steps.stores.store import KeptAnswer

T = TypeVar("T")

_FIRST_LINE: Final = b"torchserve-py sequences 1\n"
_FRAME: Final = 12


def pack_sequence(sequence: StoredSequence) -> bytes:
    """Return a sequence as one map of msgpack."""
    return _pack(
        {
            "model": sequence.model,
            "id": sequence.sequence_id,
            "head": sequence.head,
            "closed": sequence.closed,
            "time_left": sequence.time_left,
            "earlier": sequence.tokens,
            "ids": sequence.ids,
            "state": sequence.state,
            "answers": sequence.answers,
            "log": sequence.log,
        }
    )


def _pack(piece: Any) -> bytes:
    return bytes(msgpack.packb(piece, unicode_errors="surrogatepass"))


def write_sequences(sequences: Iterable[StoredSequence], out: BinaryIO) -> int:
    """Write sequences to a file; return how many. Raises OSError."""
    out.write(_FIRST_LINE)
    count = 0
    for sequence in sequences:
        _write(out, pack_sequence(sequence))
        count += 1
    _write(out, _pack({"count": count}))
    return count


def _write(out: BinaryIO, piece: bytes) -> None:
    out.write(len(piece).to_bytes(8, "big") + zlib.crc32(piece).to_bytes(4, "big"))
    out.write(piece)


def read_sequences(file: BinaryIO) -> Iterator[StoredSequence | Damaged]:
    """Read the sequences of a file, or why one of them cannot be read.

    Raises:
        OSError: The file cannot be read.
        Damaged: It is something else, ends too early, or goes on after its end.
    """
    first = file.readline(len(_FIRST_LINE))
    if first != _FIRST_LINE:
        raise Damaged(f"the file begins with {first!r}, and an export with {_FIRST_LINE!r}")
    count = 0
    while True:
        piece = _read(file)
        if isinstance(piece, dict) and "count" in piece:
            if piece["count"] != count:
                raise Damaged(f"{count} sequences were read, and there should be {piece['count']}")
            if file.read(1):
                raise Damaged("the file goes on after its end; import each export by itself")
            return
        count += 1
        yield piece if isinstance(piece, Damaged) else _sequence(piece)


def _read(file: BinaryIO) -> Any:
    """Return the next piece, or why it cannot be read."""
    frame = file.read(_FRAME)
    size = int.from_bytes(frame[:8], "big")
    piece = file.read(size) if len(frame) == _FRAME and size < 2**40 else b""
    if len(frame) < _FRAME or len(piece) < size:
        raise Damaged("the file ends too early")
    if zlib.crc32(piece).to_bytes(4, "big") != frame[8:]:
        return Damaged("the checksum of a sequence is wrong")
    try:
        return msgpack.unpackb(piece, unicode_errors="surrogatepass")
    except (ValueError, msgpack.UnpackException) as error:
        return Damaged(f"a sequence is unreadable: {error}")


def _sequence(piece: Any) -> StoredSequence | Damaged:
    try:
        sequence = StoredSequence(
            model=_of(str, piece["model"]),
            sequence_id=_of(str, piece["id"]),
            head=_of(bytes, piece["head"]),
            closed=_of(str, piece["closed"]),
            time_left=_of(float, piece["time_left"]),
            tokens=_of(bytes, piece["earlier"]),
            ids=_of(bytes, piece["ids"]),
            state=None if piece["state"] is None else _of(bytes, piece["state"]),
            answers=[KeptAnswer(_step(*step), _of(bytes, answer)) for step, answer in piece["answers"]],
            log=[LogEntry(_of(int, number), _of(bytes, entries)) for number, entries in piece["log"]],
        )
        check_sound(sequence)
    except (KeyError, ValueError, TypeError) as error:
        return Damaged(f"a sequence lacks what it should have: {error!r}")
    except Damaged as damage:
        return damage
    return sequence


def _step(number: Any, request_id: Any, digest: Any) -> KeptStep:
    return KeptStep(_of(int, number), _of(str, request_id), _of(bytes, digest))


def _of(kind: type[T], value: Any) -> T:
    """Return a value of this type. Raises TypeError: it is of another one."""
    if type(value) is not kind:
        raise TypeError(f"{type(value).__name__} instead of {kind.__name__}")
    return value
