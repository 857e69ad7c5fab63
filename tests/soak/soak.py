"""Mixed traffic against one server for some minutes, and whether it comes back to where it was; see scripts/soak.

The server is warmed up with the same traffic first, left alone, and measured: that is its level. After the traffic it
is left alone again, until sequences that clients abandoned have expired, and measured again. It fails where memory,
file descriptors, tasks, threads or open sequences have not come back, and where an answer was not one that it may be.
"""

import argparse
import asyncio
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import grpc
import psutil
from tests.e2e.running_server import ROOT, RunningServer, eventually, model_folder

from torchserve_py.apis.grpc.protos import inference_pb2, inference_pb2_grpc

HOOKS = Path(__file__).parent / "hooks"
ECHO = "def handle(data, context):\n    return None if data is None else [row['body'] for row in data]\n"
STREAM = """
import time
from ts.handler_utils.utils import send_intermediate_predict_response


def handle(data, context):
    if data is None:
        return None
    for number in range(20):
        send_intermediate_predict_response(["part "] * len(data), context.request_ids, "ok", 200, context)
        time.sleep(0.001)
    return ["last"] * len(data)
"""
IDLE_SECONDS = 5
#: What a level may have grown by: allocators and caches never come back to the byte.
_MEMORY_SLACK = 0.10
_COUNT_SLACK = 5

Level = dict[str, float]


class Traffic:
    """Clients of every kind. ``outcomes`` counts what they did and what they were told."""

    def __init__(self, server: RunningServer, grpc_target: str, extra_model: Path) -> None:
        self._server = server
        self._grpc_target = grpc_target
        self._extra_model = extra_model
        self._random = random.Random(7)
        self.outcomes: Counter[str] = Counter()
        self.wrong: list[str] = []

    async def run(self, seconds: float, clients: int) -> None:
        """Keep all clients busy for some seconds."""
        kinds = [self.predict, self.predict, self.sequence, self.abandon, self.stream, self.break_off, self.large]
        kinds += [self.refused, self.grpc, self.hang_up]
        end = time.monotonic() + seconds
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
            workers = [self._repeat(self._random.choice, kinds, session, end) for _ in range(clients)]
            await asyncio.gather(*workers, self._manage(session, end))

    async def _repeat(
        self,
        choose: Callable[[list[Callable[[aiohttp.ClientSession], Awaitable[None]]]], Callable[..., Awaitable[None]]],
        kinds: list[Callable[[aiohttp.ClientSession], Awaitable[None]]],
        session: aiohttp.ClientSession,
        end: float,
    ) -> None:
        while time.monotonic() < end:
            kind = choose(kinds)
            try:
                await kind(session)
            except Exception as error:
                self.wrong.append(f"{kind.__name__}: {error!r}")
            self.outcomes[kind.__name__] += 1

    def _expect(self, what: str, status: int, allowed: set[int]) -> None:
        self.outcomes[f"{what} {status}"] += 1
        if status not in allowed:
            self.wrong.append(f"{what}: status {status}")

    async def _post(self, session: aiohttp.ClientSession, model: str, body: bytes, **headers: str) -> tuple[int, bytes]:
        url = f"{self._server.inference}/predictions/{model}"
        async with session.post(url, data=body, headers={"content-type": "text/plain", **headers}) as response:
            return response.status, await response.read()

    async def predict(self, session: aiohttp.ClientSession) -> None:
        """A plain request."""
        status, body = await self._post(session, "echo", b"hello")
        self._expect("predict", status, {200, 503})
        if status == 200 and body != b"hello":
            self.wrong.append(f"predict: {body!r}")

    async def sequence(self, session: aiohttp.ClientSession) -> None:
        """A sequence from its first step to its last."""
        name = f"s{self._random.getrandbits(60)}"
        total = 0
        for value in (1, 2, 3):
            status, body = await self._post(session, "stateful", b"%d" % value, ts_request_sequence_id=name)
            self._expect("step", status, {200, 503})
            if status != 200:
                return
            total += value
            if int(body) != total:
                self.wrong.append(f"sequence: {body!r} instead of {total}")
        await self._post(session, "stateful", b"0", ts_request_sequence_id=name)

    async def abandon(self, session: aiohttp.ClientSession) -> None:
        """A sequence that nobody ends."""
        name = f"a{self._random.getrandbits(60)}"
        status, _ = await self._post(session, "stateful", b"1", ts_request_sequence_id=name)
        self._expect("abandoned", status, {200, 503})

    async def stream(self, session: aiohttp.ClientSession) -> None:
        """A stream that is read to its end."""
        status, body = await self._post(session, "stream", b"")
        self._expect("stream", status, {200, 503})
        if status == 200 and body != b"part " * 20 + b"last":
            self.wrong.append(f"stream: {len(body)} bytes")

    async def break_off(self, session: aiohttp.ClientSession) -> None:
        """A stream whose client leaves after the first part."""
        async with session.post(f"{self._server.inference}/predictions/stream", data=b"") as response:
            await response.content.readany()
            response.close()

    async def large(self, session: aiohttp.ClientSession) -> None:
        """A megabyte there and back."""
        body = bytes(1 << 20)
        status, answer = await self._post(session, "echo", body, **{"content-type": "application/octet-stream"})
        self._expect("large", status, {200, 503})
        if status == 200 and answer != body:
            self.wrong.append("large: another body")

    async def refused(self, session: aiohttp.ClientSession) -> None:
        """Requests that are refused."""
        status, _ = await self._post(session, "ghost", b"x")
        self._expect("unknown model", status, {404})
        async with session.post(f"{self._server.inference}/predictions/echo", data=bytes(8 << 20)) as response:
            self._expect("too large", response.status, {413})

    async def grpc(self, session: aiohttp.ClientSession) -> None:
        """A connection, a call and a stream over gRPC."""
        async with grpc.aio.insecure_channel(self._grpc_target) as channel:
            stub = inference_pb2_grpc.InferenceAPIsServiceStub(channel)
            request = inference_pb2.PredictionsRequest(model_name="stream", input={"data": b"x"})
            try:
                parts = [part async for part in stub.StreamPredictions(request, timeout=180)]
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                    self.wrong.append(f"grpc: {error.code()}")
                return
            if len(parts) != 21:
                self.wrong.append(f"grpc: {len(parts)} parts")

    async def hang_up(self, session: aiohttp.ClientSession) -> None:
        """A client that leaves in the middle of its request."""
        host, _, port = self._server.inference.removeprefix("http://").partition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        request = b"POST /predictions/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nhello"
        writer.write(request[: self._random.randrange(len(request))])
        await writer.drain()
        writer.close()

    async def _manage(self, session: aiohttp.ClientSession, end: float) -> None:
        """Register, scale and unregister a model again and again."""
        models = f"{self._server.management}/models"
        while time.monotonic() < end:
            query = {"url": str(self._extra_model), "initial_workers": "1", "synchronous": "true"}
            async with session.post(models, params=query) as response:
                self._expect("register", response.status, {200})
            async with session.delete(f"{models}/extra") as response:
                self._expect("unregister", response.status, {200})
            await asyncio.sleep(2)


