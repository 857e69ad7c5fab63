"""Copies of steps that arrive when their client has long gone on: none is applied once more, whatever it came over.

A frozen server has requests that it has not read; their client has taken the steps, and others, elsewhere meanwhile.
"""

import asyncio
import contextlib
import textwrap
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import grpc
import pytest
import requests
from tests.e2e.running_server import DEADLINE, RunningServer, eventually, model_folder
from tests.e2e.step_counter import HANDLER
from tests.ports import free_ports

from torchserve_py.apis.grpc.protos.inference_pb2 import PredictionsRequest
from torchserve_py.apis.grpc.protos.inference_pb2_grpc import InferenceAPIsServiceStub
from torchserve_py.client import AsyncClient

CONFIG = """
    minWorkers: 1
    maxWorkers: 1
    sequenceBatching: true
    sequenceMaxIdleMSec: 60000
    maxNumSequence: 100
    handler:
      cache: {store: file, path: %s, lease: 1}
"""
TOKEN = "ts_request_sequence_token"
#: The last step that clients take at the other server; many more than a sequence's answers that are kept.
LATEST = 8


class Pair:
    """Two servers with one store."""

    def __init__(self, folder: Path) -> None:
        self.ports = free_ports(2)
        self.first, self.second = (
            RunningServer({"steps": folder}, {"grpc_inference_port": port}) for port in self.ports
        )

    @contextlib.contextmanager
    def first_frozen(self) -> Iterator[None]:
        """Freeze the first server, with its workers, while the body runs."""
        frozen = [self.first.server, *self.first.workers()]
        for each in frozen:
            each.suspend()
        try:
            yield
        finally:
            for each in frozen:
                each.resume()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    place = tmp_path_factory.mktemp("models")
    pair = Pair(model_folder(place, "steps", HANDLER, textwrap.dedent(CONFIG % (place / "sequences.db"))))
    with pair.first, pair.second:
        for each in (pair.first, pair.second):
            each.wait_ready()
        yield pair


def by_number(number: int) -> Mapping[str, str]:
    return {"ts_request_step": str(number), TOKEN: "a token"}


def by_id(number: int) -> Mapping[str, str]:
    return {"ts_request_id": f"request {number}"}


def sent(server: RunningServer, sequence: str, claim: Mapping[str, str]) -> HTTPConnection:
    """Send a step, and do not wait for its answer."""
    connection = HTTPConnection(urlsplit(server.inference).netloc, timeout=DEADLINE)
    headers = {"content-type": "text/plain", "ts_request_sequence_id": sequence, **claim}
    connection.request("POST", "/predictions/steps", "x", headers)
    return connection


def taken(server: RunningServer, sequence: str, claim: Mapping[str, str]) -> str:
    """Take a step, again and again while another server has a lease on its sequence."""
    answers: list[requests.Response] = []

    def attempt() -> bool:
        answers.append(server.predict("steps", "x", sequence=sequence, headers=dict(claim)))
        return answers[-1].headers.get("ts-error-cause") != "sequence_moved"

    eventually(attempt, "the lease of the frozen server is over")
    assert answers[-1].status_code == 200, answers[-1].text
    return answers[-1].text


def test_of_a_client_that_has_hung_up(pair: Pair) -> None:
    claims = {"numbers": by_number, "ids": by_id}
    for name, claim in claims.items():
        assert taken(pair.first, name, claim(1)) == "1"
    with pair.first_frozen():
        unread = {name: sent(pair.first, name, claim(2)) for name, claim in claims.items()}
        for name, claim in claims.items():
            for number in range(2, LATEST + 1):
                assert taken(pair.second, name, claim(number)) == str(number)
    for name, claim in claims.items():
        late = unread[name].getresponse()
        assert (late.status, late.headers["ts-error-cause"]) == (409, "step_applied"), (name, late.read())
        assert taken(pair.first, name, claim(LATEST + 1)) == str(LATEST + 1)
        assert taken(pair.second, name, claim(LATEST + 2)) == str(LATEST + 2)


def test_over_grpc(pair: Pair) -> None:
    def over_grpc(port: int, number: int) -> str:
        request = PredictionsRequest(model_name="steps", sequence_id="grpc", input={"body": b"x"})
        metadata = tuple(by_number(number).items())
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            answer = InferenceAPIsServiceStub(channel).Predictions(request, metadata=metadata, timeout=DEADLINE)
        return str(answer.prediction, "utf-8")

    first, second = pair.ports
    for number in range(1, LATEST + 1):
        assert over_grpc(second, number) == str(number)
    for port in (first, second):
        with pytest.raises(grpc.RpcError) as refused:
            over_grpc(port, 2)
        assert dict(refused.value.trailing_metadata())["ts-error-cause"] == "step_applied"
        assert over_grpc(port, 1) == "1", "the first step has the answer that it got"
    assert over_grpc(first, LATEST + 1) == str(LATEST + 1)


class Balancer:
    """Passes connections on to one server at a time; a server keeps those that their clients have lost."""

    def __init__(self, server: RunningServer) -> None:
        self.server = server
        self.passed_on = 0  # bytes that servers were sent
        self._clients: list[asyncio.StreamWriter] = []
        self._passing: list[asyncio.Task[None]] = []
        self._listening: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._listening = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._listening is not None
        self._listening.close()
        for task in self._passing:
            task.cancel()
        await asyncio.gather(*self._passing, return_exceptions=True)

    @property
    def url(self) -> str:
        assert self._listening is not None
        return f"http://127.0.0.1:{self._listening.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """Cut the connections of the clients."""
        for each in self._clients:
            each.transport.abort()

    async def _serve(self, client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        self._clients.append(answers)
        place = urlsplit(self.server.inference)
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        for source, target in ((client, writer), (reader, answers)):
            self._passing.append(asyncio.ensure_future(self._pass_on(source, target, target is writer)))

    async def _pass_on(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, to_server: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65_536):
                target.write(data)
                await target.drain()
                self.passed_on += len(data) if to_server else 0
        if to_server:
            await asyncio.Event().wait()  # the server does not hear of it
        target.close()


def has_refused(server: RunningServer) -> bool:
    """Whether a server has told a live session that one of its steps was applied before."""
    with contextlib.suppress(ValueError):  # it has counted nothing of the kind yet
        return server.metric("ts_outcomes_total", protocol="websocket", cause="step_applied") == 1
    return False


async def test_of_a_live_session_of_the_client(pair: Pair) -> None:
    async with (
        Balancer(pair.first) as balancer,
        AsyncClient(balancer.url, patience=DEADLINE) as client,
        client.session("steps", content_type="text/plain") as session,
    ):
        assert (await session.step("x")).text == "1"
        with pair.first_frozen():
            before = balancer.passed_on
            await session.send("x")
            async with asyncio.timeout(DEADLINE):
                while balancer.passed_on == before:
                    await asyncio.sleep(0.01)
            balancer.server = pair.second
            balancer.cut()
            assert (await session.receive()).text == "2"
            for number in range(3, LATEST + 1):
                assert (await session.step("x")).text == str(number)
        await asyncio.to_thread(eventually, lambda: has_refused(pair.first), "the late copy is refused")
        assert (await session.step("x")).text == str(LATEST + 1)
