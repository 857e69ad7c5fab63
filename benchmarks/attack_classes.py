"""Attacks on a server, class by class, as SECURITY.md lists them: the same bytes as in the tests, in larger numbers."""

import gzip
import io
import json
import struct
import time
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

import requests
from tests.attacks.grpc_client import INFERENCE, GrpcClient, address_of, body, head, headers, message
from tests.attacks.test_downloads import SPELLINGS
from tests.attacks.test_grpc_floods import FLOODS
from tests.attacks.test_models import PRINT, PRINTED, SEND
from tests.attacks.test_parsing import BODIES, FILES, TRUSS
from tests.core.test_malformed_results import HANDLER as FORGING
from tests.core.test_malformed_results import MALFORMED
from tests.core.test_orphans import HANDLER as LEAVING
from tests.e2e.raw_client import RawClient
from tests.e2e.running_server import DEADLINE, RunningServer, model_folder
from tests.e2e.test_hostile_clients import SHAPES, SMUGGLED
from tests.unit.test_unfit_characters import UNFIT
from websockets.sync.client import connect

from torchserve_py.apis.grpc.protos.inference_pb2 import PredictionsRequest
from torchserve_py.net.http2 import frames

MB: Final = 1_000_000
#: Bytes of a body that the default settings allow.
ALLOWED: Final = 6_000_000
HANDLER: Final = """
LARGE = bytes(6_000_000)


def handle(data, context):
    return data and [LARGE if row["body"] == b"large" else b"" for row in data]
"""
SESSIONS: Final = "sequenceBatching: true\nsequenceMaxIdleMSec: 600000\nmaxNumSequence: 10000\n"
HEAD: Final = b"POST /predictions/echo HTTP/1.1\r\nHost: localhost\r\n"
PREDICTIONS: Final = f"{INFERENCE}Predictions"

Attack = Callable[[RunningServer], None]


def attacked_models(folder: Path) -> dict[str, Path]:
    """Write the models that the attacks need, and return their folders by name."""
    models = {
        "echo": model_folder(folder, "echo", HANDLER, "jobQueueSize: 1000\n"),
        "stateful": model_folder(folder, "stateful", HANDLER, SESSIONS),
        "forging": model_folder(folder, "forging", FORGING),
        "leaving": model_folder(folder, "leaving", LEAVING),
        "values": model_folder(folder, "values", SEND, "maxRetryTimeoutInSec: 600\n"),
        **{
            name: model_folder(folder, name, PRINT.replace("{printed}", printed))
            for name, (printed, _) in PRINTED.items()
        },
    }
    for name in ("one", "two"):
        models[name] = folder / name
        (models[name] / "model").mkdir(parents=True)
        (models[name] / "config.yaml").write_text(f"model_name: {name}\n")
        (models[name] / "model" / "model.py").write_text(TRUSS)
    return models


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
                session.post(f"{server.inference}/predictions/stateful", headers={"ts_request_sequence_id": name})

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
        with connect(f"{server.inference.replace('http', 'ws')}/sequences/stateful") as session:
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


def at_once(asks: list[Callable[[], Any]]) -> None:
    """Do all this, 20 at a time; whether the server hangs up meanwhile does not matter."""

    def ask(each: Callable[[], Any]) -> None:
        with suppress(OSError):
            each()

    with ThreadPoolExecutor(20) as clients:
        list(clients.map(ask, asks))


def ambiguous(server: RunningServer) -> None:
    """Send each shape of a request that can be read in two ways 100 times, with another request behind it."""

    def send(shape: bytes) -> None:
        with RawClient(server.inference) as client:
            client.send(shape + SMUGGLED)
            client.read(MB)

    at_once([lambda shape=shape: send(shape) for shape in SHAPES.values()] * 100)


def expensive_bodies(server: RunningServer) -> None:
    """Send each body that is expensive to parse four times, as much of it as the server takes."""
    for path, fields, data, _, _ in BODIES.values():
        posted(4, path, data[:ALLOWED], **fields)(server)


def expensive_files(server: RunningServer) -> None:
    """Register models whose files are expensive to parse, each four times."""
    asks = []
    for number, (name, content) in enumerate(FILES.values()):
        folder = model_folder(server.directory / "attackers", str(number), HANDLER)
        if name != "model-config.yaml":
            (folder / "handler.py").unlink()
            (folder / "model").mkdir()
            (folder / "model" / "model.py").write_text(TRUSS)
        (folder / name).write_bytes(content)
        asks += [lambda folder=folder: server.register(folder)] * 4
    at_once(asks)


