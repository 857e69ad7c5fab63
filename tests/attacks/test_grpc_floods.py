"""Frames that were to keep the server busy, or to be waited for for ever."""

import threading
from collections.abc import Iterator

import pytest
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest
from tests.attacks.grpc_client import GrpcClient, address_of, body, frame, head, headers, message
from tests.attacks.watching import Watch
from tests.e2e.running_server import RunningServer

from torchserve_py.net.http2 import frames
from torchserve_py.net.http2.frames import ErrorCode

#: What needs no token and no model.
CHECK = head("/grpc.health.v1.Health/Check")
WATCH = head("/grpc.health.v1.Health/Watch")
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
ASKS = message(ServerReflectionRequest(file_containing_symbol="inference.GRPCInferenceService").SerializeToString())
COUNT = 30_000
#: Seconds that the server waits for its clients.
STALL = 2


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """A server without models that has little patience with those who do nothing."""
    with RunningServer(properties={"default_response_timeout": STALL}) as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[GrpcClient]:
    """A connection; others must notice nothing."""
    with Watch(server), GrpcClient(address_of(server)) as each:
        yield each


CALL = headers(1, CHECK) + body(1, message(b""))
OPEN = headers(1, CHECK)
FLOODS = {
    "pings": frame(frames.PING, 0, 0, b"12345678") * COUNT,
    "settings": frames.settings({}) * COUNT,
    "thousands of settings in each frame": frame(frames.SETTINGS, 0, 0, b"\0\4\0\0\xff\xff" * 2700) * (COUNT // 2700),
    "window updates of the connection": frames.window_update(0, 1) * COUNT,
    "window updates of a stream": OPEN + frames.window_update(1, 1) * COUNT,
    "window updates of a closed stream": CALL + frames.window_update(1, 1) * COUNT,
    "resets of a closed stream": CALL + frames.rst_stream(1, ErrorCode.CANCEL) * COUNT,
    "data of a closed stream": CALL + frame(frames.DATA, 0, 1, b"x") * COUNT,
    "data of a call that is refused": headers(1, head("/no/Such")) + frame(frames.DATA, 0, 1, b"x") * COUNT,
    "empty data": OPEN + frame(frames.DATA, 0, 1) * COUNT,
    "data that is only padding": OPEN + frame(frames.DATA, frames.PADDED, 1, b"\0") * COUNT,
    "unknown methods": b"".join(headers(1 + 2 * number, head("/no/Such"), 5) for number in range(COUNT)),
    "continuations of nothing": headers(1, CHECK, 0) + frame(frames.CONTINUATION, 0, 1) * COUNT,
    "calls reset at once": b"".join(
        headers(1 + 2 * number, CHECK) + frames.rst_stream(1 + 2 * number, ErrorCode.CANCEL) for number in range(COUNT)
    ),
}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
def test_frames_that_ask_for_nothing(client: GrpcClient, flood: bytes) -> None:
    sender = threading.Thread(target=client.send, args=(flood,))
    sender.start()
    code = client.goaway()
    client.socket.close()
    sender.join()
    assert code in (ErrorCode.ENHANCE_YOUR_CALM, None)  # None: the reset of the connection was faster


def test_settings_beside_a_thousand_calls(server: RunningServer) -> None:
    """Others waited for 7.2 s when five connections did it: each frame was worked through for every call."""
    calls = b"".join(headers(1 + 2 * number, WATCH) for number in range(1000))
    flood = b"".join(frames.settings({frames.INITIAL_WINDOW_SIZE: number % 2 * 65_535}) for number in range(9_000))
    with Watch(server):
        clients = [GrpcClient(address_of(server)) for _ in range(5)]
        for each in clients:
            each.send(calls)
            each.send(flood)
        assert all(each.answers_pings() for each in clients)
        for each in clients:
            each.socket.close()


def test_windows_that_open_byte_by_byte_for_a_thousand_calls(server: RunningServer) -> None:
    """Each SETTINGS of 15 bytes lets every answer go on by one byte."""
    calls = b"".join(headers(1 + 2 * number, WATCH) + body(1 + 2 * number, message(b"")) for number in range(1000))
    flood = b"".join(frames.settings({frames.INITIAL_WINDOW_SIZE: number}) for number in range(1, 9_000))
    with Watch(server), GrpcClient(address_of(server), frames.settings({frames.INITIAL_WINDOW_SIZE: 0})) as client:
        client.send(calls)
        assert client.answers_pings()
        sender = threading.Thread(target=client.send, args=(flood + frame(frames.PING, 0, 0, b"the last"),))
        sender.start()
        last = next((kind for kind, _, _, data in client.frames() if kind == 7 or data == b"the last"), None)
        client.socket.close()
        sender.join()
        assert last in (frames.PING, frames.GOAWAY, None)


def test_thousands_of_calls_that_watch_and_end_together(server: RunningServer) -> None:
    """Ten connections made others wait for 1.0 s: each call had a timer, and all went on in one turn of the loop."""
    calls = b"".join(headers(1 + 2 * number, WATCH) + body(1 + 2 * number, message(b"")) for number in range(1000))
    with Watch(server):
        clients = [GrpcClient(address_of(server), frames.settings({frames.INITIAL_WINDOW_SIZE: 0})) for _ in range(6)]
        for each in clients:
            each.send(calls)
        assert all(each.answers_pings() for each in clients)
        for each in clients:
            each.send(frames.settings({frames.INITIAL_WINDOW_SIZE: 65_535}))
        assert all(each.answers_pings() for each in clients)
        for each in clients:
            each.socket.close()


def test_a_stream_of_thousands_of_messages_that_need_no_pause(server: RunningServer) -> None:
    """Others waited for 0.9 s: the handler read one after the other without letting the event loop go on."""
    asked = ASKS * 8_000
    pieces = [frame(frames.DATA, 0, 1, asked[start : start + 16_384]) for start in range(0, len(asked), 16_384)]
    wide = frames.settings({frames.INITIAL_WINDOW_SIZE: frames.MAX_WINDOW}) + frames.window_update(0, 1 << 30)
    with Watch(server):
        clients = [GrpcClient(address_of(server), wide) for _ in range(4)]
        senders = [
            threading.Thread(target=each.send, args=(headers(1, head(REFLECTION)) + b"".join(pieces),))
            for each in clients
        ]
        for sender in senders:
            sender.start()
        for each in clients:
            assert each.data_of(1, 1_000_000)
            each.socket.close()
        for sender in senders:
            sender.join()


HALVES = {
    "half a frame": frames.header(16_384, frames.DATA, 0, 1),
    "half of the headers": headers(3, CHECK, 0),
}


@pytest.mark.parametrize("half", HALVES.values(), ids=HALVES)
def test_what_is_never_ended(server: RunningServer, half: bytes) -> None:
    with Watch(server), GrpcClient(address_of(server)) as client:
        client.send(OPEN + half)
        assert client.goaway() is None  # the connection ends


TRICKLES = {
    "request": (OPEN, [frame(frames.DATA, 0, 1, b"\0")] * 1000),  # two hundred empty messages
    "answer": (headers(1, head(REFLECTION)) + body(1, ASKS), [frames.window_update(1, 1)] * 1000),
}


@pytest.mark.parametrize(("begin", "pieces"), TRICKLES.values(), ids=TRICKLES)
def test_a_byte_now_and_then_keeps_nothing_for_ever(server: RunningServer, begin: bytes, pieces: list[bytes]) -> None:
    with Watch(server), GrpcClient(address_of(server), frames.settings({frames.INITIAL_WINDOW_SIZE: 0})) as client:
        client.socket.settimeout(0.05)
        client.send(begin)
        for piece in pieces:
            client.send(piece)
            if client.ended_within_timeout(1):
                return
        raise AssertionError("the server waits still")
