"""The worker's end of a connection: partial writes, cancellations that overtake, and the end."""

from collections.abc import Sequence
from typing import Any

import pytest
from tests.unit.ts.frontend_stub import FrontendStub

from ts.connection.frontend_connection import FrontendGone
from ts.protocol.frames import FrameBuffer
from ts.protocol.messages import ResultRow


class StingySocket:
    """Takes few bytes at a time, as a kernel may."""

    def __init__(self, most: int) -> None:
        self.received = bytearray()
        self._most = most

    def sendmsg(self, buffers: Sequence[memoryview]) -> int:
        assert 0 < len(buffers) <= 1024
        taken = b"".join(buffers)[: self._most]
        self.received += taken
        return len(taken)


@pytest.mark.parametrize("most", [7_001, 20_000, 10**9])
def test_a_frame_of_many_buffers_arrives_whole_however_little_each_write_takes(
    frontend: FrontendStub, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    connection, _ = frontend.connect()
    stingy = StingySocket(most)
    monkeypatch.setattr(connection, "_socket", stingy)
    rows: Any = [ResultRow(str(index), False, 200, "", [], bytes([index]) * 20_000) for index in range(5)]

    connection.send_results(rows, 0.5, [["Calls", "Count", "counter", 1.0, [], "0"]])

    frames = FrameBuffer()
    messages: list[list[Any]] = []
    received = memoryview(stingy.received)
    while received:
        room = frames.writable()
        count = min(len(room), len(received))
        room[:count] = received[:count]
        frames.received(count)
        received = received[count:]
        messages.extend(frames.messages())
    assert messages == [
        ["metrics", [["Calls", "Count", "counter", 1.0, [], "0"]]],
        ["results", [[*row] for row in rows], 0.5],
    ]


def test_cancellations_overtake_and_other_messages_wait_their_turn(frontend: FrontendStub) -> None:
    connection, peer = frontend.connect()
    peer.send("infer", [])
    peer.send("cancel", ["a", "b"])
    peer.send("stop")

    assert connection.receive(wait=True) == ["infer", []]
    assert connection.cancelled == {"a", "b"}
    assert connection.receive(wait=False) == ["stop"]
    assert connection.receive(wait=False) is None


def test_cancellations_of_jobs_that_are_long_answered_do_not_pile_up(frontend: FrontendStub) -> None:
    connection, peer = frontend.connect()
    peer.send("cancel", ["late"])
    peer.send("infer", [])
    connection.receive(wait=True)
    peer.send("infer", [])
    connection.receive(wait=True)

    assert connection.cancelled == set()


def test_a_closed_connection_ends_the_process_even_under_except_exception(frontend: FrontendStub) -> None:
    connection, peer = frontend.connect()
    peer.close()

    with pytest.raises(FrontendGone) as raised:
        connection.receive(wait=False)
    with pytest.raises(FrontendGone):
        for _ in range(100):
            connection.send(["pong", 1])

    assert not isinstance(raised.value, Exception)
    assert raised.value.code == 0
