"""The file in which sequences are moved between stores: its format, which has a version of its own.

The file begins with a line that names the format. Then come pieces: eight bytes with the length, four with the CRC-32
of what follows, and that many bytes of msgpack. Each piece is a map, one for each sequence, and the last one says how
many there are; so a file that was cut short is noticed. Unknown keys are ignored.
"""

import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO, Final, TypeVar

import msgpack

from ts.sequences.steps.record import Damaged, KeptStep
from ts.sequences.steps.sequence_limits import MOST_KEPT_ANSWERS
from ts.sequences.steps.state_log import LogEntry
from ts.sequences.steps.stores.maintenance import StoredSequence
from ts.sequences.steps.stores.soundness import check_sound
from ts.sequences.steps.stores.store import KeptAnswer

T = TypeVar("T")

_FIRST_LINE: Final = b"torchserve-py sequences 1\n"
_FRAME: Final = 12
#: The most bytes of a piece, and how many are read at once: a file may claim what it does not have.
_MOST_BYTES: Final = 1 << 34
_CHUNK: Final = 1 << 20
_MOST_KEYS: Final = 100
#: The fields that are one value: the attribute of `StoredSequence` for each, and its type.
_PLAIN: Final[dict[str, tuple[str, type[Any]]]] = {
    "model": ("model", str),
    "id": ("sequence_id", str),
    "head": ("head", bytes),
    "closed": ("closed", str),
    "time_left": ("time_left", float),
    "earlier": ("tokens", bytes),
    "ids": ("ids", bytes),
}
_FIELDS: Final = frozenset((*_PLAIN, "state", "count"))


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
                should = piece["count"] if type(piece["count"]) is int else "a number of them"
                raise Damaged(f"{count} sequences were read, and there should be {should}")
            if file.read(1):
                raise Damaged("the file goes on after its end; import each export by itself")
            return
        count += 1
        yield piece if isinstance(piece, Damaged) else _sequence(piece)


def _read(file: BinaryIO) -> dict[str, Any] | Damaged:
    """Return the next piece, or why it cannot be read. Raises Damaged: what follows cannot be found either."""
    frame = file.read(_FRAME)
    size = int.from_bytes(frame[:8], "big")
    if len(frame) < _FRAME:
        raise Damaged("the file ends too early")
    if size > _MOST_BYTES:
        raise Damaged(f"a piece of it claims to have {size} bytes, and may have {_MOST_BYTES}")
    piece = bytearray()
    while len(piece) < size:
        if not (chunk := file.read(min(_CHUNK, size - len(piece)))):
            raise Damaged(f"the file ends too early: a piece of it has {len(piece)} bytes instead of {size}")
        piece += chunk
    if zlib.crc32(piece).to_bytes(4, "big") != frame[8:]:
        return Damaged("the checksum of a sequence is wrong")
    try:
        return _map(piece)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        return Damaged(f"a sequence is unreadable: {error or type(error).__name__}")


def _map(piece: bytearray) -> dict[str, Any]:
    """Return the map that a piece is: what it claims to hold is made no sooner than it is there."""
    unpacker = msgpack.Unpacker(
        max_buffer_size=len(piece), max_array_len=0, max_map_len=0, max_ext_len=0, unicode_errors="surrogatepass"
    )
    unpacker.feed(piece)
    if (count := unpacker.read_map_header()) > _MOST_KEYS:
        raise ValueError(f"it has {count} fields, and may have {_MOST_KEYS}")
    read: dict[str, Any] = {}
    for _ in range(count):
        name = unpacker.unpack()
        if name == "answers":
            if (length := unpacker.read_array_header()) > MOST_KEPT_ANSWERS + 1:
                raise ValueError(f"it has {length} answers, and may have {MOST_KEPT_ANSWERS + 1}")
            read[name] = [_answer(unpacker) for _ in range(length)]
        elif name == "log":
            read[name] = [tuple(_items(unpacker, 2)) for _ in range(unpacker.read_array_header())]
        elif name in _FIELDS:
            read[name] = unpacker.unpack()
        else:
            unpacker.skip()
    if unpacker.tell() != len(piece):
        raise ValueError("it goes on after its end")
    return read


def _answer(unpacker: Any) -> tuple[Sequence[Any], Any]:
    if unpacker.read_array_header() != 2:
        raise ValueError("an answer is no pair of a step and its answer")
    return _items(unpacker, 3), unpacker.unpack()


def _items(unpacker: Any, count: int) -> Sequence[Any]:
    """Return the items of a list of so many. Raises ValueError: it has another number of them."""
    if (length := unpacker.read_array_header()) != count:
        raise ValueError(f"a list has {length} items instead of {count}")
    return [unpacker.unpack() for _ in range(count)]


def _sequence(piece: dict[str, Any]) -> StoredSequence | Damaged:
    try:
        named = {name: _of(kind, piece[key], key) for key, (name, kind) in _PLAIN.items()}
        state = piece["state"]
        sequence = StoredSequence(
            **named,
            state=None if state is None else _of(bytes, state, "state"),
            answers=[KeptAnswer(_step(*step), _of(bytes, answer, "an answer")) for step, answer in piece["answers"]],
            log=[LogEntry(_of(int, number, "log"), _of(bytes, entries, "log")) for number, entries in piece["log"]],
        )
        check_sound(sequence)
    except KeyError as error:
        return Damaged(f"a sequence lacks what it should have: {error.args[0]}")
    except TypeError as error:
        return Damaged(f"a sequence has what it should not have: {error}")
    except Damaged as damage:
        return damage
    return sequence


def _step(number: Any, request_id: Any, digest: Any) -> KeptStep:
    return KeptStep(_of(int, number, "a step"), _of(str, request_id, "a step"), _of(bytes, digest, "a step"))


def _of(kind: type[T], value: Any, where: str) -> T:
    """Return a value of this type. Raises TypeError: it is of another one."""
    if type(value) is not kind:
        raise TypeError(f"{where} has {type(value).__name__} instead of {kind.__name__}")
    return value
