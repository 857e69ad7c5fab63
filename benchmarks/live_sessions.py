"""What live sessions cost: latency with many of them, memory of idle ones, and steps per second against HTTP.

    python -m benchmarks.live_sessions [--rounds N] [--seconds S] [--sessions N] [--idle N] [--json FILE]

Every session has a sequence of handlers/durable, in batches of up to 32, on one worker, without a store. The load
generator, a process with aiohttp, shares the cores with the server. First each of many sessions has a step per second;
then others are opened, have one step each and are left alone; at last 32 sessions step as fast as they are answered,
in turn with 32 connections that do the same over HTTP.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import signal
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import aiohttp

from benchmarks import launchers
from benchmarks.benchmark_models import ROOT, HandlerModel, Probe
from benchmarks.results import machine_facts
from benchmarks.servers import Server, ServerFailed

STEPPING = 32
BATCH = 32
WARM_UP_SECONDS = 2.0
#: Sessions that are opened at once.
OPENING = 50
#: Seconds within which a step must be answered, or is lost.
LIMIT = 60.0
#: The goals: milliseconds, kilobytes, and the steps over WebSockets for each over HTTP.
MOST_P99 = 50.0
MOST_MEMORY = 30.0
LEAST_RATIO = 1.0
_STEP = {"body": "1"}
#: A load: takes its number and the moment at which it ends, and returns how many steps were answered.
Load = Callable[[int, float], Awaitable[int]]


@dataclass
class Result:
    """What was measured; times in milliseconds, memory in kilobytes (1000 bytes)."""

    sessions: int
    steps: int
    lost: int
    p50: float
    p99: float
    idle_sessions: int
    memory: float
    over_websockets: list[float]
    over_http: list[float]

    @property
    def ratio(self) -> float:
        """The median over the rounds of steps over WebSockets for each over HTTP."""
        return statistics.median(ws / http for ws, http in zip(self.over_websockets, self.over_http, strict=True))


def main() -> int:
    """The command. Returns 1 if something failed, whether goals are met or not."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live_sessions", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="turns of WebSockets and HTTP (default 5)")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of one load (default 10)")
    parser.add_argument("--sessions", type=int, default=1000, help="with a step per second each (default 1000)")
    parser.add_argument("--idle", type=int, default=10_000, help="sessions left alone (default 10000)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all values to FILE")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server is stopped on the way out
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # one for each session, here and in the server
    try:
        with Server(launchers.this_server(sys.executable), _model(options.sessions + options.idle)) as server:
            result = asyncio.run(_measure(server, options))
    except (ServerFailed, aiohttp.ClientError, TimeoutError) as error:
        print(f"live_sessions: {type(error).__name__} {error}", file=sys.stderr)
        return 1
    report(result)
    if options.json:
        options.json.write_text(json.dumps({"machine": machine_facts(), **asdict(result)}, indent=2) + "\n")
    return 0


def _model(sequences: int) -> HandlerModel:
    """The model of handlers/durable, with room for that many sequences."""
    config = {
        "batchSize": BATCH,
        "maxBatchDelay": 5,
        "sequenceBatching": True,
        "sequenceMaxIdleMSec": 3_600_000,
        "maxNumSequence": 2 * sequences + 100,
        "maxSequenceJobQueueSize": 8,
        "handler": {"cache": {"store": "memory", "capacity": 2 * sequences + 100}},
    }
    probe = Probe("/predictions/durable", b"2", b"2".__eq__, {"ts_request_sequence_id": "first"})
    return HandlerModel("durable", ROOT / "handlers" / "durable" / "durable_handler.py", config, probe)


async def _measure(server: Server, options: argparse.Namespace) -> Result:
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=server.authorization) as client:
        generator = LoadGenerator(server, client)
        await generator.rate(generator.steps, WARM_UP_SECONDS)
        latencies, lost = await generator.paced(options.sessions, options.seconds)
        memory = await generator.idle_memory(options.idle)
        rates: dict[Load, list[float]] = {generator.steps: [], generator.requests: []}
        for number in range(options.rounds):
            for load in rates if number % 2 == 0 else reversed(rates):
                rates[load].append(await generator.rate(load, options.seconds))
    percentiles = statistics.quantiles(latencies, n=100)
    return Result(
        sessions=options.sessions,
        steps=len(latencies),
        lost=lost,
        p50=1000 * percentiles[49],
        p99=1000 * percentiles[98],
        idle_sessions=options.idle,
        memory=memory / 1000,
        over_websockets=rates[generator.steps],
        over_http=rates[generator.requests],
    )


