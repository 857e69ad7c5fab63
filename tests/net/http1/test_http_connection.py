"""One connection: what it answers to what arrives, however that is split."""

import asyncio
import socket
import time
import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.net.http1.engine import LIMITS, MAX_BODY, FakeTransport, Talk, chunked, pieces, request

from torchserve_py.net import turns
from torchserve_py.net.http1 import http_connection
from torchserve_py.net.http1.http_connection import HttpConnection

OLD = b"POST /echo HTTP/1.0\r\nContent-Length: 3\r\n\r\nold"
LAST = request("/echo", b"last", "Connection: close")

#: What arrives, and what is answered: status, Connection, body; whether the connection is over then.
CONVERSATIONS: dict[str, tuple[bytes, list[tuple[int, str, bytes]], bool]] = {
    "body": (request("/echo", b"hello"), [(200, "keep-alive", b"hello")], False),
    "no-body": (request("/echo", method="GET"), [(200, "keep-alive", b"")], False),
    "pipelined": (
        request("/echo", b"1") + request("/echo", b"22") + chunked(b"3", b"33") + request("/early", b"4"),
        [(200, "keep-alive", body) for body in (b"1", b"22", b"333", b"early")],
        False,
    ),
    "chunks": (chunked(b"abc", b"defg"), [(200, "keep-alive", b"abcdefg")], False),
    "chunk-extension-and-trailer": (
        chunked(end=b"3;a=b\r\nabc\r\n0\r\nX: y\r\n\r\n") + request("/echo", b"next"),
        [(200, "keep-alive", b"abc"), (200, "keep-alive", b"next")],
        False,
    ),
    "empty-lines-between": (
        request("/echo", b"1") + b"\r\n\r\n" + request("/echo", b"2"),
        [(200, "keep-alive", b"1"), (200, "keep-alive", b"2")],
        False,
    ),
    "last": (LAST + request("/echo", b"x"), [(200, "close", b"last")], True),
    "old": (OLD, [(200, "close", b"old")], True),
    "old-and-kept": (
        OLD.replace(b"\r\n\r\n", b"\r\nConnection: keep-alive\r\n\r\n") + OLD,
        [(200, "keep-alive", b"old"), (200, "close", b"old")],
        True,
    ),
    "early-answer": (
        request("/early", b"a body that nobody asks for") + request("/echo", b"next"),
        [(200, "keep-alive", b"early"), (200, "keep-alive", b"next")],
        False,
    ),
    "stream": (
        request("/stream") + request("/echo", b"next"),
        [(200, "keep-alive", b"3\r\none\r\n3\r\ntwo\r\n5\r\nthree\r\n0\r\n\r\n"), (200, "keep-alive", b"next")],
        False,
    ),
    "head": (
        request("/echo", b"abc", method="HEAD")[:-3].replace(b"Content-Length: 3", b"X: y"),
        [(200, "keep-alive", b"")],
        False,
    ),
    "nonsense": (b"nonsense\r\n\r\n", [(400, "close", b"Invalid method encountered")], True),
    "nonsense-behind": (
        request("/echo", b"1") + b"nonsense\r\n\r\n",
        [(200, "keep-alive", b"1"), (400, "close", b"Invalid method encountered")],
        True,
    ),
    "malformed-chunk": (chunked(b"abc", end=b"zzz\r\n"), [(400, "close", b"Invalid character in chunk size")], True),
    "malformed-chunk-behind-a-whole-request": (
        request("/echo", b"1") + chunked(b"abc", end=b"zzz\r\n"),
        [(200, "keep-alive", b"1"), (400, "close", b"Invalid character in chunk size")],
        True,
    ),
    "too-large": (
        request("/echo", b"")[:-2].replace(b"Length: 0", b"Length: 100001") + b"\r\n",
        [(413, "close", b"The request body is larger than 100000 bytes.")],
        True,
    ),
    "ignored-upgrade-with-body": (
        request("/echo", b"body", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c") + request("/echo", b"next"),
        [(200, "keep-alive", b"body"), (200, "keep-alive", b"next")],
        False,
    ),
    "ignored-upgrade-in-chunks": (
        chunked(b"body").replace(b"Host", b"Connection: upgrade\r\nUpgrade: h2c\r\nHost") + request("/echo", b"next"),
        [(200, "keep-alive", b"body"), (200, "keep-alive", b"next")],
        False,
    ),
    "refused-websocket": (
        request("/early", b"", "Connection: upgrade", "Upgrade: websocket", method="GET") + request("/echo", b"next"),
        [(200, "keep-alive", b"early"), (200, "keep-alive", b"next")],
        False,
    ),
}


async def said(*arriving: bytes) -> tuple[list[tuple[int, str, bytes]], bool]:
    talk = Talk()
    await talk.send(*arriving)
    return talk.answers, talk.is_over


@pytest.mark.parametrize("name", CONVERSATIONS)
async def test_what_is_answered(name: str) -> None:
    data, answers, is_over = CONVERSATIONS[name]
    if name == "head":
        talk = Talk()
        await talk.send(data)
        assert talk.transport.written.endswith(b"\r\n\r\n")
        return
    assert await said(data) == (answers, is_over)


@pytest.mark.parametrize("name", [name for name in CONVERSATIONS if name != "head"])
async def test_the_same_bytes_split_at_any_position_get_the_same_answers(name: str) -> None:
    data, answers, is_over = CONVERSATIONS[name]
    for position in range(1, len(data)):
        assert await said(data[:position], data[position:]) == (answers, is_over), position
    assert await said(*(data[index : index + 1] for index in range(len(data)))) == (answers, is_over)


@settings(max_examples=examples(150))
@given(
    st.lists(st.sampled_from(sorted(CONVERSATIONS)), min_size=1, max_size=4),
    st.lists(st.integers(1, 2000), max_size=6),
)
def test_conversations_one_after_the_other_split_anywhere(names: list[str], cuts: list[int]) -> None:
    data = b"".join(CONVERSATIONS[name][0] for name in names if name != "head")
    assert asyncio.run(said(*pieces(data, cuts))) == asyncio.run(said(data))


@settings(max_examples=examples(150))
@given(st.integers(0, 30_000), st.lists(st.integers(-6_000, 30_000), max_size=6), st.binary(max_size=1))
def test_a_body_cut_anywhere_arrives_and_the_next_request_is_answered(
    size: int, cuts: list[int], behind: bytes
) -> None:
    """Cuts below 0 count from the end of the body."""
    body, after = bytes(range(250)) * (size // 250), request("/echo", b"next")
    data = request("/echo", body)
    arriving = pieces(data, [cut if cut >= 0 else len(data) + cut for cut in cuts])
    if behind:  # it comes together with the end of the body
        arriving, after = [*arriving[:-1], arriving[-1] + after[:1]], after[1:]
    answers, is_over = asyncio.run(said(*arriving, after))
    assert (answers, is_over) == ([(200, "keep-alive", body), (200, "keep-alive", b"next")], False)


async def test_a_large_body_in_one_read_and_requests_behind_it() -> None:
    body = bytes(range(250)) * 300
    talk = Talk()
    await talk.send(request("/echo", body) + request("/echo", b"x") * 50)
    assert [answer[2] for answer in talk.answers] == [body] + [b"x"] * 50


async def test_one_turn_parses_a_little_of_what_has_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read of 256 KiB may hold 43,000 chunks of one byte, and others are not to wait for all of them."""
    monkeypatch.setattr(turns, "_SLICE", 0.0)
    data = chunked(*(b"x" for _ in range(40_000))) + request("/echo", b"next")
    talk = Talk()
    talk.connection.data_received(data)
    (first,) = talk.application.requests
    assert 0 < first.body_size < 2000
    assert not talk.transport.reading
    await talk.settle()
    assert talk.transport.reading
    assert [answer[2] for answer in talk.answers] == [b"x" * 40_000, b"next"]


async def test_connections_share_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_TURN", 0.0)
    shared, done = turns.Turns(asyncio.get_running_loop()), ""

    def work(name: str, times: int) -> None:
        nonlocal done
        done += name
        if times > 1:
            shared.put_off(lambda: work(name, times - 1))

    shared.put_off(lambda: work("a", 3))
    shared.put_off(lambda: work("b", 2))
    for expected in ("", "a", "ab", "aba", "abab", "ababa"):
        assert done == expected
        await asyncio.sleep(0)


async def test_the_rest_of_a_refused_body_behind_a_request_that_waits_is_dropped() -> None:
    """All of it is here already: nothing more has to arrive for the next request to be answered."""
    talk = Talk()
    await talk.send(request("/wait", method="GET") + request("/early", bytes(20_000)) + request("/echo", b"next"))
    talk.application.answer(talk.application.requests[0], b"done")
    await talk.settle()
    assert [answer[2] for answer in talk.answers] == [b"done", b"early", b"next"]


async def test_small_chunks_take_no_more_memory_than_their_bytes() -> None:
    data = chunked(*(b"xy" for _ in range(40_000)))[:-5]
    talk = Talk()
    tracemalloc.start()
    try:
        await talk.send(data)
        assert tracemalloc.get_traced_memory()[0] < 400_000
    finally:
        tracemalloc.stop()
    await talk.send(b"0\r\n\r\n")
    assert talk.answers == [(200, "keep-alive", b"xy" * 40_000)]


async def test_bytes_behind_a_request_that_waits_are_held_and_their_client_must_wait() -> None:
    talk = Talk()
    await talk.send(request("/wait", method="GET"), request("/echo", bytes(90_000)))
    assert not talk.transport.reading
    assert len(talk.application.requests) == 1
    talk.application.answer(talk.application.requests[0], b"done")
    await talk.settle()
    assert [answer[2] for answer in talk.answers] == [b"done", bytes(90_000)]
    assert talk.transport.reading


async def test_a_body_that_nobody_asks_for_is_not_taken() -> None:
    talk = Talk()
    data = request("/wait", bytes(90_000))
    await talk.send(data[:80_000])
    assert not talk.transport.reading
    waiting = talk.application.requests[0]
    bodies: list[object] = []
    waiting.when_read(100_000, bodies.append)
    assert talk.transport.reading
    await talk.send(data[80_000:])
    assert bodies == [bytes(90_000)]


async def test_a_client_is_asked_for_its_body_only_if_it_waits() -> None:
    whole = request("/echo", b"body", "Expect: 100-continue")
    talk = Talk()
    await talk.send(whole)
    assert b"100 Continue" not in talk.transport.written
    talk = Talk()
    await talk.send(whole[:-4])
    assert talk.transport.written == b"HTTP/1.1 100 Continue\r\n\r\n"
    talk.transport.written.clear()
    await talk.send(b"body")
    assert talk.answers == [(200, "keep-alive", b"body")]
    talk = Talk()
    await talk.send(whole.replace(b"HTTP/1.1", b"HTTP/1.0")[:-4])
    assert talk.transport.written == b""  # that version knows no answers in between


async def test_a_client_that_waits_and_is_refused_is_told_that_the_connection_ends() -> None:
    talk = Talk()
    await talk.send(request("/early", b"body", "Expect: 100-continue")[:-4])
    assert talk.answers == [(200, "close", b"early")]
    assert talk.is_over


async def test_the_next_request_waits_for_a_slow_reader() -> None:
    talk = Talk()
    await talk.send(request("/wait", method="GET"))
    talk.transport.unread = 100_000
    talk.connection.pause_writing()
    talk.application.answer(talk.application.requests[0], b"large")
    await talk.send(request("/echo", b"next"))
    assert len(talk.answers) == 1
    talk.connection.resume_writing()
    await talk.settle()
    assert [answer[2] for answer in talk.answers] == [b"large", b"next"]


async def until(condition: object) -> None:
    async with asyncio.timeout(60):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.001)


async def test_a_client_that_does_not_read_is_dropped() -> None:
    talk = Talk(replace(LIMITS, stall_seconds=0.01))
    await talk.send(request("/wait", method="GET"))
    talk.transport.unread = 100_000
    talk.connection.pause_writing()
    talk.application.answer(talk.application.requests[0], b"large")
    await until(lambda: talk.transport.aborted)


async def test_a_client_that_reads_byte_by_byte_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "MIN_RATE", 1e9)
    talk = Talk(replace(LIMITS, stall_seconds=0.01))
    await talk.send(request("/wait", method="GET"))
    talk.transport.unread = 100_000
    talk.connection.pause_writing()
    talk.application.answer(talk.application.requests[0], b"large")

    def reads_a_byte() -> bool:
        talk.transport.unread -= 1
        return talk.transport.aborted

    await until(reads_a_byte)


async def test_a_client_that_reads_what_the_kernel_holds_for_it_is_not_dropped() -> None:
    talk = Talk(replace(LIMITS, stall_seconds=0.2))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        talk.transport.socket = ours
        for _ in range(100):
            ours.send(b"sent")
        await talk.send(request("/wait", method="GET"))
        talk.transport.unread = 100_000
        talk.connection.pause_writing()
        talk.application.answer(talk.application.requests[0], b"large")
        for _ in range(100):
            assert not talk.transport.aborted
            theirs.recv(4)
            await asyncio.sleep(0.005)
        await until(lambda: talk.transport.aborted)


async def test_a_closing_connection_does_not_wait_for_ever_for_its_reader() -> None:
    talk = Talk(replace(LIMITS, stall_seconds=0.01))
    talk.transport.unread = 10
    await talk.send(LAST)
    assert talk.transport.closed
    await until(lambda: talk.transport.aborted)


@pytest.mark.parametrize("earlier", [b"", request("/echo", b"1"), chunked(b"1")])
async def test_half_a_head_does_not_hold_a_connection(earlier: bytes) -> None:
    talk = Talk(replace(LIMITS, head_seconds=0.01))
    await talk.send(earlier + b"G")
    await until(lambda: talk.is_over)
    assert talk.answers[-1][:2] == (408, "close")


async def test_a_body_that_stalls_is_given_up() -> None:
    talk = Talk(replace(LIMITS, stall_seconds=0.01))
    await talk.send(request("/echo", b"body")[:-1])
    await until(lambda: talk.is_over)
    assert talk.answers[0][:2] == (408, "close")


async def test_a_body_may_arrive_after_the_server_was_frozen() -> None:
    talk = Talk(replace(LIMITS, stall_seconds=0.5))
    data = request("/echo", b"body")
    await talk.send(data[:-2])
    time.sleep(1.5)
    await asyncio.sleep(0.05)
    await talk.send(data[-2:-1])
    time.sleep(1.5)
    await asyncio.sleep(0.05)
    await talk.send(data[-1:])
    assert talk.answers == [(200, "keep-alive", b"body")]


async def test_a_body_in_pieces_has_no_time_limit_any_more_once_it_is_there() -> None:
    talk = Talk(replace(LIMITS, stall_seconds=0.01))
    data = request("/wait", b"body")
    await talk.send(data[:-2])
    (waiting,) = talk.application.requests
    bodies: list[object] = []
    waiting.when_read(10, bodies.append)
    await talk.send(data[-2:])
    assert bodies == [b"body"]
    await asyncio.sleep(0.03)
    talk.application.answer(waiting, b"done")
    assert talk.answers == [(200, "keep-alive", b"done")]


async def test_an_idle_connection_is_closed_and_a_busy_one_is_not() -> None:
    talk = Talk(replace(LIMITS, idle_seconds=0.01))
    await talk.send(request("/wait", method="GET"))
    await asyncio.sleep(0.03)
    assert not talk.is_over
    talk.application.answer(talk.application.requests[0], b"done")
    await until(lambda: talk.transport.closed)
    assert talk.answers == [(200, "keep-alive", b"done")]


async def test_the_rest_of_a_body_is_not_read_for_long() -> None:
    talk = Talk(replace(LIMITS, linger_seconds=0.01))
    await talk.send(request("/early", b"body")[:-1])
    await until(lambda: talk.transport.closed)
    assert talk.answers == [(200, "keep-alive", b"early")]


async def test_a_client_that_leaves_is_told_to_who_answers() -> None:
    talk = Talk()
    await talk.send(request("/wait", method="GET"), request("/wait", method="GET"))
    talk.connection.connection_lost(None)
    assert talk.application.lost == talk.application.requests
    assert len(talk.application.requests) == 1
    assert not talk.server.connections


async def test_a_defect_of_who_answers_ends_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    talk = Talk()
    await talk.send(request("/raise"))
    assert talk.transport.aborted
    assert "a defect of the application" in caplog.text


async def test_closing_lets_an_answer_finish_and_says_so() -> None:
    talk = Talk()
    await talk.send(request("/wait", method="GET"), request("/echo", b"behind"))
    talk.connection.go_away()
    assert not talk.transport.closed
    talk.application.answer(talk.application.requests[0], b"done")
    assert talk.answers == [(200, "close", b"done")]
    assert talk.transport.closed
    assert len(talk.application.requests) == 1


async def test_closing_gives_up_what_takes_too_long() -> None:
    talk = Talk()
    await talk.send(request("/wait", method="GET"))
    await talk.server.close(grace=0.01)
    assert talk.transport.aborted


@pytest.mark.parametrize(
    "body", [request("/echo", b"x" * 60_001), chunked(b"x" * 30_001, b"x" * 30_000)], ids=["whole", "chunks"]
)
async def test_bodies_share_the_room_of_the_server(body: bytes) -> None:
    """A body that would fit alone has no room beside that of a request that is being served."""
    talk = Talk()
    talk.server.budget.room = 100_000
    other = HttpConnection(talk.server)
    other.connection_made(FakeTransport())
    other.data_received(request("/wait", b"x" * 40_000))
    while other.is_scheduled:
        await asyncio.sleep(0)
    assert talk.server.budget.held == 40_000
    await talk.send(body)
    assert talk.server.budget.held == 40_000
    ((status, connection, text),) = talk.answers
    assert (status, connection) == (503, "close")
    assert b"takes 100000 at a time" in text
    talk.application.answer(talk.application.requests[0], b"done")
    assert talk.server.budget.held == 0


@pytest.mark.parametrize(
    "sent",
    [
        request("/echo", b"x" * 1000),
        request("/early", b"x" * 1000),
        chunked(b"x" * 1000),
        request("/echo", b"x" * 1000)[:-1],
        request("/wait", b"x" * 1000) + request("/echo", b"x" * 1000) * 3,
        request("/echo", b"x" * (MAX_BODY + 1)),
        chunked(b"x" * (MAX_BODY + 1)),
        chunked(end=b"5\r\nhello\r\nno chunk"),
    ],
    ids=["answered", "unread", "chunks", "half", "pipelined", "too-large", "too-large-chunks", "malformed"],
)
async def test_nothing_is_held_for_a_client_that_has_left(sent: bytes) -> None:
    talk = Talk()
    await talk.send(sent)
    talk.connection.connection_lost(None)
    assert talk.server.budget.held == 0


async def test_of_clients_that_read_nothing_the_one_that_leaves_most_unread_is_dropped_when_it_is_too_much() -> None:
    talks = [Talk(), Talk()]
    budget = talks[1].connection.budget = talks[0].connection.budget
    budget.unread.room = 1000
    for talk, unread in zip(talks, (400, 500), strict=True):
        await talk.send(request("/echo", b"x"))
        talk.transport.unread = unread
        talk.connection.pause_writing()
    assert budget.unread.held == 900
    talks[0].transport.unread = 601  # an answer more
    talks[0].connection.write(b"x" * 201)
    assert [talk.transport.aborted for talk in talks] == [True, False]
    assert budget.unread.held == 500
    talks[1].connection.resume_writing()
    assert budget.unread.held == 0
    assert not budget.unread.clients
