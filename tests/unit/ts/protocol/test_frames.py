"""Frames survive any cut of the byte stream, and garbage is refused with a clear error."""

import struct
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ts.protocol.frames import LARGE_BODY, FrameBuffer, FrameError, check_values, encode
from ts.protocol.messages import RESULTS, InferRow, ResultRow, encode_infer, encode_results


def feed(buffer: FrameBuffer, data: bytes, piece: int) -> list[list[object]]:
    messages: list[list[object]] = []
    while data:
        room = buffer.writable()
        count = min(len(room), piece, len(data))
        room[:count] = data[:count]
        buffer.received(count)
        data = data[count:]
        messages.extend(buffer.messages())
    return messages


@given(
    bodies=st.lists(st.binary(max_size=200), max_size=8),
    large=st.integers(0, 3),
    piece=st.integers(1, 300_000),
)
def test_messages_come_out_as_they_went_in_however_the_stream_is_cut(
    bodies: list[bytes], large: int, piece: int
) -> None:
    bodies += [bytes([i]) * (LARGE_BODY + 50_000 * i) for i in range(large)]
    rows = [ResultRow(f"job-{i}", False, 200, "", [["a", "b"]], body, None) for i, body in enumerate(bodies)]
    stream = b"".join(encode_results(rows, 0.5)) + b"".join(encode(["pong", 7]))

    messages = feed(FrameBuffer(), stream, max(piece, len(stream) // 200))

    assert messages == [[RESULTS, [list(row) for row in rows], 0.5], ["pong", 7]]


def test_a_large_body_is_passed_on_without_a_copy() -> None:
    body = bytes(LARGE_BODY)

    buffers = encode_infer([InferRow("job", ((b"accept", b"*/*"),), "text/plain", body, None, False)])

    assert any(buffer is body for buffer in buffers)


def test_memory_of_a_large_frame_is_given_back() -> None:
    buffer = FrameBuffer()
    feed(buffer, b"".join(encode(["infer", bytes(5_000_000)], large=True)), 1_000_000)

    assert len(buffer.writable()) < 1_000_000


def test_a_frame_over_the_limit_is_refused_before_it_is_received() -> None:
    with pytest.raises(FrameError, match="2000 bytes is over the limit of 1000 bytes"):
        feed(FrameBuffer(max_frame=1000), struct.pack(">I", 2000), 4)


@pytest.mark.parametrize("payload", [b"\xc1", b"\x01", b"\x90", b"\x91\x01", b"\x93\xa1a", b"", b"\x91" * 5000])
def test_a_frame_that_holds_no_message_is_refused(payload: bytes) -> None:
    with pytest.raises(FrameError):
        feed(FrameBuffer(), struct.pack(">I", len(payload)) + payload, 100_000)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(max_size=70_000),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(), inner, max_size=20),
)


def count(value: Any) -> int:
    if isinstance(value, list):
        return 1 + sum(map(count, value))
    return 1 + sum(1 + count(each) for each in value.values()) if isinstance(value, dict) else 1


@given(VALUES)
def test_values_are_counted_before_they_are_built(value: Any) -> None:
    payload, values = memoryview(msgpack.packb(value)), count(value)
    check_values(payload, values)
    if values > 1:
        with pytest.raises(FrameError, match=f"more than {values - 1} values"):
            check_values(payload, values - 1)


@given(st.binary(max_size=300))
def test_counting_takes_any_bytes(payload: bytes) -> None:
    check_values(memoryview(payload), 1000)


@pytest.mark.parametrize(
    "payload",
    [b"\xdd\xff\xff\xff\xff", b"\x92" * 500, b"\xde\xff\xff" + b"\xa1a\x01" * 0xFFFF, (b"\x9f" + b"\x90" * 15) * 100],
    ids=["a length alone", "lists in lists", "a key again and again", "empty lists"],
)
def test_what_only_claims_or_repeats_items_is_refused(payload: bytes) -> None:
    buffer = FrameBuffer()
    buffer.limit(10_000_000, 1000)
    padding = msgpack.packb(bytes(100_000))
    with pytest.raises(FrameError):
        feed(buffer, b"".join([struct.pack(">I", len(payload) + len(padding) + 1), b"\x92", padding, payload]), 300_000)


def test_a_large_frame_of_many_values_is_refused_and_one_with_a_large_body_is_not() -> None:
    buffer = FrameBuffer()
    buffer.limit(10_000_000, 1000)
    body = bytes(1_000_000)
    assert feed(buffer, b"".join(encode(["one", body], large=True)), 300_000) == [["one", body]]
    for many in (range(100_000), [[0] * 900] * 200):
        buffer = FrameBuffer()
        buffer.limit(10_000_000, 1000)
        with pytest.raises(FrameError, match="more than 1000 values"):
            feed(buffer, b"".join(encode(["two", *many])), 300_000)


def test_lists_that_are_begun_within_each_other_count_before_one_of_them_is_complete() -> None:
    buffer = FrameBuffer()
    buffer.limit(10_000_000, 1000)
    payload = b"\x92\xa3two" + (b"\xdc" + struct.pack(">H", 1000) + b"\x90" * 999) * 100
    with pytest.raises(FrameError, match="more than 1000 values"):
        feed(buffer, struct.pack(">I", len(payload)) + payload, 300_000)


def test_large_bodies_are_received_into_memory_of_their_own() -> None:
    first, second = bytes(range(256)) * 1000, b"z" * LARGE_BODY
    stream = b"".join(encode(["infer", first, b"small", second], large=True))
    buffer = FrameBuffer()
    room = buffer.writable()
    room[:100] = stream[:100]
    buffer.received(100)
    assert list(buffer.messages()) == []

    rest = memoryview(stream)[100:]
    assert len(buffer.writable()) == len(first) - (100 - (len(stream) - len(first) - len(second)))
    (message,) = feed(buffer, bytes(rest), 10_000_000)

    assert message == ["infer", first, b"small", second]
    assert [type(each) for each in message[1:]] == [bytearray, bytes, bytearray]
    message[1] += b"the receiver owns it"  # type: ignore[operator]


def test_bodies_over_the_limit_are_refused_before_there_is_memory_for_them() -> None:
    buffer = FrameBuffer(max_frame=50_000)
    header = encode(["infer", bytes(30_000), bytes(30_000)], large=True)[0]
    with pytest.raises(FrameError, match=r"a body of 30000 bytes, of which the frame may hold only 199.. more"):
        feed(buffer, bytes(header), 1000)


@pytest.mark.parametrize("value", [msgpack.ExtType(2, bytes(4)), msgpack.ExtType(1, b"abc")])
def test_other_extension_values_are_refused(value: object) -> None:
    payload = msgpack.packb(["infer", value])
    with pytest.raises(FrameError):
        feed(FrameBuffer(), struct.pack(">I", len(payload)) + payload, 100_000)
