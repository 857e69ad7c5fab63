"""Memory of a server before, during and after each class of attack, as the table in SECURITY.md.

    python -m benchmarks.attack_memory [CLASS …]

One server with its default settings, but without tokens, gets all classes one after the other, so that what one leaves
behind stands in the row of the next. Memory is the resident memory of the server's process in MB; "after" is what it
has once it has been left alone for two of its rounds of giving memory back.
"""

import gzip
import json
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import requests
from tests.attacks.grpc_client import INFERENCE, GrpcClient, address_of, body, head, headers, message
from tests.e2e.raw_client import RawClient
from tests.e2e.running_server import DEADLINE, RunningServer, model_folder
from websockets.sync.client import connect

from torchserve_py.features.grpc.http2 import frames
from torchserve_py.features.grpc.protos.inference_pb2 import PredictionsRequest

#: Seconds: the server gives freed memory back every 5.
SETTLING: Final = 11.0
MB: Final = 1_000_000
HANDLER: Final = """
LARGE = bytes(6_000_000)


def handle(data, context):
    return data and [LARGE if row["body"] == b"large" else b"" for row in data]
"""
SESSIONS: Final = "sequenceBatching: true\nsequenceMaxIdleMSec: 600000\nmaxNumSequence: 10000\n"
HEAD: Final = b"POST /predictions/echo HTTP/1.1\r\nHost: localhost\r\n"
PREDICTIONS: Final = f"{INFERENCE}Predictions"

Attack = Callable[[RunningServer], None]


def connections(count: int, beginning: bytes = b"") -> Attack:
    """Open so many connections at once, send the beginning of a request over each, and hang up."""

    def attack(server: RunningServer) -> None:
        with ExitStack() as stack:
            for client in [stack.enter_context(RawClient(server.inference)) for _ in range(count)]:
                client.send(beginning)

    return attack


def waves(count: int, attack: Attack) -> Attack:
    """Attack so many times."""

    def attacks(server: RunningServer) -> None:
        for _ in range(count):
            attack(server)

    return attacks


def posted(count: int, path: str, data: bytes, **headers: str) -> Attack:
    """Send so many requests, 50 at a time, and read the answers."""

    def attack(server: RunningServer) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}

        def send(_: int) -> None:
            requests.post(f"{server.inference}{path}", data, headers=named, timeout=DEADLINE)

        with ThreadPoolExecutor(50) as clients:
            list(clients.map(send, range(count)))

    return attack


def names(server: RunningServer) -> None:
    """Name 20,000 models, sequences and parameters that do not exist, over connections that are kept."""

    def ask(first: int) -> None:
        with requests.Session() as session:
            for number in range(first, first + 1000):
                name = f"{number:06}".ljust(200, "n")
                session.post(f"{server.inference}/predictions/{name}?{name}=1", headers={"x-request-id": name[:100]})
                session.post(f"{server.inference}/predictions/steps", headers={"ts_request_sequence_id": name})

    with ThreadPoolExecutor(20) as clients:
        list(clients.map(ask, range(0, 20_000, 1000)))


def answers_unread(server: RunningServer) -> None:
    """Ask for 100 answers of 6 MB over connections that read nothing, and hang up."""
    with ExitStack() as stack:
        for _ in range(100):
            client = stack.enter_context(RawClient(server.inference, receive_buffer=4096))
            client.send(HEAD + b"Content-Length: 5\r\nContent-Type: application/octet-stream\r\n\r\nlarge")
        time.sleep(3)


def tiny_chunks(server: RunningServer) -> None:
    """Send 800,000 chunks of one byte over eight connections."""

    def send(_: int) -> None:
        with RawClient(server.inference) as client:
            client.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 100_000 + b"0\r\n\r\n")
            client.head()

    with ThreadPoolExecutor(8) as clients:
        list(clients.map(send, range(8)))


