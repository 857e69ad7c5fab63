"""What a greedy client costs the others of a model.

    python -m benchmarks.fair_use [--clients 10] [--step 20] [--batch 1] [--load 0.6] [--greedy 3] [--seconds 20]
                                  [--rounds 3] [--against CHECKOUT]

Clients have addresses of their own (127.0.1.1 and so on) and send requests at random moments, at rates that do not
depend on the answers. All but the last share ``load`` of what the one worker can do. In turns, the last sends as few as
each of them, and then ``greedy`` times what the worker can do. Printed is how long the others wait for their answers,
and how many of them are refused.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import struct
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import aiohttp

from benchmarks import launchers
from benchmarks.benchmark_models import SOURCES, HandlerModel, Probe
from benchmarks.servers import Server

WARM_UP_CALLS = 5
#: Requests that come in the first seconds do not count: the queue has yet to fill.
SETTLE_SECONDS = 2.0
PATH = "/predictions/device"
#: After so many seconds a client gives up.
PATIENCE = 10.0


class Options(NamedTuple):
    """See the flags; ``step`` in seconds."""

    clients: int
    step: float
    batch: int
    load: float
    greedy: float
    seconds: float
    rounds: int

    @property
    def capacity(self) -> float:
        """Requests per second that the worker can do."""
        return self.batch / self.step

    @property
    def rate(self) -> float:
        """Requests per second of a client that is not greedy."""
        return self.load * self.capacity / (self.clients - 1)


@dataclass
class Seen:
    """What became of the requests of the clients that are not greedy."""

    seconds: list[float] = field(default_factory=list)
    unanswered: int = 0

    def quantile(self, share: float) -> float:
        """Return how long that share of the answers took at most (seconds)."""
        return sorted(self.seconds)[min(len(self.seconds) - 1, int(share * len(self.seconds)))]


def main() -> int:
    """Measure, and print a line for each server and each behaviour of the last client."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--step", type=float, default=20.0, help="milliseconds")
    parser.add_argument("--batch", type=int, default=1, help="requests that run at once")
    parser.add_argument("--load", type=float, default=0.6, help="of all but the greedy client, as a share of capacity")
    parser.add_argument("--greedy", type=float, default=3.0, help="of the greedy client, as a multiple of capacity")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="another checkout of this project")
    given = parser.parse_args()
    options = Options(
        *(given.clients, given.step / 1000, given.batch, given.load, given.greedy, given.seconds, given.rounds)
    )
    candidates = {"this server": launchers.this_server(sys.executable)}
    if given.against:
        candidates["the other checkout"] = launchers.this_server(sys.executable, checkout=given.against.resolve())
    for name, launcher in candidates.items():
        for greedy, rounds in measure(launcher, options).items():
            median, worst = (statistics.median(each.quantile(share) for each in rounds) * 1000 for share in (0.5, 0.99))
            unanswered = sum(each.unanswered for each in rounds)
            asked = unanswered + sum(len(each.seconds) for each in rounds)
            last = "a greedy client" if greedy else "no greedy client"
            print(
                f"{name}, {last}: p50 {median:.1f} ms, p99 {worst:.1f} ms, {unanswered} of {asked} without an answer",
                flush=True,
            )
    return 0


def measure(launcher: launchers.Launcher, options: Options) -> dict[bool, list[Seen]]:
    """Return what the others saw in each round, by whether the last client was greedy."""
    with tempfile.NamedTemporaryFile() as busy:
        busy.write(struct.pack("d", 0.0))
        busy.flush()
        handler = {"step_ms": options.step * 1000, "busy_file": busy.name}
        settings = {"batchSize": options.batch, "maxBatchDelay": 1, "handler": handler}
        model = HandlerModel("device", SOURCES / "device_handler.py", settings, Probe(PATH, b"x", b"x".__eq__))
        seen: dict[bool, list[Seen]] = {False: [], True: []}
        with Server(launcher, model) as server:
            for _ in range(WARM_UP_CALLS):
                server.predict()
            for number in range(options.rounds):
                for greedy, rounds in seen.items():
                    rounds.append(asyncio.run(_offer(server, options, greedy=greedy, seed=number)))
        return seen


async def _offer(server: Server, options: Options, *, greedy: bool, seed: int) -> Seen:
    """Let requests of all clients come at their rates."""
    seen, none = Seen(), Seen()
    rates = [options.rate] * (options.clients - 1)
    rates.append(options.greedy * options.capacity if greedy else options.rate)
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        for number, rate in enumerate(rates):
            connector = aiohttp.TCPConnector(limit=0, local_addr=(f"127.0.1.{number + 1}", 0))
            session = await stack.enter_async_context(
                aiohttp.ClientSession(
                    connector=connector,
                    headers=server.authorization,
                    timeout=aiohttp.ClientTimeout(total=PATIENCE),
                )
            )
            counted = none if number == len(rates) - 1 else seen
            rng = random.Random(seed * len(rates) + number)
            group.create_task(_client(group, session, f"{server.url}{PATH}", rate, rng, options.seconds, counted))
    return seen


async def _client(
    group: asyncio.TaskGroup,
    session: aiohttp.ClientSession,
    url: str,
    rate: float,
    rng: random.Random,
    seconds: float,
    seen: Seen,
) -> None:
    begin = at = time.monotonic()
    ignored = Seen()
    while (at := at + rng.expovariate(rate)) < begin + SETTLE_SECONDS + seconds:
        await asyncio.sleep(max(0.0, at - time.monotonic()))
        group.create_task(_ask(session, url, seen if at >= begin + SETTLE_SECONDS else ignored))


async def _ask(session: aiohttp.ClientSession, url: str, seen: Seen) -> None:
    began = time.monotonic()
    try:
        async with session.post(url, data=b"x", raise_for_status=True) as response:
            await response.read()
    except (TimeoutError, aiohttp.ClientError):
        seen.unanswered += 1
    else:
        seen.seconds.append(time.monotonic() - began)


if __name__ == "__main__":
    sys.exit(main())
