"""What msgpack claims to hold is made no sooner than its bytes are there."""

import tracemalloc
from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from ts.apis.openpi.openpi_rows import read_openpi_row
from ts.contracts.truss.encodings import from_msgpack
from ts.jobs.errors import RowFailure
from ts.protocol.backed_msgpack import unpack
from ts.protocol.messages import InferRow
from ts.sequence.encoding import StateEncoding
from ts.sequence.state_error import StateError
from ts.sequences.sqlite.file_pieces import unpack as unpack_piece
from ts.sequences.steps.record import Damaged

SIZE = 60_000
#: A list of a list of …, each of which claims 60,000 items: msgpack makes room for 240 MB.
CLAIMS = (b"\xdd" + SIZE.to_bytes(4, "big")) * (SIZE // 5)
#: The same in a state: the content of a tuple.
STATE = b"\x93" + msgpack.packb(msgpack.ExtType(1, CLAIMS)) + msgpack.packb(b"") * 2


def _observation(body: bytes) -> Any:
    return read_openpi_row(InferRow("job", [], None, body, None, more_input=False))


@pytest.mark.parametrize(
    ("read", "claims", "error"),
    [
        (unpack, CLAIMS, ValueError),
        (unpack_piece, CLAIMS, Damaged),
        (from_msgpack, CLAIMS, ValueError),
        (_observation, CLAIMS, RowFailure),
        (StateEncoding().decode, b"\x93" + CLAIMS, StateError),
        (StateEncoding().decode, STATE, StateError),
    ],
)
def test_claims_without_bytes_are_refused_before_room_is_made(
    read: Callable[[bytes], Any], claims: bytes, error: type[Exception]
):
    tracemalloc.start()
    try:
        with pytest.raises(error):
            read(claims)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 5_000_000


@pytest.mark.parametrize("value", [None, [1] * 2000, {"a": [{"b": b"x" * 5000}]}, ["text"] * 70_000])
def test_what_is_there_is_read(value: Any):
    assert unpack(msgpack.packb(value)) == value
    assert unpack(memoryview(msgpack.packb(value))) == value


@pytest.mark.parametrize("broken", [b"", b"\xc1" * 2000, msgpack.packb([1] * 2000) + b"\x01", b"\x91" * 3000])
def test_other_errors_are_those_of_msgpack(broken: bytes):
    with pytest.raises(Exception) as expected:
        msgpack.unpackb(broken)
    with pytest.raises(type(expected.value)):
        unpack(broken)