def hostile_archives(server: RunningServer) -> None:
    """Register an archive of 600 MB of zeros, one of 60,000 files, and one of paths of 2,000 folders, twice each."""

    def packed(files: dict[str, int]) -> bytes:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, size in files.items():
                with archive.open(name, "w") as member:
                    for _ in range(0, size, 1 << 20):
                        member.write(bytes(min(size, 1 << 20)))
        return file.getvalue()

    shapes = [{"zeros": 600 << 20}, {f"file{number}": 1 for number in range(60_000)}, {"d/" * 2000 + "x": 1}]
    for number, files in enumerate(shapes):
        (server.model_store / f"hostile{number}.mar").write_bytes(packed(files))
    at_once([lambda number=number: server.register(f"hostile{number}.mar") for number in range(len(shapes))] * 2)


def urls_of_this_machine(server: RunningServer) -> None:
    """Register from each spelling of this machine's address ten times."""
    port = server.inference.rpartition(":")[2]
    at_once([lambda url=url: server.register(url.format(port=port)) for url in SPELLINGS] * 10)


def printing(server: RunningServer) -> None:
    """Let models print 60,000 lines, and a line of 5 MB, twice each, and send a message of three million values."""
    at_once([lambda name=name: server.predict(name) for name in PRINTED] * 2)
    server.predict("values")


def forged(server: RunningServer) -> None:
    """Let a model send each malformed result 30 times."""
    at_once([lambda order=order: server.predict("forging", order) for order in MALFORMED.values()] * 30)


def leaving(server: RunningServer) -> None:
    """Let a model leave 200 processes that have forked twice, in chains of ten."""
    at_once([lambda: server.predict("leaving", "10")] * 20)


def other_sites(server: RunningServer) -> None:
    """Send 4,000 requests of pages of other sites: by the mark of a browser, and for a foreign name."""

    def ask(number: int) -> None:
        foreign = {"Host": f"{number}.example"} if number % 2 else {"Sec-Fetch-Site": "cross-site"}
        requests.post(f"{server.inference}/predictions/echo", b"x" * 1000, headers=foreign, timeout=DEADLINE)

    at_once([lambda number=number: ask(number) for number in range(4000)])


def characters(server: RunningServer) -> None:
    """Name 4,000 sequences, requests and paths with characters that would break a line of a log."""
    unfit = UNFIT.encode("unicode-escape").decode() + UNFIT.replace("\r", "").replace("\n", "")
    value = "".join(each for each in unfit if each.isprintable() or ord(each) > 0x7F).encode()

    def ask(number: int) -> None:
        fields = {b"ts_request_sequence_id": value, b"x-request-id": value[: number % 100]}
        requests.post(f"{server.inference}/predictions/stateful", headers=fields, timeout=DEADLINE)  # type: ignore[arg-type]

    at_once([lambda number=number: ask(number) for number in range(4000)])


def fragments(server: RunningServer) -> None:
    """Send a message in 10,000 fragments over each of 20 live sessions."""

    def send() -> None:
        with connect(f"{server.inference.replace('http', 'ws')}/sequences/stateful") as session:
            session.send(["x"] * 10_000)

    with suppress(Exception):
        at_once([send] * 20)


def floods(server: RunningServer) -> None:
    """Send each flood of frames over two connections."""

    def send(flood: bytes) -> None:
        with GrpcClient(address_of(server)) as client:
            client.send(flood)
            client.goaway()

    at_once([lambda flood=flood: send(flood) for flood in FLOODS.values()] * 2)


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
    "20 messages of 10,000 WebSocket fragments": fragments,
    "80 WebSocket bombs, 6 MB each": websocket_bombs,
    "gRPC: 210 MB of bodies that are never ended": grpc_bodies,
    "gRPC: 60 compressed bombs": grpc_bombs,
    "gRPC: 80 answers of 6 MB, unread": grpc_unread,
    "gRPC: 40,000 calls begun and reset": rapid_resets,
    "gRPC: 28 floods of 30,000 frames": floods,
    "3,300 ambiguous requests": ambiguous,
    "68 bodies that are expensive to parse, 6 MB each": expensive_bodies,
    "28 registrations with files that are expensive to parse": expensive_files,
    "6 registrations of hostile archives": hostile_archives,
    "320 registrations from addresses of this machine": urls_of_this_machine,
    "4 outputs of models, of 60,000 lines or of 5 MB, and a message of three million values": printing,
    "210 results that a worker forges": forged,
    "200 processes that leave their session": leaving,
    "4,000 requests of pages of other sites": other_sites,
    "4,000 requests with characters that break lines": characters,
}
