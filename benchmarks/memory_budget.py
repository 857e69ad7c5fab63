"""More models than memory: a load whose models do not fit together, and beside it as many of them as fit.

    python -m benchmarks.memory_budget [--models 50] [--size 200] [--budget 2000] [--seconds 600] [--rate 5]

The models differ in how often they are asked for: the n-th is asked for in proportion to 1 / n^skew (Zipf). First all
of them share the budget and load on demand. Then the most popular ones that fit have one worker each (`minWorkers: 1`)
and the others are not served. Requests come at random moments, at a mean rate, whether or not earlier ones are
answered. All sizes are in megabytes. The memory of all workers (PSS) is measured from outside, ten times a second.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import statistics
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Self

import aiohttp
import psutil

from benchmarks import launchers
from benchmarks.many_models import ManyModels
from benchmarks.servers import Server

MEGABYTE = 1_000_000
_PSS = re.compile(r"^Pss:\s+(\d+) kB", re.MULTILINE)


@dataclass(frozen=True)
class Load:
    """What is asked for: by ``popularity`` of the models, so many requests per second for so long."""

    popularity: list[float]
    rate: float
    seconds: float


@dataclass
class Seen:
    """What became of the requests: the status of each, and how long those took that were answered (seconds)."""

    statuses: list[int] = field(default_factory=list)
    took: list[float] = field(default_factory=list)


class Watcher:
    """Measures the workers of a server from a thread; ``peak`` is in bytes."""

    def __init__(self, server: Server) -> None:
        self.peak = 0
        self._server = server
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.1):
            self.peak = max(self.peak, sum(_pss(each) for each in self._server.below()))


def _pss(process: psutil.Process) -> int:
    try:
        if "ts.process.worker" not in process.cmdline():
            return 0
        with open(f"/proc/{process.pid}/smaps_rollup", encoding="utf-8") as file:
            found = _PSS.search(file.read())
    except (OSError, psutil.Error):  # it has ended
        return 0
    return int(found[1]) * 1024 if found else 0


async def ask(session: aiohttp.ClientSession, server: Server, model: int, seen: Seen) -> None:
    """Send one request."""
    began = time.perf_counter()
    url = f"{server.url}/predictions/m{model}"
    async with session.post(url, data=b"x", headers=server.authorization) as response:
        await response.read()
    seen.statuses.append(response.status)
    if response.status == 200:
        seen.took.append(time.perf_counter() - began)


async def send(server: Server, load: Load) -> Seen:
    """Send the load, and wait for all answers."""
    draw, seen = random.Random(1), Seen()
    timeout = aiohttp.ClientTimeout(total=600)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session, asyncio.TaskGroup() as group:
        began, due = time.monotonic(), 0.0
        while due < load.seconds:
            await asyncio.sleep(began + due - time.monotonic())
            (model,) = draw.choices(range(len(load.popularity)), load.popularity)
            group.create_task(ask(session, server, model, seen))
            due += draw.expovariate(load.rate)
    return seen


async def counted(server: Server) -> dict[str, float]:
    """Return the sum of each metric over all models."""
    sums: dict[str, float] = {}
    async with aiohttp.ClientSession() as session, session.get(server.metrics_url) as response:
        for line in (await response.text()).splitlines():
            if not line.startswith("#"):
                name = line.partition("{")[0]
                sums[name] = sums.get(name, 0.0) + float(line.rpartition(" ")[2])
    return sums


def report(what: str, seen: Seen, peak: int, sums: dict[str, float]) -> None:
    """Print what was seen."""
    sent, answered = len(seen.statuses), len(seen.took)
    took = statistics.quantiles(seen.took, n=100) if answered > 1 else [0.0] * 99
    print(f"{what}: {sent} requests, {answered} answered ({answered / sent:.1%})")
    others = {status: seen.statuses.count(status) for status in set(seen.statuses) - {200}}
    print(f"  other statuses: {others or 'none'}")
    print(f"  peak of the workers' memory (PSS): {peak / MEGABYTE:,.0f} MB")
    most = max(seen.took, default=0.0)
    print(f"  seconds: median {took[49]:.3f}, p90 {took[89]:.2f}, p99 {took[98]:.2f}, most {most:.2f}")
    if misses := sums.get("ts_model_misses_total"):
        print(f"  found their model loaded: {1 - misses / sent:.1%}")
        print(f"  loads {sums['ts_model_loads_total']:.0f}, evictions {sums['ts_model_evictions_total']:.0f}")
    sys.stdout.flush()


def measure(what: str, models: ManyModels, properties: str, load: Load) -> None:
    """Start a server, and send it the load."""
    launcher = launchers.this_server(sys.executable, f"{properties}metrics_mode=prometheus\n")
    with Server(launcher, models) as server, Watcher(server) as watcher:
        seen = asyncio.run(send(server, load))
        sums = asyncio.run(counted(server))
        report(what, seen, watcher.peak, sums)


def main() -> int:
    """Measure both ways."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=50)
    parser.add_argument("--size", type=int, default=200, help="of a model's weights, in megabytes")
    parser.add_argument("--budget", type=int, default=2000, help="in megabytes")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--rate", type=float, default=5, help="requests per second")
    parser.add_argument("--skew", type=float, default=1.1)
    options = parser.parse_args()
    popularity = [1 / (rank**options.skew) for rank in range(1, options.models + 1)]
    load = Load(popularity, options.rate, options.seconds)
    size = options.size * MEGABYTE
    shared = ManyModels(options.models, size, {"minWorkers": 0, "loading": "on_demand"})
    measure(f"{options.models} models, on demand", shared, f"memory_budget={options.budget}MB\n", load)
    fit = options.budget // (options.size + 20)  # an interpreter takes the rest
    fixed = ManyModels(fit, size, {"minWorkers": 1, "maxWorkers": 1})
    measure(f"the first {fit} with minWorkers: 1", fixed, "", load)
    return 0


if __name__ == "__main__":
    sys.exit(main())
