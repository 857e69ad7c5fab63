"""A connection after its upgrade to a WebSocket: what it takes from clients that do not keep to the protocol."""

import asyncio
import itertools
import tracemalloc

import pytest
from tests.net.http1.engine import Talk, request
from websockets.extensions.permessage_deflate import PerMessageDeflate
from websockets.frames import CloseCode, Frame, Opcode

from torchserve_py.net import turns
from torchserve_py.net.websocket import FrameEnds, Kind, Message, WebSocket

HANDSHAKE = request(
    "/wait",
    b"",
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    method="GET",
)


def frame(opcode: Opcode, data: bytes = b"", *, fin: bool = True, mask: bool = True) -> bytes:
    return Frame(opcode, data, fin).serialize(mask=mask)


async def opened(behind: bytes = b"", max_size: int = 1000, extensions: str = "") -> tuple[Talk, WebSocket]:
    """A connection with an accepted WebSocket; nothing of it has been looked at."""
    talk = Talk()
    handshake = HANDSHAKE[:-2] + f"Sec-WebSocket-Extensions: {extensions}\r\n\r\n".encode() if extensions else HANDSHAKE
    await talk.send(handshake + behind)
    socket = WebSocket(talk.application.requests[0], max_size)
    assert socket.is_possible
    socket.accept((("x-more", "1"),))
    head, _, rest = bytes(talk.transport.written).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101 ")
    assert b"x-more: 1" in head
    talk.transport.written[:] = rest
    return talk, socket


async def test_messages_whole_and_in_pieces_with_a_ping_between() -> None:
    talk, socket = await opened()
    data = frame(Opcode.TEXT, "grü".encode(), fin=False) + frame(Opcode.PING, b"!") + frame(Opcode.CONT, "ße".encode())
    data += frame(Opcode.BINARY, b"\x00\x01")
    for index in range(len(data)):
        talk.connection.data_received(data[index : index + 1])
    assert await socket.receive() == Message(Kind.text, "grüße".encode())
    assert await socket.receive() == Message(Kind.binary, b"\x00\x01")
    assert talk.transport.written == frame(Opcode.PONG, b"!", mask=False)


@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536])
@pytest.mark.parametrize("read", [3, 1000, 1_000_000])
def test_frames_are_taken_one_by_one_in_as_few_pieces_as_they_arrive_in(size: int, read: int, mask: bool) -> None:
    one = frame(Opcode.BINARY, bytes(size), mask=mask)
    sent, ends, pieces = one * 3, FrameEnds(), []
    for start in range(0, len(sent), read):
        arrived = bytearray(sent[start : start + read])
        while arrived:
            pieces.append(ends.take(arrived))
            del arrived[: pieces[-1]]
    assert {len(one), 2 * len(one), len(sent)} <= set(itertools.accumulate(pieces))
    assert len(pieces) <= len(range(0, len(sent), read)) + 2


async def test_messages_count_in_the_budget_until_the_next_one_is_received() -> None:
    talk, socket = await opened()
    budget = talk.connection.budget
    whole, half = frame(Opcode.BINARY, bytes(500)), frame(Opcode.BINARY, bytes(400))[:300]
    for index in range(0, len(whole), 100):
        talk.connection.data_received(whole[index : index + 100])
    assert budget.held == 500
    talk.connection.data_received(half)
    assert budget.held == 500 + 300
    await socket.receive()
    assert budget.held == 500 + 300
    receiving = asyncio.ensure_future(socket.receive())
    await asyncio.sleep(0)
    assert budget.held == 300
    talk.connection.connection_lost(None)
    assert (await receiving).kind is Kind.close
    assert budget.held == 0


async def test_a_message_that_the_server_has_no_room_for_closes_the_socket() -> None:
    talk, socket = await opened()
    talk.connection.budget.room = 450
    receiving = asyncio.ensure_future(socket.receive())
    talk.connection.data_received(frame(Opcode.BINARY, bytes(500))[:400])
    talk.connection.data_received(frame(Opcode.BINARY, bytes(500))[400:])
    reason = b"The server has no room for this message now."
    assert talk.transport.written == frame(Opcode.CLOSE, b"\x03\xf5" + reason, mask=False)
    assert talk.connection.budget.held == 0
    talk.connection.connection_lost(None)
    assert (await receiving).kind is Kind.close


