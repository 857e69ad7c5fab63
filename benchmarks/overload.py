"""What a server does when more is asked of it than it can do: answers in time, and calls of the handler in vain.

    python -m benchmarks.overload [--times 3] [--step 100] [--patience 1] [--seconds 30]
                                  [--against CHECKOUT] [--torchserve FOLDER]

One worker whose steps only take time, and the default queue. Requests come at random moments, at a rate that does not
depend on the answers, and their clients give up after a while: over HTTP by closing the connection, with and without
a header that says when, and over gRPC by a deadline. Goodput is how many are answered in time, as a share of what the
worker can do; in vain are the handler's calls whose answer nobody waits for any more.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import struct
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import aiohttp
import grpc

from benchmarks import launchers
from benchmarks.benchmark_models import SOURCES, HandlerModel, Probe
from benchmarks.servers import Server
from torchserve_py.apis.grpc.protos.inference_pb2 import PredictionsRequest
from torchserve_py.apis.grpc.protos.inference_pb2_grpc import InferenceAPIsServiceStub

WARM_UP_CALLS = 5
#: Requests that come in the first seconds do not count: the queue has yet to fill.
SETTLE_SECONDS = 3.0
PATH = "/predictions/device"
_BUSY_SECONDS = struct.Struct("d")

#: Makes one request; raises what `_GAVE_UP` names if there is no answer in time.
Ask = Callable[[], Awaitable[None]]
_GAVE_UP = (TimeoutError, aiohttp.ClientError, grpc.RpcError)


class Options(NamedTuple):
    """How many times as many requests as the worker can do; seconds of a step, of a client's patience, of the load."""

    times: float
    step: float
    patience: float
    seconds: float


class Outcome(NamedTuple):
    """Of the counted seconds: requests, how many of them were answered in time, calls of the handler."""

    asked: int
    in_time: int
    calls: float


def main() -> int:
    """Measure, and print a line for each server and each kind of client."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=float, default=3.0, help="requests, as a multiple of what the worker can do")
    parser.add_argument("--step", type=float, default=100.0, help="milliseconds")
    parser.add_argument("--patience", type=float, default=1.0, help="seconds after which a client gives up")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="another checkout of this project")
    parser.add_argument("--torchserve", type=Path, metavar="FOLDER", help="virtual environment with TorchServe")
    given = parser.parse_args()
    options = Options(given.times, given.step / 1000, given.patience, given.seconds)
    candidates: dict[str, launchers.Launcher] = {"this server": launchers.this_server(sys.executable)}
    if given.against:
        other = launchers.this_server(sys.executable, checkout=given.against.resolve())
        candidates["the other checkout"] = other
    if given.torchserve:
        candidates["TorchServe"] = launchers.torchserve(given.torchserve)
    for name, launcher in candidates.items():
        for clients in ("HTTP", "HTTP with a time limit", "gRPC"):
            outcome = measure(launcher, clients, options)
            goodput = outcome.in_time * options.step / options.seconds
            in_vain = max(0.0, 1 - outcome.in_time / outcome.calls)
            print(
                f"{name}, {clients}: {outcome.in_time / options.seconds:.1f} answers/s in time, goodput {goodput:.1%},"
                f" {in_vain:.1%} of {outcome.calls:.0f} calls in vain, {outcome.asked} requests",
                flush=True,
            )
    return 0


def measure(launcher: launchers.Launcher, clients: str, options: Options) -> Outcome:
    """Return what became of the requests of one kind of clients to a server of their own."""
    with tempfile.NamedTemporaryFile() as busy:
        busy.write(_BUSY_SECONDS.pack(0.0))
        busy.flush()
        handler = {"step_ms": options.step * 1000, "busy_file": busy.name}
        probe = Probe(PATH, b"x", b"x".__eq__)
        model = HandlerModel("device", SOURCES / "device_handler.py", {"batchSize": 1, "handler": handler}, probe)

        def calls() -> float:
            return float(_BUSY_SECONDS.unpack(Path(busy.name).read_bytes())[0]) / options.step

        with Server(launcher, model) as server:
            for _ in range(WARM_UP_CALLS):
                server.predict()
            return asyncio.run(_offer(server, clients, options, calls))


async def _offer(server: Server, clients: str, options: Options, calls: Callable[[], float]) -> Outcome:
    """Let requests come at their rate."""
    rng = random.Random(1)
    rate = options.times / options.step
    async with AsyncExitStack() as stack:
        ask = await _asker(stack, server, clients, options.patience)
        asked = in_time = 0

        async def one(*, counts: bool) -> None:
            nonlocal in_time
            try:
                await ask()
            except _GAVE_UP:
                return
            in_time += counts

        async with asyncio.TaskGroup() as group:
            begin = at = time.monotonic()
            calls_before: float | None = None
            while (at := at + rng.expovariate(rate)) < begin + SETTLE_SECONDS + options.seconds:
                await asyncio.sleep(max(0.0, at - time.monotonic()))
                counts = at >= begin + SETTLE_SECONDS
                if counts and calls_before is None:
                    calls_before = calls()
                asked += counts
                group.create_task(one(counts=counts))
            done = calls() - (calls_before or 0.0)
        return Outcome(asked, in_time, done)


async def _asker(stack: AsyncExitStack, server: Server, clients: str, patience: float) -> Ask:
    """Return what makes one request as clients of this kind do."""
    if clients == "gRPC":
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(server.grpc_target))
        stub = InferenceAPIsServiceStub(channel)  # type: ignore[no-untyped-call]
        metadata = [(name.lower(), value) for name, value in server.authorization.items()]

        async def call() -> None:
            request = PredictionsRequest(model_name="device", input={"data": b"x"})
            await stub.Predictions(request, timeout=patience, metadata=metadata)

        return call
    headers = dict(server.authorization)
    if clients != "HTTP":
        headers["x-request-timeout-ms"] = f"{patience * 1000:.0f}"
    session = await stack.enter_async_context(
        aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=patience), headers=headers
        )
    )

    async def post() -> None:
        async with session.post(f"{server.url}{PATH}", data=b"x", raise_for_status=True) as response:
            await response.read()

    return post


if __name__ == "__main__":
    sys.exit(main())
