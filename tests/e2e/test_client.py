"""`torchserve_py.client` against real servers; sessions under chaos say the same as undisturbed ones."""

import asyncio
import contextlib
import itertools
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.e2e.running_server import ROOT, RunningServer, model_folder
from websockets.asyncio import client as websockets_client

from torchserve_py.client import AsyncClient, Client, RequestFailed, SequenceLost, SessionClosed, StepFailed

HANDLER = """
import time

from ts.handler_utils.utils import send_intermediate_predict_response
from ts.sequence import SequenceCache


class Handler:
    def initialize(self, context):
        self.context = context
        self.texts = SequenceCache(context)

    def handle(self, data, context):
        return [self.step(context.get_sequence_id(index), row["body"]) for index, row in enumerate(data)]

    def step(self, sequence_id, text):
        text = text.decode() if isinstance(text, bytes) else text
        if text == "fail":
            raise ValueError("as asked")
        if text.startswith("slow"):
            time.sleep(0.05)
        self.texts[sequence_id] = [*self.texts.get(sequence_id, []), text]
        said = self.texts[sequence_id]
        if text.startswith("stream") and len(self.context.request_ids) == 1:
            for word in said:
                send_intermediate_predict_response([word], self.context.request_ids, "", 200, self.context)
        return f"{len(said)}: {' '.join(said)}"
"""
CONFIG = """
minWorkers: 2
maxWorkers: 2
responseTimeout: 20
sequenceBatching: true
sequenceMaxIdleMSec: 120000
maxNumSequence: 100
maxSequenceJobQueueSize: 4
handler:
  cache: {cache}
"""
SESSIONS, STEPS = 8, 24


def model(directory: Path, cache: str) -> Path:
    return model_folder(directory, "diary", HANDLER, CONFIG.format(cache=cache))


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[RunningServer]:
    with RunningServer({"diary": folder}) as server:
        server.wait_ready()
        yield server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with serving(model(tmp_path, f"{{store: file, path: '{tmp_path / 'sequences.db'}'}}")) as each:
        yield each


def test_the_client_without_asyncio(server: RunningServer) -> None:
    with Client(server.inference) as client:
        answer = client.predict("diary", "one", content_type="text/plain")
        assert (answer.status, answer.text) == (200, "1: one")
        assert b"".join(client.stream("diary", "stream", content_type="text/plain")) == b"stream1: stream"
        with pytest.raises(RequestFailed) as failed:
            client.predict("nobody", "one")
        assert failed.value.status == 404
        with client.session("diary", content_type="text/plain") as session:
            assert session.step("a").text == "1: a"
            assert list(session.stream("stream")) == [b"a", b"stream", b"2: a stream"]
            assert [session.send(text) for text in "cd"] == [3, 4]
            assert [session.receive().step for _ in range(2)] == [3, 4]
            with pytest.raises(StepFailed) as step:
                session.step("fail")
            assert (step.value.step, step.value.cause) == (5, "handler_error")
            assert session.step("e", end=True).text == "5: a stream c d e"
            with pytest.raises(SessionClosed):
                session.step("f")
        with pytest.raises(RequestFailed) as refused, client.session("nobody"):
            pass
        assert refused.value.status == 404


def test_a_session_goes_on_in_another_program_and_shares_a_named_state(server: RunningServer) -> None:
    with Client(server.inference) as first, first.session("diary", content_type="text/plain") as session:
        assert session.step("a").text == "1: a"
        token = session.resume_token
    with Client(server.inference) as client:
        with client.session("diary", content_type="text/plain", resume=token) as session:
            assert (session.last_step, session.step("b").text, session.last_step) == (1, "2: a b", 2)
        with client.session("diary", content_type="text/plain", resume="unheard-of") as session:
            assert (session.last_step, session.step("b").text) == (0, "1: b")

        def predict(text: str) -> str:
            return client.predict("diary", text, content_type="text/plain", sequence="ada").text

        assert predict("x") == "1: x"
        with client.session("diary", content_type="text/plain", sequence="ada") as session:
            assert (session.resume_token, session.window, session.sequence) == (None, 1, "ada")
            assert session.step("y").text == "2: x y"
            assert predict("z") == "3: x y z"
            killed = server.workers()
            for worker in killed:
                worker.kill()
            psutil.wait_procs(killed, 60)  # a step that both had taken would have been with two workers that died
            assert session.step("w").text == "4: x y z w"
            with client.session("diary", content_type="text/plain", sequence="ada") as other:
                assert other.step("v").text == "5: x y z w v"
            assert session.step("u").text == "6: x y z w v u"
        assert predict("t") == "7: x y z w v u t", "the end of a session ends no sequence that others use"
        with pytest.raises(RequestFailed) as refused, client.session("diary", sequence="live-1"):
            pass
        assert refused.value.status == 403
    with Client(server.inference) as client, pytest.raises(ValueError, match="not both"):
        client.session("diary", resume="a", sequence="b")


