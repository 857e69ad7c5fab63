"""The parts that turn bytes into something, against what others make of the same bytes."""

import asyncio
import struct
import zlib

import h2.config
import h2.connection
import h2.events
import h2.settings
from hpack import Decoder, Encoder
from hypothesis import given
from hypothesis import strategies as st
from tests.net.http2.conftest import Running, limit_of

from torchserve_py.net.decompression import Decompressor
from torchserve_py.net.http2 import header_blocks
from torchserve_py.net.http2.grpc_messages import Compressed, MessageReader, decompressed
from torchserve_py.net.http2.header_decoder import HeaderDecoder
from torchserve_py.net.http2.request_head import RequestHead
from torchserve_py.net.request_budget import RequestBudget

REQUEST = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/a/b"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
]


@given(st.lists(st.binary(max_size=300)), st.lists(st.integers(1, 200), min_size=1))
def test_messages_may_arrive_in_any_pieces(messages: list[bytes], sizes: list[int]) -> None:
    data = b"".join(struct.pack(">BI", 0, len(message)) + message for message in messages)
    reader = MessageReader(limit_of(300), RequestBudget())
    found, number = [], 0
    while data:
        size = sizes[number % len(sizes)]
        found += reader.feed(data[:size])
        data, number = data[size:], number + 1
    assert found == messages
    assert not reader.arrived


NAMES = st.text("abc", min_size=1, max_size=2)
VALUES = st.text("xyz", max_size=30) | st.just("x" * 1500)  # three such fill the table


@given(st.lists(st.lists(st.tuples(NAMES, VALUES), max_size=4), max_size=30), st.data())
def test_header_blocks_mean_the_same_whether_they_were_seen_before_or_not(
    calls: list[list[tuple[str, str]]], data: st.DataObject
) -> None:
    encoder, decoder = Encoder(), HeaderDecoder()
    for metadata in calls:
        if data.draw(st.booleans()):
            encoder.header_table_size = data.draw(st.sampled_from([0, 100, 4096]))
        for _ in range(data.draw(st.integers(1, 3))):
            head = decoder.decode(encoder.encode([*REQUEST, *metadata]))
            assert isinstance(head, RequestHead)
            assert (head.path, list(head.metadata)) == ("/a/b", metadata)


def test_of_header_blocks_that_unpack_to_much_few_are_kept() -> None:
    encoder, decoder = Encoder(), HeaderDecoder()
    large = ("large", "x" * 2000)
    decoder.decode(encoder.encode([*REQUEST, large]))
    blocks = [encoder.encode([*REQUEST, *[large] * number]) for number in range(1, 20)]
    heads = [decoder.decode(block) for block in blocks]
    assert 1 < sum(decoder.decode(block) is head for block, head in zip(blocks, heads, strict=True)) < 10


async def test_messages_are_decompressed_one_at_a_time() -> None:
    limit = limit_of(1 << 20)
    reader, decompressor = MessageReader(limit, RequestBudget()), Decompressor()
    bomb = zlib.compress(bytes(1 << 20))
    messages = reader.feed((struct.pack(">BI", 1, len(bomb)) + bomb) * 100)
    assert sum(map(len, messages)) == 100 * len(bomb)
    for message in messages:
        assert isinstance(message, Compressed)
        assert await decompressed(decompressor, message, "deflate", limit, reader) == bytes(1 << 20)


@given(st.text(max_size=20), st.lists(st.tuples(NAMES, VALUES)), st.binary(max_size=300))
def test_trailers_are_what_a_decoder_reads(message: str, metadata: list[tuple[str, str]], value: bytes) -> None:
    block = header_blocks.trailers(5, message, (*metadata, ("raw-bin", value)))
    status, *rest = Decoder().decode(block)
    assert status == ("grpc-status", "5")
    assert rest[bool(message) : -1] == metadata


async def test_a_client_with_small_windows_and_frames(running: Running) -> None:
    """h2 checks that no window is overrun, and gives room byte by byte."""
    client = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
    client.local_settings = h2.settings.Settings(
        initial_values={h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 10, h2.settings.SettingCodes.ENABLE_PUSH: 0}
    )
    client.initiate_connection()
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    headers = [(":method", "POST"), (":scheme", "http"), (":path", "/test.Service/Count"), (":authority", "x")]
    headers += [("content-type", "application/grpc"), ("te", "trailers")]
    client.send_headers(1, headers)
    client.send_data(1, struct.pack(">BI", 0, 6) + b"50 100", end_stream=True)
    received, trailers = b"", []
    while not trailers:
        writer.write(client.data_to_send())
        for event in client.receive_data(await reader.read(65_536)):
            if isinstance(event, h2.events.DataReceived):
                received += event.data
                client.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.TrailersReceived):
                trailers = list(event.headers)
    assert received == (struct.pack(">BI", 0, 100) + b"x" * 100) * 50
    assert trailers == [("grpc-status", "0")]
    writer.close()
