"""What a request costs the frontend, HAProxy before it, and Redis behind it, in processor time.

    python -m benchmarks.frontend_cost [--seconds 4]

Requests per second depend on what else a machine does; processor time per request hardly does. The frontend has one
thread for requests: a million divided by its microseconds per request is the rate at which it is saturated.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks import launchers
from benchmarks.benchmark_models import HandlerModel
from benchmarks.durability import SEQUENCES, model_with, redis_server
from benchmarks.loads import HttpLoad, Load, LoadFailed, Target
from benchmarks.servers import START_LIMIT, Server, ServerFailed, free_ports
from benchmarks.torchserve_loads import (
    ECHO,
    ECHO_BATCHES,
    MEBIBYTE,
    STATEFUL,
    STREAM,
    STREAM_CHUNKS,
    http,
    predictions,
    sequences,
)

WARM_UP_SECONDS = 1
FEW = 8  # sequences: batches are small, and the rate still hides what idle processes cost
LOADS: tuple[tuple[str, HandlerModel, Load], ...] = (
    ("echo, batch 1", ECHO, http(ECHO, 32)),
    ("echo, batches of 8", ECHO_BATCHES, http(ECHO_BATCHES, 32)),
    ("32 sequences, batches of 32", STATEFUL, sequences()),
    (f"stream of {STREAM_CHUNKS} chunks", STREAM, http(STREAM, 8)),
    ("echo, 150 kB there and back", ECHO, http(ECHO, 8, b"x" * 150_000)),
    ("echo, 1 MiB there and back", ECHO, http(ECHO, 8, b"x" * MEBIBYTE)),
    ("gRPC echo, batch 1", ECHO, predictions(ECHO, 32)),
)
HAPROXY = """
defaults
    timeout connect 2s
    timeout client 150s
    timeout server 150s
    mode http

frontend http
    bind 127.0.0.1:{http}
    default_backend servers

frontend grpc
    bind 127.0.0.1:{grpc} proto h2
    default_backend grpc_servers

backend servers
    balance hdr(ts_request_sequence_id)
    hash-type consistent
    server server1 {url}

backend grpc_servers
    balance hdr(ts_request_sequence_id)
    hash-type consistent
    server server1 {grpc_target} proto h2
"""


@dataclass(frozen=True)
class Proxy:
    """A HAProxy before one server, as clients see it."""

    url: str
    grpc_target: str
    authorization: dict[str, str]


@contextmanager
def haproxy(server: Server) -> Iterator[tuple[Proxy, psutil.Process]]:
    """Run HAProxy as deploy/haproxy.cfg does."""
    port, grpc_port = free_ports(2)
    text = HAPROXY.format(
        http=port, grpc=grpc_port, url=server.url.removeprefix("http://"), grpc_target=server.grpc_target
    )
    with tempfile.NamedTemporaryFile("w", suffix=".cfg") as config:
        config.write(text)
        config.flush()
        process = psutil.Popen(["haproxy", "-db", "-q", "-f", config.name], stdin=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + START_LIMIT
            while not process.net_connections():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise LoadFailed("HAProxy did not start.")
                time.sleep(0.05)
            yield Proxy(f"http://127.0.0.1:{port}", f"127.0.0.1:{grpc_port}", server.authorization), process
        finally:
            process.terminate()
            process.wait(START_LIMIT)


def microseconds(load: Load, target: Target, seconds: int, processes: list[psutil.Process]) -> list[float]:
    """Put the load on the target; return what a request cost each process."""
    load.run(target, WARM_UP_SECONDS)
    before = [_spent(process) for process in processes]
    started = time.monotonic()
    rate = load.run(target, seconds).requests_per_second
    took = min(time.monotonic() - started, float(seconds))
    return [(_spent(process) - past) / (rate * took) * 1e6 for process, past in zip(processes, before, strict=True)]


def _spent(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def print_costs(seconds: int) -> None:
    """Print what each load costs the frontend, the worker and HAProxy."""
    print("| requests | frontend | saturated at | worker | HAProxy | HAProxy per core |\n|---|---|---|---|---|---|")
    for name, model, load in LOADS:
        with Server(launchers.this_server(sys.executable), model) as server:
            frontend, worker = server.frontend(), server.below()[-1]
            direct, of_worker = microseconds(load, server, seconds, [frontend, worker])
            with haproxy(server) as (proxy, process):
                [of_proxy] = microseconds(load, proxy, seconds, [process])
        print(
            f"| {name} | {direct:,.0f} µs | {1e6 / direct:,.0f}/s | {of_worker:,.0f} µs | {of_proxy:,.0f} µs "
            f"| {1e6 / of_proxy:,.0f}/s |",
            flush=True,
        )


def print_costs_of_redis(seconds: int) -> None:
    """Print what a step of a durable sequence costs Redis, in large and in small batches."""
    print("\n| durable steps | frontend | worker | Redis | Redis is saturated at |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="frontend-cost-") as folder, redis_server(Path(folder)) as url:
        [redis] = [each for each in psutil.Process().children() if each.name() == "redis-server"]
        with Server(launchers.this_server(sys.executable), model_with({"store": "redis", "url": url})) as server:
            processes = [server.frontend(), server.below()[-1], redis]
            for number in (SEQUENCES, FEW):
                load = HttpLoad(number, "/predictions/durable", b"2", sequences=True)
                direct, of_worker, of_redis = microseconds(load, server, seconds, processes)
                print(
                    f"| of {number} sequences | {direct:,.0f} µs | {of_worker:,.0f} µs | {of_redis:,.0f} µs "
                    f"| {1e6 / of_redis:,.0f}/s |",
                    flush=True,
                )


def main() -> int:
    """The command. Returns 1 if a server or a load failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.frontend_cost", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=4, help="length of one load (default 4)")
    seconds = parser.parse_args().seconds
    try:
        print_costs(seconds)
        print_costs_of_redis(seconds)
    except (LoadFailed, ServerFailed) as error:
        print(f"frontend_cost: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
