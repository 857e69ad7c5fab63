"""The client against real servers: a caller that reads slowly, a server that drains, a sequence that has ended."""

import asyncio
import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.running_server import RunningServer, eventually, model_folder
from websockets.asyncio.client import connect

from torchserve_py.client import AsyncClient, SessionClosed

HANDLER = """
import os

from ts.handler_utils.utils import send_intermediate_predict_response
from ts.sequence import SequenceCache


class Handler:
    def initialize(self, context):
        self.context = context
        self.totals = SequenceCache(context)

    def handle(self, data, context):
        return [self.step(context.get_sequence_id(index), row["body"]) for index, row in enumerate(data)]

    def step(self, sequence_id, text):
        word, _, number = (text.decode() if isinstance(text, bytes) else text).rpartition(" ")
        if word == "parts":
            for part in range(int(number)):
                with open(os.environ["PROGRESS"], "w") as progress:
                    progress.write(str(part))
                send_intermediate_predict_response(["x" * 100_000], self.context.request_ids, "", 200, self.context)
            return "end"
        self.totals[sequence_id] = self.totals.get(sequence_id, 0) + int(number)
        return str(self.totals[sequence_id])
"""
CONFIG = """
minWorkers: 1
maxWorkers: 1
responseTimeout: 60
sequenceBatching: true
sequenceMaxIdleMSec: 120000
maxNumSequence: 100
maxSequenceJobQueueSize: 4
handler:
  cache: {cache}
"""
PARTS = 1000


def server_of(directory: Path, cache: str, **properties: Any) -> RunningServer:
    folder = model_folder(directory, "totals", HANDLER, CONFIG.format(cache=cache))
    return RunningServer({"totals": folder}, properties, {"PROGRESS": str(directory / "progress")})


def stored(directory: Path) -> str:
    return f"{{store: file, path: '{directory / 'sequences.db'}'}}"


async def test_a_slow_caller_slows_the_handler_down_and_misses_nothing(tmp_path: Path) -> None:
    """100 MB: neither the server nor the client holds what the caller has not taken."""

    def produced() -> int:
        return int((tmp_path / "progress").read_text() or "0")

    with server_of(tmp_path, "{store: memory}") as server:
        server.wait_ready()
        before = server.server.memory_info().rss
        async with (
            AsyncClient(server.inference) as client,
            client.session("totals", content_type="text/plain") as session,
        ):
            parts = session.stream(f"parts {PARTS}")
            taken = len(await anext(parts))
            seen = -1
            while seen != (seen := produced()):
                await asyncio.sleep(1)
            assert seen < PARTS / 2, "the handler waits for the caller"
            assert server.server.memory_info().rss - before < 50_000_000
            async for part in parts:
                taken += len(part)
            assert taken == PARTS * 100_000 + len("end")
            assert (await session.step("add 2")).text == "2"


async def test_sessions_go_on_while_their_server_is_restarted_in_the_middle_of_steps(tmp_path: Path) -> None:
    with server_of(tmp_path, stored(tmp_path), drain_timeout=5) as server:
        server.wait_ready()
        async with AsyncClient(server.inference) as client:

            async def talk() -> list[str]:
                async with client.session("totals", content_type="text/plain") as session:
                    said = [(await session.step("add 1")).text]
                    began.append(None)
                    while not restarted.is_set():
                        said.append((await session.step("add 1")).text)
                    for _ in range(session.window):
                        await session.send("add 1")
                    return said + [(await session.receive()).text for _ in range(session.window)]

            began: list[None] = []
            restarted = asyncio.Event()
            talks = [asyncio.ensure_future(talk()) for _ in range(4)]
            await asyncio.to_thread(eventually, lambda: len(began) == 4, "all are talking")
            await asyncio.to_thread(server.terminate)
            server.output.write_bytes(b"")
            await asyncio.to_thread(server.start)
            restarted.set()
            for said in await asyncio.gather(*talks):
                assert said == [str(number + 1) for number in range(len(said))]


async def test_a_session_that_is_not_stored_may_go_on_while_the_server_drains(tmp_path: Path) -> None:
    with server_of(tmp_path, "{store: memory}", drain_timeout=3) as server:
        server.wait_ready()
        assert server.process is not None
        async with (
            AsyncClient(server.inference, patience=1) as client,
            client.session("totals", content_type="text/plain") as session,
        ):
            assert (await session.step("add 1")).text == "1"
            server.process.send_signal(signal.SIGTERM)
            drains_since, total = time.monotonic(), 1
            with pytest.raises(SessionClosed, match="not within 1 seconds"):
                while True:
                    total += 1
                    assert (await session.step("add 1")).text == str(total)
                    await asyncio.sleep(0.05)
            assert time.monotonic() - drains_since > 2
            assert total > 10
            with pytest.raises(SessionClosed):
                await session.step("add 1")


async def test_a_client_that_comes_back_after_its_own_end_is_told_that_the_sequence_has_ended(tmp_path: Path) -> None:
    with server_of(tmp_path, stored(tmp_path)) as server:
        server.wait_ready()
        url = f"{server.inference.replace('http', 'ws', 1)}/sequences/totals?content_type=text/plain"
        async with connect(url) as socket:
            token = json.loads(await socket.recv())["resume"]
            await socket.send(json.dumps({"body": "add 5"}))
            await socket.send(json.dumps({"body": "add 2", "end": True}))
            assert [json.loads(await socket.recv())["body"] for _ in range(2)] == ["5", "7"]
            await socket.wait_closed()
            assert socket.close_code == 1000
        for after, unanswered in ((2, []), (1, [2])):
            async with connect(url) as socket:
                await socket.recv()
                await socket.send(json.dumps({"resume": token, "after": after, "unanswered": unanswered}))
                told = [json.loads(message) async for message in socket]
                assert [each["body"] for each in told[:-1]] == ["7"] * len(unanswered)
                assert told[-1]["last"] == 2
                assert (socket.close_code, socket.close_reason) == (1000, "The sequence has ended.")
        async with (
            AsyncClient(server.inference) as client,
            client.session("totals", content_type="text/plain") as session,
        ):
            await session.step("add 1", end=True)
            with pytest.raises(SessionClosed):
                await session.step("add 1")
