"""How busy a device is kept that only takes time: the share of the seconds that are spent in the handler's steps.

    python -m benchmarks.device [--torchserve FOLDER] [--against CHECKOUT] [--steps 1 5 20] [--bodies 1000 150000]
                                [--answers 100 0] [--changing] [--rounds 3] [--seconds 3]
    python -m benchmarks.device --stores [--steps 5 20] [--rounds 3] [--seconds 3]

One worker, batches of 8, 32 connections; with ``--stores`` 48 sequences in batches of 16, with each store beneath their
states. What a step does not take is the work between two steps: to encode and send answers, to commit states, and to
receive and decode the next batch. Behind each share stands how many rows a second went through the device: a device
that is busy with batches that are not full does less.
"""

from __future__ import annotations

import argparse
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import launchers
from benchmarks.benchmark_models import SOURCES, HandlerModel, Probe
from benchmarks.durability import redis_server
from benchmarks.loads import HttpLoad
from benchmarks.servers import Server

CONNECTIONS = 32
BATCH = 8
SEQUENCES = 48
SEQUENCE_BATCH = 16
WARM_UP_SECONDS = 1
SETTLE_SECONDS = 0.5
_SECONDS = struct.Struct("d")
#: What differs between the servers that are compared: who starts a server, and further settings of its model.
Candidates = dict[str, tuple[launchers.Launcher, dict[str, Any]]]


def main() -> int:
    """Measure, and print a line for each step and each size of body, or for each step with all stores."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torchserve", type=Path, metavar="FOLDER", help="virtual environment with TorchServe")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="another checkout of this project")
    parser.add_argument("--steps", type=float, nargs="+", default=[1, 5, 20], help="milliseconds")
    parser.add_argument("--bodies", type=int, nargs="+", default=[1_000, 150_000], help="bytes")
    parser.add_argument("--answers", type=int, nargs="+", default=[100, 0], help="bytes; 0: as large as the body")
    parser.add_argument("--changing", action="store_true", help="the sizes of bodies take turns on the same servers")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--stores", action="store_true", help="compare the stores of durable sequences")
    options = parser.parse_args()
    with ExitStack() as stack:
        if options.stores:
            loads = {f"{SEQUENCES} sequences": HttpLoad(SEQUENCES, "/predictions/device", b"x", sequences=True)}
            settings: list[tuple[str, dict[str, Any]]] = [("", {})]
            candidates = stores(stack)
        else:
            post = partial(HttpLoad, CONNECTIONS, "/predictions/device")
            loads = {f"bodies of {size:,} bytes": post(b"x" * size) for size in options.bodies}
            settings = [
                (f", answers of {size:,} bytes", {"answer_bytes": size}) if size else (", answers as large", {})
                for size in options.answers
            ]
            candidates = {"this server": (launchers.this_server(sys.executable), {})}
            if options.against:
                other = launchers.this_server(sys.executable, checkout=options.against.resolve())
                candidates["the other checkout"] = other, {}
            if options.torchserve:
                candidates["TorchServe"] = launchers.torchserve(options.torchserve), {}
        groups = [loads] if options.changing else [{what: load} for what, load in loads.items()]
        for group, (answers, handler), step in product(groups, settings, options.steps):
            measured = measure(candidates, {"step_ms": step, **handler}, group, options.rounds, options.seconds)
            for what, of_each in measured.items():
                line = ", ".join(f"{name} {_shown(turns)}" for name, turns in of_each.items())
                print(f"{what}{answers}, steps of {step:g} ms: {line}", flush=True)
    return 0


def stores(stack: ExitStack) -> Candidates:
    """Return a candidate for each store of durable sequences, which lasts as long as ``stack``."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="device-")))
    caches: dict[str, dict[str, Any]] = {
        "memory": {"store": "memory"},
        "file": {"store": "file", "path": str(folder / "plain.db")},
        "file, fsync": {"store": "file", "path": str(folder / "synced.db"), "fsync": True},
        "redis": {"store": "redis", "url": stack.enter_context(redis_server(folder))},
    }
    sequences = {
        "batchSize": SEQUENCE_BATCH,
        "sequenceBatching": True,
        "sequenceMaxIdleMSec": 300_000,
        "maxNumSequence": 2 * SEQUENCES,
    }
    launcher = launchers.this_server(sys.executable)
    return {name: (launcher, {**sequences, "handler": {"cache": cache}}) for name, cache in caches.items()}


class Turn(NamedTuple):
    """What came of one load on one server: the share of the time that the device was busy, and rows per second."""

    share: float
    rows: float


#: The turns of each server, by name, under each load.
Measured = dict[str, dict[str, list[Turn]]]


def measure(
    candidates: Candidates, handler: dict[str, Any], loads: Mapping[str, HttpLoad], rounds: int, seconds: int
) -> Measured:
    """Measure each server under each load in each round; one server runs at a time.

    Args:
        handler: Settings of the model's handler.
        loads: The loads, which take turns on the same servers.
    """
    with ExitStack() as stack:
        servers: dict[str, tuple[Server, Path]] = {}
        for name, (launcher, settings) in candidates.items():
            file = Path(stack.enter_context(tempfile.NamedTemporaryFile()).name)
            file.write_bytes(_SECONDS.pack(0.0))
            server = stack.enter_context(Server(launcher, model_with(handler, file, settings)))
            for load in loads.values():
                load.run(server, WARM_UP_SECONDS)
            time.sleep(SETTLE_SECONDS)
            server.suspend()
            servers[name] = server, file
        measured: Measured = {what: {name: [] for name in servers} for what in loads}
        for number in range(rounds):
            turns = list(servers.items())
            for name, (server, file) in turns if number % 2 == 0 else reversed(turns):
                server.resume()
                for what, load in loads.items():
                    began, busy = time.perf_counter(), _busy_seconds(file)
                    rows = load.run(server, seconds).requests_per_second
                    share = (_busy_seconds(file) - busy) / (time.perf_counter() - began)
                    measured[what][name].append(Turn(share, rows))
                time.sleep(SETTLE_SECONDS)  # a step that is suspended would seem to last until it goes on
                server.suspend()
    return measured


def _shown(turns: list[Turn]) -> str:
    share, rows = (statistics.median(values) for values in zip(*turns, strict=True))
    return f"{share:.1%} ({rows:,.0f} rows/s)"


def model_with(handler: dict[str, Any], busy_file: Path, settings: dict[str, Any]) -> HandlerModel:
    """Return the model with settings of its handler, and further settings."""
    handler = {**handler, "busy_file": str(busy_file), **settings.get("handler", {})}
    config = {"batchSize": BATCH, "maxBatchDelay": 5, **settings, "handler": handler}
    sequence = {"ts_request_sequence_id": "first"} if "sequenceBatching" in settings else {}
    probe = Probe("/predictions/device", b"x", b"x".__eq__, sequence)
    return HandlerModel("device", SOURCES / "device_handler.py", config, probe)


def _busy_seconds(file: Path) -> float:
    return float(_SECONDS.unpack(file.read_bytes())[0])


if __name__ == "__main__":
    sys.exit(main())
