"""Files with sequences that strangers have made: what is wrong is named, and no more is read or made than is there.

Ten thousand files in each run; TS_HOSTILE_IMPORTS has another number.
"""

import io
import math
import os
import random
import tracemalloc
import zlib
from types import SimpleNamespace
from typing import Any, BinaryIO, Final, cast

import msgpack
import pytest
from tests.sequences.steps.test_portable import SOUND

from torchserve_py.endpoints.sequences import MAX_ID_LENGTH, MAX_TOKEN_LENGTH
from ts.sequences.steps.record import Damaged, RecordHead, SequenceRecord, digest_of, seal, unpack_head
from ts.sequences.steps.step import Step, answer_of
from ts.sequences.steps.stores import soundness
from ts.sequences.steps.stores.maintenance import StoredSequence
from ts.sequences.steps.stores.portable import pack_sequence, read_sequences

IMPORTS: Final = int(os.environ.get("TS_HOSTILE_IMPORTS", "10000"))
FIRST_LINE: Final = b"torchserve-py sequences 1\n"
HEAD: Final = unpack_head(SOUND.head)
VALUES: Final = (
    *(None, True, 0, -1, 1.5, math.inf, -math.inf, math.nan, 2**63, -(2**63), "", "x", "a\r\nb", "\0", "t" * 1_000_000),
    *([], {}, [[]], [[1, 2]], {"a": 1}, b"", b"x", b"8 bytes!", b"x" * 100_000, "\x1b[2J", msgpack.ExtType(5, b"x")),
    *(msgpack.Timestamp(1), [[[1, "r", b""], b"a"]], [[1, b"x"]] * 100, "\udc80"),
)


def piece_of(content: bytes, size: int | None = None) -> bytes:
    length = len(content) if size is None else size
    return length.to_bytes(8, "big") + zlib.crc32(content).to_bytes(4, "big") + content


def packed(value: Any) -> bytes:
    return bytes(msgpack.packb(value, unicode_errors="surrogatepass"))


LAST: Final = piece_of(packed({"count": 1}))


def file_of(*pieces: Any, count: Any = 1) -> bytes:
    return FIRST_LINE + b"".join(piece_of(packed(each)) for each in (*pieces, {"count": count}))


def sound_piece(**changes: Any) -> dict[str, Any]:
    return {**msgpack.unpackb(pack_sequence(SOUND)), **changes}


def head_of(**changes: Any) -> bytes:
    return seal(packed([*{**HEAD._asdict(), **changes}.values()]))


def problem_of(file: bytes) -> str:
    """Return why a file with one sequence cannot be imported."""
    try:
        (read,) = read_sequences(io.BytesIO(file))
    except Damaged as damage:
        return str(damage)
    assert isinstance(read, Damaged)
    return str(read)


