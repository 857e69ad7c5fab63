"""Loads gRPC servers: how many calls, or parts of streams, a server with TorchServe's protocol answers per second.

    python -m benchmarks.grpc_load [--rounds N] [--seconds S] [--in-flight N] [--torchserve HOST:PORT]

Starts this server with the echo model (batch 1, batches of 8) and with one that streams 100 parts, and a bare grpc.aio
server beside it; they take turns for N rounds, the one that is not measured suspended. Printed are the medians, and the
median over the rounds of the part of the bare figure that is reached. A TorchServe at HOST:PORT takes turns as well;
it must serve the models `echo` and `stream`, and whoever started it says what its batches are. `measure` is for other
comparisons.

The client is one process that sends ready-made bytes, so that it costs as little as a client in Python can.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil
import uvloop
from grpc import aio

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "frontend"))


from benchmarks import servers
from benchmarks.archives import ROOT, BenchmarkModel
from benchmarks.figures import ECHO, ECHO_BATCHES, STREAM, STREAM_CHUNKS
from benchmarks.loads import LoadFailed
from benchmarks.results import OURS
from torchserve_py.api.grpc.protos import inference_pb2 as messages

SERVICE = "/org.pytorch.serve.grpc.inference.InferenceAPIsService"
BARE = "bare grpc.aio"
WARM_UP_SECONDS = 2.0
START_LIMIT = 30.0


@dataclass(frozen=True)
class GrpcLoad:
    """What the client does: so many calls in flight, each followed by the next as soon as it is answered."""

    title: str
    model: BenchmarkModel
    in_flight: int
    streams: bool = False

    @property
    def request(self) -> bytes:
        """The message that is sent."""
        message = messages.PredictionsRequest(model_name=self.model.name, input={"data": self.model.body})
        return message.SerializeToString()

    @property
    def answer(self) -> list[bytes]:
        """The messages that must come back."""
        bodies = [b"token "] * STREAM_CHUNKS if self.streams else [self.model.answer]
        return [messages.PredictionResponse(prediction=body).SerializeToString() for body in bodies]


def loads(in_flight: int) -> list[GrpcLoad]:
    """What is measured."""
    return [
        GrpcLoad("echo, batch 1", ECHO, in_flight),
        GrpcLoad("echo, batches of 8", ECHO_BATCHES, in_flight),
        GrpcLoad("stream of 100 parts, 8 clients", STREAM, 8, streams=True),
    ]


def measure(load: GrpcLoad, target: str, seconds: float) -> float:
    """Put the load on the server at ``host:port``. Returns calls per second; of streams, parts per second.

    Raises LoadFailed unless every call is answered rightly.
    """
    try:
        return uvloop.run(_measure(load, target, seconds))
    except (aio.AioRpcError, TimeoutError) as error:
        raise LoadFailed(f"{target} failed: {error}") from error


async def _measure(load: GrpcLoad, target: str, seconds: float) -> float:
    async with aio.insecure_channel(target) as channel:
        await asyncio.wait_for(channel.channel_ready(), START_LIMIT)
        call = _stream(channel, load) if load.streams else _unary(channel, load)
        started = time.perf_counter()
        counts = await asyncio.gather(*(_repeat(call, started + seconds) for _ in range(load.in_flight)))
        return sum(counts) / (time.perf_counter() - started)


async def _repeat(call: Callable[[], Awaitable[int]], end: float) -> int:
    count = 0
    while time.perf_counter() < end:
        count += await call()
    return count


def _unary(channel: aio.Channel, load: GrpcLoad) -> Callable[[], Awaitable[int]]:
    predict = channel.unary_unary(f"{SERVICE}/Predictions")
    request, (answer,) = load.request, load.answer

    async def call() -> int:
        if await predict(request) != answer:
            raise LoadFailed("An answer of Predictions is not the right one.")
        return 1

    return call


def _stream(channel: aio.Channel, load: GrpcLoad) -> Callable[[], Awaitable[int]]:
    predict = channel.unary_stream(f"{SERVICE}/StreamPredictions")
    request, answer = load.request, load.answer

    async def call() -> int:
        parts = [part async for part in predict(request)]
        if parts != answer:
            raise LoadFailed("An answer of StreamPredictions is not the right one.")
        return len(parts)

    return call


class Suspendable(Protocol):
    """A server that can be kept from running while another is measured."""

    def suspend(self) -> None: ...

    def resume(self) -> None: ...


class BareServer:
    """benchmarks/bare_grpc.py as a process."""

    def __init__(self, port: int) -> None:
        self.target = f"127.0.0.1:{port}"
        launched = subprocess.Popen([sys.executable, "-m", "benchmarks.bare_grpc", str(port)], cwd=ROOT)
        self.process = psutil.Process(launched.pid)

    def suspend(self) -> None:
        """Stop it from running at all."""
        self.process.suspend()

    def resume(self) -> None:
        """Let it run again."""
        self.process.resume()


@contextmanager
def bare_server(port: int) -> Iterator[BareServer]:
    """A bare server that ends with the context."""
    server = BareServer(port)
    try:
        yield server
    finally:
        server.resume()
        server.process.terminate()
        server.process.wait(START_LIMIT)


def main() -> int:
    """The command. Returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9, help="turns of each server (default: 9)")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a turn (default: 2)")
    parser.add_argument("--in-flight", type=int, default=32, help="unary calls at a time (default: 32)")
    parser.add_argument("--torchserve", metavar="HOST:PORT", help="gRPC address of a TorchServe to measure, too")
    options = parser.parse_args()
    for load in loads(options.in_flight):
        figures = _compare(load, options)
        for name, rounds in figures.items():
            ratio = statistics.median(own / bare for own, bare in zip(rounds, figures[BARE], strict=True))
            figure = statistics.median(rounds)
            print(f"{load.title:32} {name:16} {figure:9.0f} /s  {ratio:5.0%} of the bare server", flush=True)
    return 0


def _compare(load: GrpcLoad, options: argparse.Namespace) -> dict[str, list[float]]:
    """The figures of each round, by server."""
    launcher = servers.this_server(sys.executable)
    with servers.Server(launcher, load.model) as ours, bare_server(servers.free_port()) as bare:
        turns: dict[str, tuple[str, Suspendable]] = {
            OURS: (ours.grpc_target, ours),
            BARE: (bare.target, bare),
        }
        for target, _ in turns.values():
            measure(load, target, WARM_UP_SECONDS)
        found: dict[str, list[float]] = {name: [] for name in turns}
        if options.torchserve:
            measure(load, options.torchserve, WARM_UP_SECONDS)
            found["TorchServe"] = []
        for _, server in turns.values():
            server.suspend()
        for _ in range(options.rounds):
            for name, (target, server) in turns.items():
                server.resume()
                found[name].append(measure(load, target, options.seconds))
                server.suspend()
            if options.torchserve:
                found["TorchServe"].append(measure(load, options.torchserve, options.seconds))
    return found


if __name__ == "__main__":
    sys.exit(main())
