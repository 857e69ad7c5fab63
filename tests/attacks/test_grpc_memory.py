"""Calls that were to fill the server's memory: bombs, answers that nobody reads, references to headers."""

import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.attacks.grpc_client import INFERENCE, GrpcClient, address_of, block, body, head, headers, integer, message
from tests.attacks.watching import KEPT, Watch
from tests.e2e.running_server import RunningServer, eventually, model_folder

from torchserve_py.apis.grpc.protos.inference_pb2 import PredictionsRequest
from torchserve_py.net.http2 import frames
from torchserve_py.net.http2.frames import ErrorCode
from torchserve_py.net.unread import ROOM_OF_CLIENT

LARGE = 6_000_000
HANDLER = f"ANSWER = bytes({LARGE})\n\n\ndef handle(data, context):\n    return data and [ANSWER for _ in data]\n"
PREDICTIONS = f"{INFERENCE}Predictions"
GZIP = ("grpc-encoding", "gzip")
PERMISSION_DENIED, RESOURCE_EXHAUSTED, INTERNAL = 7, 8, 13
#: How much memory the answers that wait may take, with what they are made from.
WAITING = 2 * ROOM_OF_CLIENT


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that wants tokens; its model gives large answers to small requests."""
    folder = model_folder(tmp_path_factory.mktemp("models"), "large", HANDLER)
    with RunningServer({"large": folder}, flags=()) as running:
        eventually(running.workers, "the model's worker")
        yield running


@pytest.fixture(scope="module")
def token(server: RunningServer) -> tuple[str, str]:
    """The metadata that opens the inference API."""
    keys = json.loads((Path(server.server.cwd()) / "key_file.json").read_text())
    return "authorization", f"Bearer {keys['inference']['key']}"


def rss(server: RunningServer) -> int:
    return int(server.server.memory_info().rss)


def test_bombs_without_a_token_are_not_even_kept(server: RunningServer) -> None:
    """522 KB made 1.1 GB."""
    bomb = message(gzip.compress(bytes(6_500_000), 9), compressed=True)
    count = 522_000 // len(bomb)
    before = rss(server)
    with Watch(server), GrpcClient(address_of(server)) as client:
        for number in range(count):
            client.send(headers(1 + 2 * number, head(PREDICTIONS, GZIP)) + body(1 + 2 * number, bomb))
        assert client.statuses(count) == [PERMISSION_DENIED] * count
        assert rss(server) - before < KEPT


def test_bombs_with_a_token_do_not_stop_the_server(server: RunningServer, token: tuple[str, str]) -> None:
    """160 of them stopped it for 4.4 s."""
    data = random.Random(0).randbytes(930_000) + bytes(5_500_000)
    packed = gzip.compress(PredictionsRequest(model_name="ghost", input={"data": data}).SerializeToString(), 1)
    bomb, count = message(packed, compressed=True), 60
    with Watch(server), GrpcClient(address_of(server)) as client:
        for number in range(count):
            client.send(headers(1 + 2 * number, head(PREDICTIONS, GZIP, token)) + body(1 + 2 * number, bomb))
        assert client.statuses(count) == [INTERNAL] * count  # TorchServe's status for a model that is not there


def test_answers_that_nobody_reads(server: RunningServer, token: tuple[str, str]) -> None:
    """400 calls left 2.4 GB: the client's windows are closed."""
    request = message(PredictionsRequest(model_name="large", input={"data": b""}).SerializeToString())
    before, count = rss(server), 80
    with Watch(server), GrpcClient(address_of(server), frames.settings({frames.INITIAL_WINDOW_SIZE: 0})) as client:
        for number in range(count):
            client.send(headers(1 + 2 * number, head(PREDICTIONS, token)) + body(1 + 2 * number, request))
        refused = count - ROOM_OF_CLIENT // LARGE
        assert client.statuses(refused) == [RESOURCE_EXHAUSTED] * refused
        assert rss(server) - before < WAITING


def test_references_to_a_large_header_hold_little(server: RunningServer, token: tuple[str, str]) -> None:
    """132 KB of references held 55 MB: each of the calls, which send no body, has the same header fifteen times."""
    entry = b"\x40" + integer(5, 0x7F) + b"large" + integer(3900, 0x7F) + b"x" * 3900
    before, count = rss(server), 900
    with Watch(server), GrpcClient(address_of(server)) as client:
        client.send(headers(1, head(PREDICTIONS, token) + entry))
        for number in range(1, count):
            differs = block(("n", str(number)))
            client.send(headers(1 + 2 * number, head(PREDICTIONS, token) + b"\xbe" * 15 + differs))
        assert client.answers_pings()
        assert rss(server) - before < KEPT


@pytest.mark.parametrize(
    "fields",
    [b"\xbe" * 1600, b"\x20" * 60_000, b"\x82" * 60_000, b"\xff" + b"\xff" * 60_000, b"\0\1x\xff" + b"\xff" * 60_000],
    ids=["references", "changes of the table", "pseudo-headers", "an index", "a length"],
)
def test_header_blocks_that_take_long_to_decode(server: RunningServer, fields: bytes) -> None:
    """132 KB stopped the server for 0.7 s, on each connection."""
    with Watch(server):
        for _ in range(5):
            with GrpcClient(address_of(server)) as client:
                client.send(headers(1, head(PREDICTIONS) + b"\x40\1a\1b"))
                for number in range(1, 80):
                    client.send(headers(1 + 2 * number, fields))
                assert client.goaway() in (ErrorCode.ENHANCE_YOUR_CALM, ErrorCode.COMPRESSION_ERROR, None)


def test_a_model_name_of_a_megabyte_is_not_sent_back(server: RunningServer, token: tuple[str, str]) -> None:
    request = message(PredictionsRequest(model_name="%" * (1 << 20)).SerializeToString())
    with Watch(server), GrpcClient(address_of(server)) as client:
        client.send(headers(1, head(PREDICTIONS, token)) + body(1, request))
        for kind, flags, _, payload in client.frames():
            if kind == frames.HEADERS:
                assert len(payload) < 8192
                if flags & frames.END_STREAM:
                    break
