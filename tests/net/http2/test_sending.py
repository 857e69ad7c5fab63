"""Flow control against a model: no window is ever overrun, and all is sent when there is room."""

import asyncio
import struct
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.net.http2.conformance import block
from tests.net.http2.in_memory import InMemory
from tests.net.http2.raw_client import frame, headers_for

from torchserve_py.net.http2 import frames
from torchserve_py.net.http2.frames import ErrorCode

STREAMS = st.sampled_from([1, 3, 5, 7])
STEP = st.one_of(
    st.tuples(st.just("settings"), st.sampled_from([0, 1, 100, 5_000, 65_535, 200_000]), st.just(0)),
    st.tuples(st.just("window"), STREAMS, st.sampled_from([1, 50, 4_000, 100_000])),
    st.tuples(st.just("connection"), st.just(0), st.sampled_from([1, 50, 4_000, 100_000])),
    st.tuples(st.just("reset"), STREAMS, st.just(0)),
    st.tuples(st.just("turn"), st.just(0), st.just(0)),
)


class Model:
    """What the client knows of its windows, and has received."""

    def __init__(self, server: InMemory) -> None:
        self.server = server
        self.initial = self.connection = frames.DEFAULT_WINDOW
        self.credit: Counter[int] = Counter()
        self.received: Counter[int] = Counter()
        self.ended: set[int] = set()
        self.reset: set[int] = set()

    def take(self) -> None:
        for kind, flags, stream_id, payload in self.server.transport.frames():
            assert kind != frames.GOAWAY, payload
            if kind == frames.DATA:
                self.connection -= len(payload)
                self.credit[stream_id] -= len(payload)
                self.received[stream_id] += len(payload)
                assert payload
                assert self.connection >= 0
                assert self.initial + self.credit[stream_id] >= 0
                assert stream_id not in self.ended
            elif kind == frames.HEADERS and flags & frames.END_STREAM:
                self.ended.add(stream_id)

    def widen(self, increment: int) -> None:
        self.connection += increment
        self.server.send(frames.window_update(0, increment))

    def widen_stream(self, stream_id: int, increment: int) -> None:
        if stream_id not in self.ended | self.reset:
            self.credit[stream_id] += increment
            self.server.send(frames.window_update(stream_id, increment))

    def resize(self, size: int) -> None:
        self.initial = size
        self.server.send(frames.settings({frames.INITIAL_WINDOW_SIZE: size}))

    async def do(self, step: tuple[str, int, int]) -> None:
        what, where, size = step
        if what == "settings":
            self.resize(where)
        elif what == "window":
            self.widen_stream(where, size)
        elif what == "connection":
            self.widen(size)
        elif what == "reset" and where not in self.ended:
            self.reset.add(where)
            self.server.send(frames.rst_stream(where, ErrorCode.CANCEL))
        else:
            await asyncio.sleep(0)
        self.take()


async def play(sizes: list[int], steps: list[tuple[str, int, int]], first_window: int) -> None:
    """Calls whose answers have these sizes; with that the client does these steps, and opens all windows then."""
    server = InMemory(unread=1 << 30)
    client = Model(server)
    client.resize(first_window)
    for number, size in enumerate(sizes):
        fields = headers_for("Many" if number % 2 else "Echo")
        server.send(frame(frames.HEADERS, frames.END_HEADERS, 1 + 2 * number, block(*fields)))
        message = struct.pack(">BI", 0, size) + bytes(size)
        server.send(frame(frames.DATA, frames.END_STREAM, 1 + 2 * number, message))
    for step in steps:
        await client.do(step)
    for _ in range(3):
        client.widen(100_000_000)
        client.resize(50_000_000)
        await server.settle()
        client.take()
    for number, size in enumerate(sizes):
        stream_id, messages = 1 + 2 * number, 30 if number % 2 else 1
        if stream_id not in client.reset:
            assert stream_id in client.ended
            assert client.received[stream_id] == messages * (5 + size)
    await server.end()


@settings(max_examples=examples(150))
@given(
    sizes=st.lists(st.sampled_from([0, 1, 90, 5_000, 40_000]), min_size=4, max_size=4),
    steps=st.lists(STEP, max_size=40),
    first_window=st.sampled_from([0, 1, 65_535]),
)
def test_windows_hold_and_everything_arrives(
    sizes: list[int], steps: list[tuple[str, int, int]], first_window: int
) -> None:
    asyncio.run(play(sizes, steps, first_window))
