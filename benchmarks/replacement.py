"""How soon a killed worker of a torch model is replaced, and how much memory workers take: forked, and not.

    python -m benchmarks.replacement [--workers 4] [--rounds 9]

The time is that from SIGKILL to the next answer, with one worker. The memory is the proportional set size (PSS) of all
processes but the server's own, once every worker has answered.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from contextlib import ExitStack

import psutil

from benchmarks import launchers
from benchmarks.benchmark_models import SOURCES, HandlerModel, Probe
from benchmarks.servers import Server

MEBIBYTE = 1 << 20
SETTLE_SECONDS = 1.0
#: The server delays the restart of a worker that has died again before it was ready for this long (seconds).
STABLE_SECONDS = 10.5
LIMIT_SECONDS = 60.0


def main() -> int:
    """Measure, and print a line for each way to start workers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    candidates = {
        name: launchers.this_server(sys.executable, f"fork_workers={value}\n")
        for name, value in (("forked", "true"), ("not forked", "false"))
    }
    with ExitStack() as stack:
        servers = {name: stack.enter_context(Server(each, model_with(1))) for name, each in candidates.items()}
        seconds: dict[str, list[float]] = {name: [] for name in servers}
        for _ in range(options.rounds):
            time.sleep(STABLE_SECONDS)
            for name, server in servers.items():
                seconds[name].append(replacement_seconds(server))
                time.sleep(SETTLE_SECONDS)
    for name, launcher in candidates.items():
        with Server(launcher, model_with(options.workers)) as server:
            size = memory(server, options.workers) / MEBIBYTE
        median, most = statistics.median(seconds[name]), max(seconds[name])
        print(f"{name}: replaced in {median:.2f} s (longest {most:.2f} s); {options.workers} workers: {size:.0f} MiB")
    return 0


def replacement_seconds(server: Server) -> float:
    """Kill the worker; return how many seconds it takes until the model answers again."""
    (worker,) = workers_of(server)
    began = time.perf_counter()
    worker.kill()
    while server.predict() is None or worker.is_running():
        if time.perf_counter() > began + LIMIT_SECONDS:
            raise RuntimeError(f"The worker was not replaced within {LIMIT_SECONDS:g} s.")
        time.sleep(0.002)
    return time.perf_counter() - began


def memory(server: Server, count: int) -> int:
    """Return the memory of the workers and of what they were forked from, in bytes, once all of them are ready."""
    end = time.monotonic() + LIMIT_SECONDS
    while len(workers_of(server)) < count and time.monotonic() < end:
        time.sleep(SETTLE_SECONDS)
    for _ in range(50 * count):
        server.predict()
    time.sleep(SETTLE_SECONDS)
    return sum(process.memory_full_info().pss for process in server.below())


def workers_of(server: Server) -> list[psutil.Process]:
    """Return the worker processes of a server."""
    return [process for process in server.below() if "ts.process.worker" in process.cmdline()]


def model_with(workers: int) -> HandlerModel:
    """Return the model with so many workers."""
    probe = Probe("/predictions/torch", b"x", lambda answer: answer == b"1000")
    config = {"minWorkers": workers, "maxWorkers": workers}
    return HandlerModel("torch", SOURCES / "torch_handler.py", config, probe)


if __name__ == "__main__":
    sys.exit(main())