class LoadGenerator:
    """Opens sessions, and steps them."""

    def __init__(self, server: Server, client: aiohttp.ClientSession) -> None:
        self._server = server
        self._client = client
        self._opening = asyncio.Semaphore(OPENING)

    async def _open(self) -> aiohttp.ClientWebSocketResponse:
        """Return a session with one step behind it."""
        url = f"{self._server.url}/sequences/durable?content_type=text/plain"
        async with self._opening:
            socket = await self._client.ws_connect(url, autoping=True, max_msg_size=0)
            await socket.receive_json(timeout=LIMIT)
            await _step(socket)
        return socket

    async def paced(self, sessions: int, seconds: float) -> tuple[list[float], int]:
        """Let each session have a step per second; return the seconds that each took, and how many had no answer."""
        sockets = await asyncio.gather(*(self._open() for _ in range(sessions)))
        latencies: list[float] = []
        lost = 0

        async def run(socket: aiohttp.ClientWebSocketResponse, begin: float) -> None:
            nonlocal lost
            for number in range(int(seconds)):
                await asyncio.sleep(begin + number - time.perf_counter())
                sent_at = time.perf_counter()
                try:
                    await _step(socket)
                except (TypeError, ValueError, KeyError, TimeoutError):  # closed, or an error instead of an answer
                    lost += 1
                    continue
                latencies.append(time.perf_counter() - sent_at)

        begin = time.perf_counter() + 1
        await asyncio.gather(*(run(socket, begin + number / sessions) for number, socket in enumerate(sockets)))
        await asyncio.gather(*(socket.close() for socket in sockets))
        return latencies, lost

    async def idle_memory(self, sessions: int) -> float:
        """Return the memory of the server in bytes for each of so many sessions that are left alone."""
        before = self._server.memory()
        sockets = await asyncio.gather(*(self._open() for _ in range(sessions)))
        await asyncio.sleep(1)
        after = self._server.memory()
        await asyncio.gather(*(socket.close() for socket in sockets))
        return (after - before) / sessions

    async def rate(self, load: Load, seconds: float) -> float:
        """Return how many steps per second `STEPPING` loads have together."""
        began = time.perf_counter()
        counts = await asyncio.gather(*(load(number, began + seconds) for number in range(STEPPING)))
        return sum(counts) / (time.perf_counter() - began)

    async def steps(self, number: int, end: float) -> int:
        """Step a session, each step when the one before is answered."""
        socket, count = await self._open(), 0
        while time.perf_counter() < end:
            await _step(socket)
            count += 1
        await socket.close()
        return count

    async def requests(self, number: int, end: float) -> int:
        """Step a sequence over HTTP."""
        url, count = f"{self._server.url}/predictions/durable", 0
        headers = {"ts_request_sequence_id": f"http-{number}", "content-type": "text/plain"}
        while time.perf_counter() < end:
            async with self._client.post(url, data=b"1", headers=headers) as response:
                int(await response.read())
            count += 1
        return count


async def _step(socket: aiohttp.ClientWebSocketResponse) -> None:
    await socket.send_json(_STEP)
    answer = await socket.receive_json(timeout=LIMIT)
    int(answer["body"])


def report(result: Result) -> None:
    """Print what was measured, and whether the goals are reached."""
    print(f"{result.sessions} sessions with a step per second each: {result.steps} steps answered, {result.lost} lost")
    print(f"  half within {result.p50:.1f} ms, 99 % within {result.p99:.1f} ms; goal {MOST_P99:g} ms:", end=" ")
    print(_verdict(is_reached=result.p99 < MOST_P99 and not result.lost))
    print(f"{result.idle_sessions} idle sessions: {result.memory:.1f} kB each; goal {MOST_MEMORY:g} kB:", end=" ")
    print(_verdict(is_reached=result.memory <= MOST_MEMORY))
    print(f"{STEPPING} sequences, steps/s (lowest to highest)")
    for name, rates in (("WebSockets", result.over_websockets), ("HTTP", result.over_http)):
        print(f"  {name:<12} {statistics.median(rates):8,.0f} ({min(rates):,.0f} to {max(rates):,.0f})")
    print(f"  ratio {result.ratio:.2f}; goal {LEAST_RATIO:g}: {_verdict(is_reached=result.ratio >= LEAST_RATIO)}")


def _verdict(*, is_reached: bool) -> str:
    return "reached" if is_reached else "MISSED"


if __name__ == "__main__":
    sys.exit(main())
