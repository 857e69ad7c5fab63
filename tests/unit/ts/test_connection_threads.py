"""Reading and writing while the handler runs: the same messages, in the same order, and the same end."""

import threading
import time
from typing import Any

import pytest
from tests.unit.ts.frontend_stub import DEADLINE_SECONDS, FrontendStub

from ts.connection_threads import Overlap
from ts.frontend_connection import FrontendGone
from ts.protocol.frames import FrameError

LARGE = 300_000


def results(job_id: str, body: bytes | bytearray) -> Any:
    return [[job_id, False, 200, "", [], body, None]]


def test_messages_keep_their_order_and_cancellations_overtake(frontend: FrontendStub) -> None:
    connection, peer = frontend.connect()
    connection.overlap()
    peer.send("infer", ["1"])
    peer.send("cancel", ["a"])
    peer.send("stop")
    assert connection.receive(wait=True) == ["infer", ["1"]]
    end = time.monotonic() + DEADLINE_SECONDS
    while (message := connection.receive(wait=False)) is None:  # who waits has answered all jobs
        assert time.monotonic() < end
    assert message == ["stop"]
    assert connection.cancelled == {"a"}
    assert connection.receive(wait=False) is None


def test_large_and_small_answers_keep_their_order(frontend: FrontendStub) -> None:
    connection, peer = frontend.connect()
    connection.overlap()
    changing = bytearray(b"b" * LARGE)

    def send() -> None:
        for number in range(5):
            connection.send_results(results(f"large{number}", bytes([number]) * LARGE), 0.1)
            connection.send_results(results(f"changing{number}", changing), 0.1)
            changing[:] = b"c" * LARGE
            connection.send_results(results(f"small{number}", b"s"), 0.1)
            changing[:] = b"b" * LARGE
        connection.flush()

    sender = threading.Thread(target=send)
    sender.start()
    arrived = [peer.receive()[1][0] for _ in range(15)]
    sender.join(DEADLINE_SECONDS)
    assert [each[0] for each in arrived] == [
        f"{kind}{number}" for number in range(5) for kind in ("large", "changing", "small")
    ]
    for number in range(5):
        assert arrived[3 * number][5] == bytes([number]) * LARGE
        assert arrived[3 * number + 1][5] == b"b" * LARGE


def test_answers_do_not_pile_up_behind_a_slow_frontend(frontend: FrontendStub) -> None:
    connection, peer = frontend.connect()
    connection.overlap()
    sent: list[int] = []

    def send() -> None:
        for number in range(10):
            connection.send_results(results(str(number), b"x" * 2_000_000), 0.1)
            sent.append(number)

    sender = threading.Thread(target=send)
    sender.start()
    sender.join(0.5)
    assert len(sent) <= 2, "more than what may wait for the sending thread was accepted"
    assert [peer.receive()[1][0][0] for _ in range(10)] == [str(number) for number in range(10)]
    sender.join(DEADLINE_SECONDS)
    assert sent == list(range(10))


def test_the_end_of_the_frontend_ends_whoever_waits(frontend: FrontendStub) -> None:
    connection, peer = frontend.connect()
    connection.overlap()
    peer.close()
    with pytest.raises(FrontendGone):
        connection.receive(wait=True)
    with pytest.raises(FrontendGone):
        connection.look()


def test_bytes_that_are_no_frame_end_the_connection(frontend: FrontendStub) -> None:
    connection, peer = frontend.connect()
    connection.overlap()
    peer._socket.sendall(b"\x00\x00\x00\x01\xc1")
    with pytest.raises(FrameError):
        connection.receive(wait=True)


def test_threads_pay_for_long_steps_that_move_many_bytes() -> None:
    def after(steps: int, seconds: float, transfer: float) -> bool:
        overlap = Overlap()
        return any(overlap.pays(seconds, transfer) for _ in range(steps))

    assert after(100, 5e-3, 1e-3)
    assert not after(100, 5e-3, 1e-5), "there is nothing to move"
    assert not after(100, 1e-4, 1e-3), "the step is over before the threads have begun"
    assert not after(3, 5e-3, 1e-3), "three steps tell nothing"


@pytest.mark.parametrize(("size", "start"), [(2_000_000, True), (10, False)])
def test_long_steps_with_large_answers_start_the_threads(frontend: FrontendStub, size: int, start: bool) -> None:
    connection, peer = frontend.connect()
    steps, before = 40, set(threading.enumerate())

    def step() -> None:
        time.sleep(0.002)
        connection.send_results(results("1", bytes(size)), 0.002)

    reader = threading.Thread(target=lambda: [peer.receive() for _ in range(steps)])
    reader.start()
    for _ in range(steps):
        connection.run_step(step)
    connection.flush()
    reader.join(DEADLINE_SECONDS)
    assert len(set(threading.enumerate()) - before) == (2 if start else 0)