@pytest.mark.parametrize(
    ("piece", "told"),
    [
        (sound_piece(head=head_of(incarnation=math.inf)), "the head is unreadable: incarnation is a float"),
        (sound_piece(head=head_of(last=math.nan)), "the head is unreadable: last is a float, it must be a int"),
        (sound_piece(head=head_of(last="5")), "last is a str"),
        (sound_piece(head=head_of(last=True)), "last is a bool"),
        (sound_piece(head=head_of(token=7)), "token is a int"),
        (sound_piece(head=seal(packed([1, 2]))), "the head is unreadable"),
        (sound_piece(head=seal(b"\xdd\xff\xff\xff\xff")), "the head is unreadable"),
        (sound_piece(head=head_of(token="a\r\nSet-Cookie: b")), r"its token cannot be 'a\r\nSet-Cookie: b'"),
        (sound_piece(head=head_of(token="\0")), r"its token cannot be '\x00'"),
        (sound_piece(head=head_of(token="t" * 1_000_000)), "(1000000 characters)"),
        (sound_piece(head=head_of(version="1\n2")), r"its version cannot be '1\n2'"),
        (sound_piece(head=head_of(state_version="v" * 1001)), "its version of its state cannot be"),
        (sound_piece(id="s\r\n"), r"its id cannot be 's\r\n'"),
        (sound_piece(id="s" * 1001), "its id cannot be"),
        (sound_piece(model="m\x1b"), r"its model cannot be 'm\x1b'"),
        (sound_piece(answers=[[[5, "r\n", b"8 bytes!"], b"a"]]), r"its request id cannot be 'r\n'"),
        (sound_piece(answers=[[[5, "r", b"8 bytes!"], b"a"]] * 66), "it has 66 answers, and may have 65"),
        (sound_piece(answers=[[[5], b"a"]]), "a list has 1 items instead of 3"),
        (sound_piece(answers=7), "a sequence is unreadable"),
        (sound_piece(log=[[4]]), "a list has 1 items instead of 2"),
        (sound_piece(time_left=math.inf), "inf seconds cannot be left"),
        (sound_piece(state=[1]), "a sequence is unreadable: 1 exceeds max_array_len(0)"),
        (sound_piece(state="text"), "a sequence has what it should not have: state has str instead of bytes"),
        ({"model": "m"}, "a sequence lacks what it should have: id"),
        ([1], "a sequence is unreadable: Unexpected type header on stream"),
        ({**{f"k{number}": 1 for number in range(101)}}, "it has 101 fields, and may have 100"),
    ],
)
def test_what_is_wrong_with_a_sequence_is_named(piece: Any, told: str) -> None:
    assert told in problem_of(file_of(piece))


def test_unknown_fields_are_ignored_whatever_they_hold() -> None:
    (read,) = read_sequences(io.BytesIO(file_of(sound_piece(new={"a": [1, [2]]}, other=msgpack.ExtType(5, b"x")))))
    assert read == SOUND


