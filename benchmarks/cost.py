"""What a request costs in processor time, on each way that a request can take, beside the commit in `cost-base`.

    scripts/cost [--check] [--ways TEXT ...] [--rounds N] [--seconds S] [--base COMMIT]

Processor time depends less on what else a machine does than requests per second do. Three servers take turns in an
order that is shuffled each round: this checkout, the base, and the base once more, whose ratio to itself (A/A) says how
much of a difference is noise. While one is measured, the others are suspended. A ratio is the median of the rounds'
ratios, of frontend and worker together.

With ``--check`` the common ways are measured; one that costs more than `LIMIT` times its base, and the noise on top, is
measured again, and the command fails if it does so twice. The base moves downwards only: to a commit on which the ways
cost less.

Needs wrk and h2load.
"""

from __future__ import annotations

import argparse
import random
import secrets
import signal
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path

import psutil

from benchmarks import launchers, open_inference_loads
from benchmarks.benchmark_models import ROOT, BenchmarkModel
from benchmarks.durability import model_with
from benchmarks.loads import HttpLoad, Load, LoadFailed
from benchmarks.servers import Server, ServerFailed
from benchmarks.torchserve_loads import ECHO, ECHO_BATCHES, SEQUENCES, STATEFUL, STREAM, STREAM_CHUNKS, http, sequences

BASE = Path(__file__).with_name("cost-base")
LIMIT = 1.25
WARM_UP_SECONDS = 1
#: The heads that proxies add: each request has another id and another trace, which is not sampled.
INGRESS = {
    "x-request-id": "{n}{n}",
    "traceparent": "00-{n}{n}-{n}-00",
    "x-forwarded-for": "203.0.113.7",
    "x-forwarded-proto": "https",
    "x-forwarded-host": "models.example.com",
    "user-agent": "benchmark/1.0 (wrk)",
}
SAMPLED = {"traceparent": "00-{n}{n}-{n}-01"}
UNSAMPLED = {"traceparent": "00-{n}{n}-{n}-00"}


@dataclass(frozen=True)
class Way:
    """A way that requests take."""

    name: str
    model: BenchmarkModel
    #: Returns the load, which is another one at each call where clients begin sequences.
    load: Callable[[], Load]
    #: Further lines of config.properties, with ``{folder}`` for a folder of the server's own.
    properties: str = ""
    #: By how much a request's cost is divided: the chunks of its answer.
    units: int = 1


def numbered_steps(path: str) -> Callable[[], Load]:
    """Return what makes loads of 32 sequences that no load had before, whose clients number their steps."""
    number = {"ts_request_step": "{step}"}
    return lambda: HttpLoad(SEQUENCES, path, b"2", number, sequences=True, prefix=f"{secrets.token_hex(4)}-")


def fixed(load: Load) -> Callable[[], Load]:
    """Return what always returns this load."""
    return lambda: load


STORED = model_with({"store": "file"})
#: The same models with room for the sequences of all loads.
ROOMY, ROOMY_STORED = (replace(each, config=each.config | {"maxNumSequence": 10_000}) for each in (STATEFUL, STORED))
JOURNALED = replace(ECHO_BATCHES, config=ECHO_BATCHES.config | {"journal": True})
STORED_STEPS = HttpLoad(SEQUENCES, "/predictions/durable", b"2", sequences=True)


def echoes(headers: dict[str, str]) -> Callable[[], Load]:
    """Return what returns requests with these headers, for batches of 8."""
    return fixed(HttpLoad(32, ECHO_BATCHES.probe.path, b"x", headers))


TRACES = "traces={folder}/spans.jsonl\n"
COMMON_WAYS = (
    Way("echo", ECHO, fixed(http(ECHO, 32))),
    Way("echo, batches of 8", ECHO_BATCHES, echoes({})),
    Way("step in memory", STATEFUL, fixed(sequences())),
    Way("stored step", STORED, fixed(STORED_STEPS)),
    Way("stream, a chunk", STREAM, fixed(http(STREAM, 8)), units=STREAM_CHUNKS),
    Way("gRPC ModelInfer", open_inference_loads.ECHO, fixed(open_inference_loads.model_infer())),
)
WAYS_WITH_OPTIONS = (
    Way("ingress' headers", ECHO_BATCHES, echoes(INGRESS)),
    Way("numbered step in memory", ROOMY, numbered_steps("/predictions/stateful")),
    Way("numbered stored step", ROOMY_STORED, numbered_steps("/predictions/durable")),
    Way("traces, not sampled", ECHO_BATCHES, echoes(UNSAMPLED), TRACES),
    Way("traces, sampled", ECHO_BATCHES, echoes(SAMPLED), TRACES),
    Way("journal", JOURNALED, echoes({})),
)


@dataclass(frozen=True)
class Cost:
    """Microseconds of processor time per request, or chunk, of one way."""

    frontend: float
    worker: float

    @property
    def total(self) -> float:
        """Both."""
        return self.frontend + self.worker


