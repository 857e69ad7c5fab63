"""What durable sequences cost: steps per second with each store beneath the cache, in turn, against none.

    python -m benchmarks.durability [--rounds N] [--seconds S] [--json FILE]

32 sequences step through handlers/durable in batches of up to 32, over HTTP, on one worker. All four servers are up and
warm; while one is measured the others are suspended. The file store is on the disk that holds the system's folder for
temporary files; Redis runs on the same machine, with its log synced to disk every second. Needs wrk and redis-server.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks import launchers
from benchmarks.benchmark_models import ROOT, HandlerModel, Probe
from benchmarks.loads import HttpLoad, LoadFailed
from benchmarks.results import machine_facts
from benchmarks.servers import Server, ServerFailed

SEQUENCES = 32
WARM_UP_SECONDS = 2
REDIS_LIMIT = 10.0
#: What each store should reach of the steps per second without one.
GOALS = {"file": 0.8, "file, fsync": 0.5, "redis": 0.4}


def main() -> int:
    """The command. Returns 1 if something failed, whether goals are met or not."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.durability", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="turns of each store (default 5)")
    parser.add_argument("--seconds", type=int, default=4, help="length of one load run (default 4)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round's values to FILE")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers are stopped on the way out
    try:
        values = measure(options.rounds, options.seconds)
    except (ServerFailed, LoadFailed) as error:
        print(f"durability: {error}", file=sys.stderr)
        return 1
    report(values)
    if options.json:
        options.json.write_text(json.dumps({"machine": machine_facts(), "steps_per_second": values}, indent=2) + "\n")
    return 0


def measure(rounds: int, seconds: int) -> dict[str, list[float]]:
    """Return the steps per second of each round, by store."""
    load = HttpLoad(SEQUENCES, "/predictions/durable", b"2", sequences=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="durability-")))
        redis = stack.enter_context(redis_server(folder))
        caches = {
            "memory": {"store": "memory"},
            "file": {"store": "file", "path": str(folder / "plain.db")},
            "file, fsync": {"store": "file", "path": str(folder / "synced.db"), "fsync": True},
            "redis": {"store": "redis", "url": redis},
        }
        servers: dict[str, Server] = {}
        for name, cache in caches.items():
            server = stack.enter_context(Server(launchers.this_server(sys.executable), model_with(cache)))
            load.run(server, WARM_UP_SECONDS)
            server.suspend()
            servers[name] = server
        values: dict[str, list[float]] = {name: [] for name in servers}
        for number in range(rounds):
            turns = list(servers.items())
            for name, server in turns if number % 2 == 0 else reversed(turns):
                server.resume()
                values[name].append(load.run(server, seconds).requests_per_second)
                server.suspend()
    return values


def model_with(cache: dict[str, Any]) -> HandlerModel:
    """The model of handlers/durable with that beneath its cache."""
    config = {
        "batchSize": SEQUENCES,
        "maxBatchDelay": 5,
        "sequenceBatching": True,
        "sequenceMaxIdleMSec": 300_000,
        "maxNumSequence": 2 * SEQUENCES,
        "maxSequenceJobQueueSize": 8,
        "handler": {"cache": cache},
    }
    probe = Probe("/predictions/durable", b"2", b"2".__eq__, {"ts_request_sequence_id": "first"})
    return HandlerModel("durable", ROOT / "handlers" / "durable" / "durable_handler.py", config, probe)


@contextmanager
def redis_server(folder: Path) -> Iterator[str]:
    """Redis on a free port, and its URL. Raises ServerFailed."""
    if shutil.which("redis-server") is None:
        raise ServerFailed("There is no 'redis-server' on the PATH; on Debian it is the package redis-server.")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
    process = subprocess.Popen([*command, "--appendonly", "yes"], stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + REDIS_LIMIT
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.01)
        else:
            raise ServerFailed("redis-server did not start.")
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.kill()
        process.wait()


def report(values: dict[str, list[float]]) -> None:
    """Print medians, and the median of the rounds' ratios to `memory`."""
    print(f"{SEQUENCES} sequences, batches of up to {SEQUENCES}, one worker: steps/s (lowest to highest)")
    for name, rounds in values.items():
        line = f"  {name:<12} {statistics.median(rounds):8,.0f} ({min(rounds):,.0f} to {max(rounds):,.0f})"
        if name in GOALS:
            ratio = statistics.median(mine / base for mine, base in zip(rounds, values["memory"], strict=True))
            verdict = "reached" if ratio >= GOALS[name] else "MISSED"
            line += f"  {ratio:4.0%} of memory, goal {GOALS[name]:.0%}: {verdict}"
        print(line)


if __name__ == "__main__":
    sys.exit(main())