async def test_frames_right_behind_the_handshake_are_not_lost() -> None:
    _, socket = await opened(frame(Opcode.TEXT, b"early"))
    assert await socket.receive() == Message(Kind.text, b"early")


async def test_what_is_sent_is_not_masked() -> None:
    talk, socket = await opened()
    await socket.send(b"text", is_text=True)
    await socket.send(b"\xff", is_text=False)
    socket.ping()
    sent = frame(Opcode.TEXT, b"text", mask=False) + frame(Opcode.BINARY, b"\xff", mask=False)
    assert talk.transport.written == sent + frame(Opcode.PING, b"", mask=False)
    talk.connection.data_received(frame(Opcode.PONG))
    assert (await socket.receive()).kind is Kind.pong


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(Opcode.TEXT, b"unmasked", mask=False), CloseCode.PROTOCOL_ERROR),
        (frame(Opcode.CLOSE, b"\xff\xff"), CloseCode.PROTOCOL_ERROR),
        (frame(Opcode.CLOSE, b"\x03\xed"), CloseCode.PROTOCOL_ERROR),
        (frame(Opcode.CLOSE, b"\x00"), CloseCode.PROTOCOL_ERROR),
        (frame(Opcode.CONT, b"x"), CloseCode.PROTOCOL_ERROR),
        (b"\xf1\x80\0\0\0\0", CloseCode.PROTOCOL_ERROR),
        (b"\x89\xfe", CloseCode.PROTOCOL_ERROR),
        (b"\x8a\xff", CloseCode.PROTOCOL_ERROR),
        (b"\x82\xfe\x00\x7d", CloseCode.PROTOCOL_ERROR),
        (b"\x82\xff" + (65_535).to_bytes(8), CloseCode.PROTOCOL_ERROR),
        (frame(Opcode.BINARY, b"x") + b"\x82\xfe\x00\x01" + bytes(5), CloseCode.PROTOCOL_ERROR),
        (frame(Opcode.TEXT, b"\xff"), CloseCode.INVALID_DATA),
        (frame(Opcode.BINARY, bytes(1001)), CloseCode.MESSAGE_TOO_BIG),
        (frame(Opcode.BINARY, bytes(900), fin=False) + frame(Opcode.CONT, bytes(101)), CloseCode.MESSAGE_TOO_BIG),
    ],
    ids=[
        "unmasked",
        "65535",
        "1005",
        "half-code",
        "continuation",
        "reserved-bits",
        "long-ping",
        "longer-pong",
        "two-bytes-for-125",
        "eight-for-65535",
        "behind-another",
        "no-utf8",
        "large",
        "large-in-two",
    ],
)
async def test_what_breaks_the_protocol_closes_the_socket(data: bytes, code: CloseCode) -> None:
    talk, socket = await opened()
    talk.connection.data_received(data)
    async with asyncio.timeout(60):
        while not talk.is_over:  # what takes long goes on in the next turn of the event loop
            await asyncio.sleep(0)
    assert talk.transport.written[0] == 0x88
    assert int.from_bytes(talk.transport.written[2:4], "big") == code
    assert not socket.is_open


async def test_a_client_that_still_sends_can_read_why_the_socket_closes() -> None:
    talk, _ = await opened()
    talk.connection.data_received(frame(Opcode.BINARY, bytes(1001))[:100])
    assert talk.transport.half_closed
    talk.connection.data_received(bytes(10_000))
    async with asyncio.timeout(60):
        while not talk.transport.reading:
            await asyncio.sleep(0)
    assert not talk.transport.closed


async def test_a_close_is_answered_and_told() -> None:
    talk, socket = await opened()
    talk.connection.data_received(frame(Opcode.CLOSE, b"\x0f\xa1bye"))
    assert await socket.receive() == Message(Kind.close, b"bye", 4001)
    assert talk.transport.written == frame(Opcode.CLOSE, b"\x0f\xa1bye", mask=False)
    assert talk.transport.closed