def pipelined(server: RunningServer) -> None:
    """Send 6,000 requests at once over each of 20 connections, and read nothing."""
    connections(20, b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n" * 6000)(server)


def websocket_bombs(server: RunningServer) -> None:
    """Send a compressed message of 6 MB over each of 80 WebSockets, all at once, and read the answers."""

    def send(_: int) -> None:
        with connect(f"{server.inference.replace('http', 'ws')}/sequences/steps") as session:
            session.send(json.dumps({"body": " " * 6_000_000}))
            for _ in range(2):  # what the session is, and the answer
                session.recv(DEADLINE)

    with ThreadPoolExecutor(80) as clients:
        list(clients.map(send, range(80)))


def grpc_bodies(server: RunningServer) -> None:
    """Send bodies of 700 kB in ten calls over each of 30 connections, within their windows, and break these."""
    data = message(PredictionsRequest(model_name="echo", input={"body": bytes(700_000)}).SerializeToString())
    last = 9 + len(data) % 16_384  # the frame that would end the call
    with ExitStack() as stack:
        for _ in range(30):
            client = stack.enter_context(GrpcClient(address_of(server)))
            for number in range(10):
                stream = 1 + 2 * number
                client.send(headers(stream, head(PREDICTIONS)) + body(stream, data)[:-last])
        time.sleep(3)


def grpc_bombs(server: RunningServer) -> None:
    """Send 60 compressed messages of 6.5 MB of zeros."""
    packed = gzip.compress(PredictionsRequest(model_name="ghost", input={"body": bytes(6_400_000)}).SerializeToString())
    with GrpcClient(address_of(server)) as client:
        for number in range(60):
            stream = 1 + 2 * number
            client.send(headers(stream, head(PREDICTIONS, ("grpc-encoding", "gzip"))))
            client.send(body(stream, message(packed, compressed=True)))
        client.statuses(60)


def grpc_unread(server: RunningServer) -> None:
    """Ask for 80 answers of 6 MB with a window that stays closed."""
    request = message(PredictionsRequest(model_name="echo", input={"body": b"large"}).SerializeToString())
    with GrpcClient(address_of(server), frames.settings({frames.INITIAL_WINDOW_SIZE: 0})) as client:
        for number in range(80):
            client.send(headers(1 + 2 * number, head(PREDICTIONS)) + body(1 + 2 * number, request))
        time.sleep(5)


def rapid_resets(server: RunningServer) -> None:
    """Begin and reset 40,000 calls over eight connections."""
    for _ in range(8):
        with GrpcClient(address_of(server)) as client:
            for number in range(5000):
                stream = 1 + 2 * number
                reset = frames.header(4, frames.RST_STREAM, 0, stream) + struct.pack(">I", 8)
                client.send(headers(stream, head(PREDICTIONS)) + reset)


SHAPE: Final = json.dumps({"inputs": [{"name": "x", "shape": [2**62 - 1] * 100_000, "datatype": "FP32", "data": []}]})
BOMB: Final = gzip.compress(json.dumps({"inputs": [], "x": " " * 6_000_000}).encode(), 9)
CLASSES: Final[dict[str, Attack]] = {
    "5,000 idle connections, four times": waves(4, connections(5000)),
    "5,000 half heads, four times": waves(4, connections(5000, HEAD + b"X-Filler: " + b"x" * 4000)),
    "8,000 bodies of 20 kB, never ended, 4,000 at a time": waves(
        2, connections(4000, HEAD + b"Content-Length: 30000\r\n\r\n" + bytes(20_000))
    ),
    "8,000 bodies of 20 kB, answered": posted(8000, "/predictions/echo", bytes(20_000)),
    "45 bodies of 4.9 MB, never ended": waves(
        3, connections(15, HEAD + b"Content-Length: 5000000\r\n\r\n" + bytes(4_900_000))
    ),
    "60 bodies of 5 MB, answered": posted(60, "/predictions/echo", bytes(5 * MB)),
    "800,000 chunks of one byte": tiny_chunks,
    "120,000 pipelined requests, answers unread": pipelined,
    "100 answers of 6 MB, unread": answers_unread,
    "60 shapes of 100,000 sizes": posted(60, "/v2/models/echo/infer", SHAPE.encode()),
    "100 compressed bombs, 6 MB each": posted(100, "/v2/models/echo/infer", BOMB, content_encoding="gzip"),
    "40,000 names": names,
    "80 WebSocket bombs, 6 MB each": websocket_bombs,
    "gRPC: 210 MB of bodies that are never ended": grpc_bodies,
    "gRPC: 60 compressed bombs": grpc_bombs,
    "gRPC: 80 answers of 6 MB, unread": grpc_unread,
    "gRPC: 40,000 calls begun and reset": rapid_resets,
}


def resident(server: RunningServer) -> int:
    return round(server.server.memory_info().rss / MB)


@contextmanager
def highest(server: RunningServer) -> Iterator[list[int]]:
    """Yield a list whose only number is the highest resident memory so far."""
    seen, done = [resident(server)], threading.Event()

    def look() -> None:
        while not done.wait(0.05):
            seen[0] = max(seen[0], resident(server))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield seen
    finally:
        done.set()
        looking.join()


def main(chosen: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        models = {
            "echo": model_folder(Path(folder), "echo", HANDLER, "jobQueueSize: 1000\n"),
            "steps": model_folder(Path(folder), "steps", HANDLER, SESSIONS),
        }
        with RunningServer(models, {"drain_timeout": 0}) as server:
            server.wait_ready()
            server.predict("echo")
            time.sleep(SETTLING)
            print("| attack | before | at most | after |\n|---|---|---|---|")
            for name, attack in CLASSES.items():
                if chosen and not any(word in name for word in chosen):
                    continue
                before = resident(server)
                with highest(server) as most:
                    attack(server)
                time.sleep(SETTLING)
                print(f"| {name} | {before} | {most[0]} | {resident(server)} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
