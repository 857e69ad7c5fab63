"""How busy a device is kept that only takes time: the share of the seconds that are spent in the handler's steps.

    python -m benchmarks.device [--torchserve FOLDER] [--steps 1 5 20] [--bodies 1000 150000] [--rounds 3] [--seconds 3]

One worker, batches of 8, 32 connections. What a step does not take is the work between two steps: to encode and send
answers, and to receive and decode the next batch.
"""

from __future__ import annotations

import argparse
import statistics
import struct
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks import launchers
from benchmarks.benchmark_models import SOURCES, HandlerModel, Probe
from benchmarks.loads import HttpLoad
from benchmarks.servers import Server

CONNECTIONS = 32
BATCH = 8
WARM_UP_SECONDS = 1
SETTLE_SECONDS = 0.5
_SECONDS = struct.Struct("d")


def main() -> int:
    """Measure, and print a line for each step and size of body."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torchserve", type=Path, metavar="FOLDER", help="virtual environment with TorchServe")
    parser.add_argument("--steps", type=float, nargs="+", default=[1, 5, 20], help="milliseconds")
    parser.add_argument("--bodies", type=int, nargs="+", default=[1_000, 150_000], help="bytes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=3)
    options = parser.parse_args()
    candidates = {"this server": launchers.this_server(sys.executable)}
    if options.torchserve:
        candidates["TorchServe"] = launchers.torchserve(options.torchserve)
    for size in options.bodies:
        for step in options.steps:
            shares = measure(candidates, step, size, options.rounds, options.seconds)
            line = ", ".join(f"{name} {statistics.median(values):.1%}" for name, values in shares.items())
            print(f"bodies of {size:,} bytes, steps of {step:g} ms: {line}", flush=True)
    return 0


def measure(
    candidates: dict[str, launchers.Launcher], step: float, size: int, rounds: int, seconds: int
) -> dict[str, list[float]]:
    """Return the share of the time that the device is busy, for each server and round; one server runs at a time."""
    with ExitStack() as stack:
        servers: dict[str, tuple[Server, Path]] = {}
        load = HttpLoad(CONNECTIONS, "/predictions/device", b"x" * size)
        for name, launcher in candidates.items():
            file = Path(stack.enter_context(tempfile.NamedTemporaryFile()).name)
            file.write_bytes(_SECONDS.pack(0.0))
            server = stack.enter_context(Server(launcher, model_with(step, file)))
            load.run(server, WARM_UP_SECONDS)
            time.sleep(SETTLE_SECONDS)
            server.suspend()
            servers[name] = server, file
        shares: dict[str, list[float]] = {name: [] for name in servers}
        for number in range(rounds):
            turns = list(servers.items())
            for name, (server, file) in turns if number % 2 == 0 else reversed(turns):
                server.resume()
                began, busy = time.perf_counter(), _busy_seconds(file)
                load.run(server, seconds)
                shares[name].append((_busy_seconds(file) - busy) / (time.perf_counter() - began))
                time.sleep(SETTLE_SECONDS)  # a step that is suspended would seem to last until it goes on
                server.suspend()
    return shares


def model_with(step: float, busy_file: Path) -> HandlerModel:
    """Return the model whose steps take so many milliseconds."""
    config = {
        "batchSize": BATCH,
        "maxBatchDelay": 5,
        "handler": {"step_ms": step, "busy_file": str(busy_file)},
    }
    probe = Probe("/predictions/device", b"x", b"x".__eq__)
    return HandlerModel("device", SOURCES / "device_handler.py", config, probe)


def _busy_seconds(file: Path) -> float:
    return float(_SECONDS.unpack(file.read_bytes())[0])


if __name__ == "__main__":
    sys.exit(main())