@pytest.mark.parametrize(
    ("file", "told"),
    [
        (FIRST_LINE, "the file ends too early"),
        (FIRST_LINE + b"\0" * 11, "the file ends too early"),
        (FIRST_LINE + piece_of(b"abc", size=2**39), "a piece of it claims to have 549755813888 bytes"),
        (FIRST_LINE + piece_of(b"abc", size=2**33), "a piece of it has 3 bytes instead of 8589934592"),
        (file_of(sound_piece(), count="many" * 1000), "1 sequences were read, and there should be a number of them"),
        (file_of(sound_piece(), count=2), "1 sequences were read, and there should be 2"),
        (FIRST_LINE + piece_of(b"") + LAST, "a sequence is unreadable: "),
        (
            FIRST_LINE + piece_of(packed(sound_piece()) + b"\xc0") + LAST,
            "goes on after its end",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_named(file: bytes, told: str) -> None:
    assert told in problem_of(file)


@pytest.mark.parametrize(
    "content",
    [
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\x81\xa7answers" + b"\xdd\x00\x40\x00\x00" * 1000,
        b"\x81\xa3log" + b"\xdd\xff\xff\xff\xff" * 1000,
        b"\x81\xa5state" + b"\xdd\x00\x0f\x00\x00" * 1000,
        b"\x81\xa1x" + b"\xdd\x00\x0f\x00\x00" * 500,
        b"\x81\xa5state\xc6\xff\xff\xff\xff",
    ],
    ids=["list", "map", "answers", "log", "state", "unknown", "bytes"],
)
def test_no_more_is_made_than_is_there(content: bytes) -> None:
    file = io.BytesIO(FIRST_LINE + piece_of(content + b"\0" * 1_000_000) + b"\0" * 11)
    tracemalloc.start()
    try:
        assert isinstance(next(iter(read_sequences(file))), Damaged)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


class Claiming(io.RawIOBase):
    """A file that says how much of it is wanted at once."""

    def __init__(self, content: bytes) -> None:
        self._content = io.BytesIO(content)
        self.most = 0

    def readline(self, size: int | None = -1, /) -> bytes:
        return self._content.readline(-1 if size is None else size)

    def read(self, size: int | None = -1, /) -> bytes:
        self.most = max(self.most, -1 if size is None else size)
        return self._content.read(size)


def test_a_file_is_not_asked_for_all_that_a_piece_claims() -> None:
    file = Claiming(FIRST_LINE + piece_of(b"abc", size=2**33))
    with pytest.raises(Damaged, match="3 bytes instead of 8589934592"):
        next(iter(read_sequences(cast(BinaryIO, file))))
    assert file.most <= 1 << 20


def test_the_limits_are_those_of_what_clients_send() -> None:
    assert soundness.MOST_TEXT == MAX_ID_LENGTH
    assert "t" * MAX_TOKEN_LENGTH not in problem_of(file_of(sound_piece(head=head_of(token="t" * 201))))
    longest = "t" * MAX_TOKEN_LENGTH
    piece = sound_piece(head=head_of(token=longest), earlier=digest_of(longest))
    assert isinstance(next(iter(read_sequences(io.BytesIO(file_of(piece))))), StoredSequence)


def hostile(chance: random.Random) -> bytes:
    piece = sound_piece()
    for _ in range(1 + chance.randrange(3)):
        where = chance.randrange(4)
        if where == 0:
            piece["head"] = head_of(**{chance.choice(RecordHead._fields): chance.choice(VALUES)})
        elif where == 1:
            piece.pop(chance.choice([*piece]))
        else:
            piece[chance.choice([*piece, "new"])] = chance.choice(VALUES)
    file = bytearray(file_of(piece, count=chance.choice((1, 1, 1, 2, None, math.inf))))
    kind = chance.random()
    if kind < 0.2:
        del file[chance.randrange(len(file)) :]
    elif kind < 0.4:
        content = bytearray(packed(piece))
        for _ in range(1 + chance.randrange(5)):
            content[chance.randrange(len(content))] = chance.randrange(256)
        file = bytearray(FIRST_LINE + piece_of(bytes(content)) + piece_of(packed({"count": 1})))
    elif kind < 0.5:
        file[chance.randrange(len(file))] ^= 1 << chance.randrange(8)
    return bytes(file)


def test_ten_thousand_hostile_imports_are_refused_or_sound() -> None:
    chance = random.Random(os.environ.get("TS_HOSTILE_SEED", "40"))
    refused = 0
    for _ in range(IMPORTS):
        try:
            found = list(read_sequences(io.BytesIO(hostile(chance))))
        except Damaged as damage:
            found = [damage]
        for each in found:
            if isinstance(each, Damaged):
                refused += 1
                assert 0 < len(str(each)) < 1000
            else:
                soundness.check_sound(each)
                pack_sequence(each)
    assert refused > IMPORTS // 2


@pytest.mark.parametrize(
    "kept",
    [
        *(
            b"",
            b"answer",
            packed([200, "", [], b""]),
            packed(["200", "", [], b"", None]),
            packed([200, None, [], b"", None]),
        ),
        *(
            packed([200, "", {}, b"", None]),
            packed([200, "", [["a"]], b"", None]),
            packed([200, "", [["a", 1]], b"", None]),
        ),
        *(packed([200, "", [1], b"", None]), packed([200, "", [], "text", None]), packed([200, "", [], b"", 5])),
        packed([200, "", [], b"", None])[:2] + b"\xdd\x00\x0f\x00\x00" * 500,
    ],
)
def test_an_imported_answer_that_is_none_does_not_leave_the_worker(kept: bytes) -> None:
    asking = cast(Step, SimpleNamespace(row=SimpleNamespace(job_id="j"), end_header="end", sequence_id="s"))
    record = cast(SequenceRecord, SimpleNamespace(closed="", last=3, token="t"))
    with pytest.raises((ValueError, TypeError, AttributeError, msgpack.UnpackException)):
        answer_of(asking, kept, record)
    sound = packed([200, "OK", [["a", "b"]], b"body", None])
    assert answer_of(asking, sound, record).body == b"body"