def measure(server: RunningServer, tasks: Path) -> Level:
    """What the server and its workers hold now."""
    tasks.unlink(missing_ok=True)
    process = server.server
    process.send_signal(signal.SIGUSR1)
    count = eventually(lambda: tasks.exists() and tasks.read_text().strip(), "the server counts its tasks")
    workers = server.workers()
    return {
        "server memory (MiB)": round(process.memory_info().rss / 2**20, 1),
        "worker memory (MiB)": round(sum(psutil.Process(each.pid).memory_info().rss for each in workers) / 2**20, 1),
        "server file descriptors": process.num_fds(),
        "server threads": process.num_threads(),
        "server tasks": int(count),
        "workers": len(workers),
        "open sequences": server.metric("ts_open_sequences", model_name="stateful"),
    }


def settle(server: RunningServer) -> None:
    """Wait until abandoned sequences have expired and connections are gone."""
    eventually(
        lambda: server.metric("ts_open_sequences", model_name="stateful") == 0,
        "all sequences are closed",
        IDLE_SECONDS + 30,
    )
    time.sleep(3)


def grown(before: Level, after: Level) -> list[str]:
    """What has not come back to its level."""
    found = []
    for name, level in before.items():
        allowed = level * (1 + _MEMORY_SLACK) + 10 if "memory" in name else level + _COUNT_SLACK
        if after[name] > (level if name == "open sequences" else allowed):
            found.append(f"{name}: {level:g} before, {after[name]:g} after")
    return found


def soak(seconds: float, clients: int) -> int:
    """Run, print the results as a table, return the exit status."""
    with tempfile.TemporaryDirectory(prefix="ts-soak-") as folder:
        place = Path(folder)
        stateful = place / "stateful"
        stateful.mkdir()
        handler = (ROOT / "handlers" / "stateful" / "stateful_handler.py").read_text()
        config = f"sequenceBatching: true\nbatchSize: 8\nmaxBatchDelay: 2\nsequenceMaxIdleMSec: {IDLE_SECONDS * 1000}\n"
        config += "maxNumSequence: 2000\nmaxSequenceJobQueueSize: 8\nminWorkers: 1\nmaxWorkers: 1\n"
        models = {
            "stateful": model_folder(place / "a", "stateful", handler, config),
            "echo": model_folder(place, "echo", ECHO),
            "stream": model_folder(place, "stream", STREAM, "batchSize: 4\nmaxBatchDelay: 1\n"),
        }
        extra = model_folder(place, "extra", ECHO)
        tasks = place / "tasks"
        paths = os.pathsep.join(map(str, (HOOKS, ROOT / "frontend", ROOT / "backend")))
        environment = {"SOAK_TASKS": str(tasks), "PYTHONPATH": paths}
        with RunningServer(models, {"drain_timeout": 1, "job_queue_size": 1000}, environment) as server:
            server.wait_ready()
            lines = [line for line in server.log().splitlines() if "grpc_inference_port: listening" in line]
            traffic = Traffic(server, f"127.0.0.1:{lines[0].rpartition(':')[2].rstrip('/')}", extra)
            asyncio.run(traffic.run(min(60.0, seconds / 4), clients))
            settle(server)
            before = measure(server, tasks)
            started = time.monotonic()
            traffic.outcomes.clear()
            asyncio.run(traffic.run(seconds, clients))
            elapsed = time.monotonic() - started
            settle(server)
            after = measure(server, tasks)
    return report(traffic, elapsed, clients, before, after)


def report(traffic: Traffic, elapsed: float, clients: int, before: Level, after: Level) -> int:
    """Print what happened."""
    print(f"{elapsed:.0f} seconds, {clients} clients\n\n| what clients did | how often |\n|---|---|")
    for name, count in sorted(traffic.outcomes.items()):
        print(f"| {name} | {count} |")
    print("\n| level | before | after |\n|---|---|---|")
    for name, level in before.items():
        print(f"| {name} | {level:g} | {after[name]:g} |")
    problems = grown(before, after) + [f"wrong answer: {each}" for each in traffic.wrong[:20]]
    print("\n" + ("\n".join(problems) if problems else "Everything is back at its level, and every answer was right."))
    return 1 if problems else 0


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--clients", type=int, default=32)
    arguments = parser.parse_args()
    return soak(arguments.seconds, arguments.clients)


if __name__ == "__main__":
    sys.exit(main())