@dataclass(frozen=True)
class Compared:
    """One way at both commits: each server's median, and the medians of the rounds' ratios."""

    way: Way
    now: Cost
    base: Cost
    ratio: float
    frontend: float
    control: float

    @property
    def is_too_dear(self) -> bool:
        """Whether it costs more than its base allows, by more than the base differs from itself."""
        return self.ratio > LIMIT * max(self.control, 1 / self.control)


def cost(server: Server, way: Way, seconds: int) -> Cost:
    """Put the way's load on the server and return what a request costs."""
    load, processes = way.load(), [server.frontend(), server.below()[-1]]
    before = [_spent(process) for process in processes]
    started = time.monotonic()
    rate = load.run(server, seconds).requests_per_second
    requests = rate * min(time.monotonic() - started, float(seconds)) * way.units
    frontend, worker = (
        (_spent(process) - past) / requests * 1e6 for process, past in zip(processes, before, strict=True)
    )
    return Cost(frontend, worker)


def _spent(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def compare(way: Way, base: Path, rounds: int, seconds: int) -> Compared:
    """Measure one way on this checkout, the base, and the base again, in turn."""
    with ExitStack() as stack:
        servers = []
        for checkout in (ROOT, base, base):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="cost-"))
            launcher = launchers.this_server(sys.executable, way.properties.format(folder=folder), checkout)
            server = stack.enter_context(Server(launcher, way.model))
            way.load().run(server, WARM_UP_SECONDS)
            server.suspend()
            servers.append(server)
        costs: list[list[Cost]] = [[], [], []]
        for _ in range(rounds):
            for index in random.sample(range(3), 3):
                servers[index].resume()
                costs[index].append(cost(servers[index], way, seconds))
                servers[index].suspend()
    now, before, again = costs
    return Compared(
        way,
        _median(now),
        _median(before),
        statistics.median(mine.total / theirs.total for mine, theirs in zip(now, before, strict=True)),
        statistics.median(mine.frontend / theirs.frontend for mine, theirs in zip(now, before, strict=True)),
        statistics.median(mine.total / theirs.total for mine, theirs in zip(again, before, strict=True)),
    )


def _median(costs: Sequence[Cost]) -> Cost:
    return Cost(statistics.median(each.frontend for each in costs), statistics.median(each.worker for each in costs))


def checkout_of(commit: str, folder: Path) -> Path:
    """Write the server of a commit into the folder. Raises LoadFailed: this clone does not have the commit."""
    archive = ["git", "archive", "--format=tar", commit, "frontend", "backend"]
    made = subprocess.run(archive, cwd=ROOT, capture_output=True, check=False, timeout=60)
    if made.returncode:
        reason = made.stderr.decode(errors="replace").strip()
        raise LoadFailed(f"The base {commit} cannot be measured: {reason}. A shallow clone does not have it.")
    with tarfile.open(fileobj=BytesIO(made.stdout)) as tar:
        tar.extractall(folder, filter="data")
    return folder


def measure(ways: Sequence[Way], base: Path, rounds: int, seconds: int) -> list[Compared]:
    """Compare each way, and print a row for it."""
    print("| way | frontend, worker (µs) | base | ratio | frontend's | A/A |\n|---|---|---|---|---|---|")
    found = []
    for way in ways:
        found.append(each := compare(way, base, rounds, seconds))
        print(
            f"| {way.name} | {each.now.frontend:.1f}, {each.now.worker:.1f} | {each.base.frontend:.1f}, "
            f"{each.base.worker:.1f} | {each.ratio:.2f} | {each.frontend:.2f} | {each.control:.2f} |",
            flush=True,
        )
    return found


def main() -> int:
    """The command. Returns 1 if something failed, or a way costs too much."""
    parser = argparse.ArgumentParser(prog="scripts/cost", description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail if a common way costs more than its base allows")
    parser.add_argument("--ways", nargs="+", metavar="TEXT", help="only ways whose names contain one of these")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each server (default 5)")
    parser.add_argument("--seconds", type=int, default=2, help="length of one load (default 2)")
    parser.add_argument("--base", default=BASE.read_text().split()[0], help="commit to compare with")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers are stopped on the way out
    ways = COMMON_WAYS if options.check else COMMON_WAYS + WAYS_WITH_OPTIONS
    if options.ways:
        ways = tuple(way for way in ways if any(text in way.name for text in options.ways))
    try:
        with tempfile.TemporaryDirectory(prefix="cost-base-") as folder:
            base = checkout_of(options.base, Path(folder))
            found = measure(ways, base, options.rounds, options.seconds)
            if options.check and (dear := [each.way for each in found if each.is_too_dear]):
                found = measure(dear, base, options.rounds, options.seconds)
    except (ServerFailed, LoadFailed) as error:
        print(f"cost: {error}", file=sys.stderr)
        return 1
    too_dear = [each for each in found if options.check and each.is_too_dear]
    for each in too_dear:
        print(f"cost: {each.way.name} costs {each.ratio:.2f} times what it cost at {options.base}", file=sys.stderr)
    return int(bool(too_dear))


if __name__ == "__main__":
    sys.exit(main())