async def test_no_more_steps_are_sent_than_the_server_takes(server: RunningServer) -> None:
    async with AsyncClient(server.inference) as client, client.session("diary", content_type="text/plain") as session:
        assert session.window == 4
        for _ in range(4):
            await session.send("x")
        with pytest.raises(ValueError, match="4 steps have no answer yet"):
            await session.send("x")
        assert [(await session.receive()).step for _ in range(4)] == [1, 2, 3, 4]
        with pytest.raises(ValueError, match="all steps have been answered"):
            await session.receive()


async def test_a_session_without_a_store_is_lost_truthfully(tmp_path: Path) -> None:
    with serving(model(tmp_path, "{store: memory}")) as server:
        async with (
            AsyncClient(server.inference) as client,
            client.session("diary", content_type="text/plain") as session,
        ):
            await session.step("a")
            for worker in server.workers():
                worker.kill()
            with pytest.raises((SequenceLost, StepFailed)):
                for _ in range(3):
                    await session.step("b")


class Cutter:
    """The connections of the clients of this process, which it can cut."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open: list[websockets_client.ClientConnection] = []
        made = websockets_client.ClientConnection.connection_made
        cutter = self

        def noted(self: websockets_client.ClientConnection, transport: asyncio.BaseTransport) -> None:
            cutter.open.append(self)
            made(self, transport)

        monkeypatch.setattr(websockets_client.ClientConnection, "connection_made", noted)

    def cut(self, chance: random.Random) -> None:
        for connection in chance.sample(self.open, min(3, len(self.open))):
            connection.transport.abort()
            self.open.remove(connection)


async def transcript(client: AsyncClient, name: int, begun: asyncio.Event) -> list[bytes]:
    """Talk: steps one by one, streams, and several on their way."""
    said = []
    async with client.session("diary", content_type="text/plain") as session:
        for number in range(0, STEPS, 4):
            said.append((await session.step(f"slow-{name}-{number}")).body)
            said.append(b"".join([part async for part in session.stream(f"stream-{name}-{number}")]))
            for further in (2, 3):
                await session.send(f"{name}-{number + further}")
            said += [(await session.receive()).body for _ in range(2)]
            begun.set()
            await asyncio.sleep(0.2)
    return said


async def transcripts(server: RunningServer, begun: asyncio.Event) -> list[list[bytes]]:
    async with AsyncClient(server.inference, patience=120) as client:
        return await asyncio.gather(*(transcript(client, name, begun) for name in range(SESSIONS)))


async def disturb(server: RunningServer, cutter: Cutter, talking: asyncio.Future[list[list[bytes]]]) -> dict[str, int]:
    """Cut connections and kill workers and the server, until everything was done several times or all has been said."""
    chance, done = random.Random(7), {"cuts": 0, "workers killed": 0, "servers killed": 0}
    for round_ in range(9):
        if talking.done():
            break
        kind = ("cuts", "workers killed", "servers killed")[round_ % 3]
        done[kind] += 1
        if kind == "cuts":
            cutter.cut(chance)
        elif kind == "workers killed":
            with contextlib.suppress(psutil.Error, IndexError):
                chance.choice(server.workers()).kill()
        else:
            await asyncio.to_thread(_restart, server)
        await asyncio.sleep(0.5)
    return done


def _restart(server: RunningServer) -> None:
    os.kill(server.server.pid, signal.SIGKILL)
    server.kill_everything()
    server.output.write_bytes(b"")
    server.start()


async def test_disturbed_sessions_say_what_undisturbed_ones_say(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = asyncio.Event()
    undisturbed = await transcripts(server, begun)
    begun.clear()
    cutter = Cutter(monkeypatch)
    talking = asyncio.ensure_future(transcripts(server, begun))
    await asyncio.wait([asyncio.ensure_future(begun.wait()), talking], return_when=asyncio.FIRST_COMPLETED)
    done = await disturb(server, cutter, talking)
    assert await talking == undisturbed
    assert min(done.values()) > 0, done


def test_the_client_for_browsers(server: RunningServer) -> None:
    """Node's WebSocket is that of browsers."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs Node.js")
    module = ROOT / "frontend" / "torchserve_py" / "client" / "live-session.js"
    program = ROOT / "tests" / "e2e" / "live_session.mjs"
    url = server.inference.replace("http", "ws", 1)
    command = [node, "--experimental-websocket", "--experimental-default-type=module", program, module.as_uri(), url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as page:
        assert page.stdin is not None
        assert page.stdout is not None
        said = list(itertools.takewhile("restart\n".__ne__, page.stdout))
        server.terminate()
        server.output.write_bytes(b"")
        server.start()
        rest, _ = page.communicate("go on\n", timeout=180)
    assert [*"".join(said).splitlines(), *rest.splitlines()] == [
        "window 4",
        "1: a",
        '["a","stream","2: a stream"]',
        "3=3: a stream c; 4=4: a stream c d; 5=5: a stream c d e",
        "connections 2",
        "6: a stream c d e slow",
        "RangeError 4 steps have no answer yet",
        "4",
        "true 11 handler_error",
        "11: a stream c d e slow w w w w f",
        "true 1000",
        "pending closed by this client",
    ]
