"""Reading and writing while the handler runs: the same messages, in the same order, and the same end."""

import threading
import time
from typing import Any

import pytest
from tests.unit.ts.frontend_stub import DEADLINE_SECONDS, FrontendStub

from ts.connection.connection_threads import Overlap
from ts.connection.frontend_connection import FrontendGone
from ts.protocol.frames import FrameError
from ts.protocol.messages import ResultRow

LARGE = 300_000


def results(job_id: str, body: bytes | bytearray) -> Any:
    return [ResultRow(job_id, False, 200, "", [], body)]


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


def test_messages_keep_their_order_while_threads_come_and_go(frontend: FrontendStub) -> None:
    connection, peer = frontend.connect()
    count, body = 60, bytes(LARGE)

    def send() -> None:
        for number in range(count):
            peer.send("infer", [number, body[: LARGE if number % 3 else 1]])

    sender = threading.Thread(target=send)
    sender.start()
    for number in range(count):
        assert connection.receive(wait=True) == ["infer", [number, body[: LARGE if number % 3 else 1]]]
        if number % 2:
            connection.end_overlap()
        else:
            connection.overlap()
    sender.join(DEADLINE_SECONDS)

    def answer() -> None:
        for number in range(count):
            connection.send_results(results(str(number), body[: LARGE if number % 3 else 1]), 0.1)
            if number % 2:
                connection.end_overlap()
            else:
                connection.overlap()
        connection.flush()

    sender = threading.Thread(target=answer)
    sender.start()
    arrived = [peer.receive()[1][0] for _ in range(count)]
    sender.join(DEADLINE_SECONDS)
    assert [(each[0], len(each[5])) for each in arrived] == [
        (str(number), LARGE if number % 3 else 1) for number in range(count)
    ]


class Steps:
    """Steps of a handler, on a clock of their own.

    Args:
        run: How long a step takes (seconds).
        wait: How long a step waits for the connection without the threads.
        wait_with_threads: The same with them.
    """

    def __init__(self, run: float = 5e-3, wait: float = 2e-3, wait_with_threads: float = 0.1e-3) -> None:
        self.run, self.wait, self.wait_with_threads = run, wait, wait_with_threads
        self.overlap = Overlap()
        self._now = 0.0

    def go(self, count: int, *, written: float = 0.0, is_followed: bool = True) -> list[bool]:
        """Run so many steps; return for each whether it had the threads."""
        had = []
        for _ in range(count):
            had.append(self.overlap.pays)
            self._now += self.wait_with_threads if self.overlap.pays else self.wait
            began = self._now
            self._now += self.run + written
            self.overlap.ran(began, self._now, written, is_followed=is_followed)
        return had


def test_threads_pay_where_steps_wait_for_what_has_arrived() -> None:
    had = Steps().go(10_000)
    assert not any(had[:10]), "few steps tell nothing"
    assert all(had[40:1000])
    assert sum(had) > 9_500


def test_threads_pay_where_answers_take_long_to_write() -> None:
    assert sum(Steps(wait=0.01e-3, wait_with_threads=0.01e-3).go(100, written=1e-3)) > 0


def test_threads_are_not_tried_where_they_cannot_help() -> None:
    assert not any(Steps(wait=0.05e-3).go(1000)), "the next batch is there at once"
    assert not any(Steps(wait=50e-3).go(1000, is_followed=False)), "the clients have sent nothing"
    assert not any(Steps(run=0.1e-3).go(1000)), "a step is over before a thread has begun"


def test_threads_that_do_not_help_are_tried_ever_more_rarely() -> None:
    had = Steps(wait_with_threads=2e-3).go(20_000)
    assert 0 < sum(had) < 1000
    assert sum(had[10_000:]) < 400


def test_threads_follow_what_changes() -> None:
    steps = Steps()
    steps.go(1000)
    steps.wait, steps.wait_with_threads = 0.02e-3, 0.05e-3  # small messages
    assert not any(steps.go(2000)[1200:])
    steps.wait, steps.wait_with_threads = 2e-3, 0.1e-3  # large ones again
    assert all(steps.go(1000)[100:])
    steps.run = 0.1e-3
    assert not any(steps.go(2000)[1200:])


def test_large_requests_and_small_answers_start_the_threads(frontend: FrontendStub) -> None:
    connection, peer = frontend.connect()
    body, is_over, before = bytes(4_000_000), threading.Event(), set(threading.enumerate())

    def send() -> None:
        while not is_over.is_set():
            peer.send("infer", [body])

    def step() -> None:
        time.sleep(0.002)
        connection.send_results(results("1", b"small"), 0.002)

    sender = threading.Thread(target=send)
    sender.start()
    end = time.monotonic() + DEADLINE_SECONDS
    while not any(
        each.name == "_receive" for each in set(threading.enumerate()) - before
    ):  # to move so many bytes takes long enough on any machine
        assert time.monotonic() < end
        assert connection.receive(wait=True) == ["infer", [body]]
        connection.step_begins()
        step()
        connection.step_ended()
    is_over.set()
    connection.end_overlap()
    while sender.is_alive():
        connection.receive(wait=False)


@pytest.mark.parametrize("size", [10, 2_000_000])
def test_steps_that_nothing_follows_start_no_threads(frontend: FrontendStub, size: int) -> None:
    connection, peer = frontend.connect()
    steps, before = 40, set(threading.enumerate())

    def step() -> None:
        time.sleep(0.002)
        connection.send_results(results("1", bytes(size)), 0.002)

    reader = threading.Thread(target=lambda: [peer.receive() for _ in range(steps)])
    reader.start()
    for _ in range(steps):
        connection.step_begins()
        step()
        connection.step_ended()
    reader.join(DEADLINE_SECONDS)
    assert set(threading.enumerate()) <= before