async def test_a_client_that_is_gone_is_told() -> None:
    talk, socket = await opened()
    talk.connection.connection_lost(None)
    assert await socket.receive() == Message(Kind.close, code=1006)
    await socket.close(1000, b"", 1)


async def test_a_client_that_does_not_answer_a_close_is_hung_up_on() -> None:
    talk, socket = await opened()
    await socket.close(4000, b"enough" * 50, 0.01)
    assert talk.transport.written.startswith(b"\x88\x7d\x0f\xa0enough")
    assert talk.transport.aborted


async def test_a_code_that_may_not_be_sent_becomes_an_internal_error() -> None:
    talk, socket = await opened()
    await socket.close(1006, b"", 0.01)
    assert int.from_bytes(talk.transport.written[2:4], "big") == CloseCode.INTERNAL_ERROR


async def test_a_client_waits_while_nobody_receives() -> None:
    talk, socket = await opened()
    talk.connection.data_received(frame(Opcode.TEXT, b"x") * 20)
    assert not talk.transport.reading
    for _ in range(20):
        await socket.receive()
    assert talk.transport.reading


async def test_what_breaks_the_protocol_right_behind_the_handshake_closes_the_socket() -> None:
    talk, socket = await opened(frame(Opcode.TEXT, b"unmasked", mask=False))
    assert int.from_bytes(talk.transport.written[2:4], "big") == CloseCode.PROTOCOL_ERROR
    assert talk.is_over
    assert not socket.is_open


async def test_one_turn_parses_a_few_of_the_frames_that_have_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_SLICE", 0.0)
    talk, socket = await opened(max_size=20_000)
    frames = frame(Opcode.BINARY, b"", fin=False) + frame(Opcode.CONT, b"x", fin=False) * 10_000
    talk.connection.data_received(frames + frame(Opcode.CONT) + frame(Opcode.PING))
    assert not talk.transport.reading
    assert await socket.receive() == Message(Kind.binary, b"x" * 10_000)
    while not talk.transport.reading:
        await asyncio.sleep(0)
    assert talk.transport.written == frame(Opcode.PONG, mask=False)


async def test_compressed_messages_wait_unread_in_their_small_form() -> None:
    """What 40 kB on the wire hold is 80 MB; of that there is room for one message, as large as one may be."""
    size = 1_000_000
    compression = PerMessageDeflate(True, True, 15, 15)
    message = Frame(Opcode.BINARY, bytes(size)).serialize(mask=True, extensions=[compression])
    talk, socket = await opened(max_size=size, extensions="permessage-deflate")
    tracemalloc.start()
    try:
        talk.connection.data_received(message * 80)
        assert tracemalloc.get_traced_memory()[0] < 10 * size
    finally:
        tracemalloc.stop()
    for _ in range(80):
        assert await socket.receive() == Message(Kind.binary, bytes(size))


async def test_messages_that_arrived_before_the_client_left_are_received() -> None:
    talk, socket = await opened()
    talk.connection.data_received(frame(Opcode.TEXT, b"x") * 5000)
    talk.connection.pause_writing()
    talk.connection.data_received(frame(Opcode.PING) * 5000)
    talk.connection.connection_lost(None)
    for _ in range(5000):
        assert await socket.receive() == Message(Kind.text, b"x")
    assert await socket.receive() == Message(Kind.close, code=1006)


async def test_a_client_that_reads_no_pongs_is_not_read_from() -> None:
    talk, _ = await opened()
    talk.connection.pause_writing()
    talk.connection.data_received(frame(Opcode.PING))
    assert not talk.transport.reading
    talk.connection.resume_writing()
    assert talk.transport.reading


@pytest.mark.parametrize("missing", ["Sec-WebSocket-Key", "Sec-WebSocket-Version", "Connection", "Upgrade"])
async def test_what_is_no_handshake(missing: str) -> None:
    talk = Talk()
    await talk.send(HANDSHAKE.replace(missing.encode(), b"X-Other"))
    assert not WebSocket(talk.application.requests[0], 1000).is_possible
    await asyncio.sleep(0)
