"""Many clients step their sequences while all that can be killed is killed; in the end every total must be right.

    python -m tests.chaos.chaos --store file --seconds 60

Two servers share one store. At random moments a worker or a whole server is killed (SIGKILL) or stopped (SIGSTOP), a
batch fails, Redis is killed and started again, the disk has no room left. Each client knows what its sequence has to be
after every acknowledged step.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import psutil
from tests.chaos.clients import PATIENCE, Client, Tally
from tests.e2e.running_server import RunningServer
from tests.redis_server import RedisServer

MODEL = Path(__file__).parent / "model"
SERVERS = 2
CLIENTS = 32
#: Seconds between two events, at most.
INTERVAL = 1.5
#: How long something stays stopped, full or down (seconds), at most.
PERIOD = 1.5
#: After the last event: how long until every client has its last step acknowledged (seconds).
SETTLE_LIMIT = 60.0

CONFIG = """
minWorkers: 2
maxWorkers: 2
batchSize: 8
maxBatchDelay: 2
responseTimeout: 20
sequenceBatching: true
sequenceMaxIdleMSec: 120000
maxNumSequence: 1000
maxSequenceJobQueueSize: 4
handler:
  cache: {store: %s, capacity: 10, lease: 2, %s}
"""


@dataclass
class Report:
    """What was survived."""

    store: str
    seconds: float = 0.0
    events: Counter[str] = field(default_factory=Counter)
    tally: Tally = field(default_factory=Tally)

    def __str__(self) -> str:
        tally = self.tally
        events = ", ".join(f"{count} × {name}" for name, count in sorted(self.events.items()))
        refusals = ", ".join(f"{count} × {name}" for name, count in tally.refusals.most_common())
        return (
            f"{self.store}: {self.seconds:.0f} s, {CLIENTS} clients, {SERVERS} servers. Survived: {events}.\n"
            f"  steps acknowledged {tally.steps}, requests {tally.requests}, slowest step {tally.slowest:.1f} s\n"
            f"  refused: {refusals or 'nothing'}\n"
            f"  losses {tally.losses}, duplicates {tally.duplicates}"
        )


class Chaos:
    """Servers, what they share, and all that can happen to them."""

    def __init__(self, store: str, directory: Path, report: Report) -> None:
        self.report = report
        self.redis = RedisServer(directory) if store == "redis" else None
        self._disk_full = directory / "disk-full"
        self._events = directory / "events"
        self._events.touch()
        place = f"path: {directory / 'sequences.db'}" if self.redis is None else f"url: '{self.redis.url}'"
        model = directory / "model"
        shutil.copytree(MODEL, model, ignore=shutil.ignore_patterns("__pycache__"))
        (model / "model-config.yaml").write_text(CONFIG % (store, place))
        self.servers = [
            RunningServer(
                {"chaos": model},
                properties={"worker_heartbeat_timeout": 2, "drain_timeout": 1},
                environment={"CHAOS_DIRECTORY": str(directory)},
            )
            for _ in range(SERVERS)
        ]

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Start everything, and end everything."""
        with contextlib.ExitStack() as stack:
            if self.redis is not None:
                stack.enter_context(self.redis)
            for server in self.servers:
                stack.enter_context(server)
            for server in self.servers:
                server.wait_ready()
            yield

    @property
    def events(self) -> list[tuple[str, Callable[[], Awaitable[None]]]]:
        """What can happen, the frequent more than once."""
        events = [
            ("worker killed", self.kill_worker),
            ("worker killed", self.kill_worker),
            ("worker stopped", self.stop_worker),
            ("server killed", self.kill_server),
            ("server stopped", self.stop_server),
        ]
        if self.redis is not None:
            return [*events, ("Redis killed", self.kill_redis)]
        return [*events, ("disk full", self.fill_disk)]

    async def kill_worker(self) -> None:
        """SIGKILL."""
        self._signal_worker(signal.SIGKILL)

    async def stop_worker(self) -> None:
        """SIGSTOP, for good: the server has to notice."""
        self._signal_worker(signal.SIGSTOP)

    def _signal_worker(self, number: signal.Signals) -> None:
        server = random.choice(self.servers)
        with contextlib.suppress(psutil.NoSuchProcess, IndexError, AssertionError):  # it may be starting just now
            random.choice(server.workers()).send_signal(number)

    async def kill_server(self) -> None:
        """SIGKILL, and start again; the workers die with it."""
        server = random.choice(self.servers)
        assert server.process is not None
        with contextlib.suppress(psutil.NoSuchProcess, AssertionError):
            server.server.kill()
        server.process.kill()
        await asyncio.to_thread(server.process.wait)
        server.launch()

    async def stop_server(self) -> None:
        """SIGSTOP of the server and its workers for a while, during which its leases may end."""
        server = random.choice(self.servers)
        try:
            frontend = server.server
            stopped = [frontend, *frontend.children(recursive=True)]
        except (psutil.NoSuchProcess, AssertionError):
            return
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for process in stopped:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(number)
            if number is signal.SIGSTOP:
                await asyncio.sleep(3 * PERIOD * random.random())

    async def kill_redis(self) -> None:
        """SIGKILL, and start again after a while."""
        assert self.redis is not None
        self.redis.kill()
        await asyncio.sleep(PERIOD * random.random())
        await asyncio.to_thread(self.redis.start)

    async def fill_disk(self) -> None:
        """No room for a while."""
        self._disk_full.touch()
        await asyncio.sleep(PERIOD * random.random())
        self._disk_full.unlink()

    async def rage(self, seconds: float) -> None:
        """Let things happen."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await asyncio.sleep(INTERVAL * random.random())
            name, event = random.choice(self.events)
            await event()
            self.report.events[name] += 1

    def count_deaths(self) -> None:
        """Report those that workers brought about themselves."""
        self.report.events.update(self._events.read_text().splitlines())


async def _run(chaos: Chaos, seconds: float) -> None:
    tally, stopping = chaos.report.tally, asyncio.Event()
    timeout = aiohttp.ClientTimeout(total=PATIENCE)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        urls = [server.inference for server in chaos.servers]
        clients = [Client(f"c{number}", urls, session, tally) for number in range(CLIENTS)]
        running = [asyncio.create_task(client.run(stopping)) for client in clients]
        await chaos.rage(seconds)
        stopping.set()
        async with asyncio.timeout(SETTLE_LIMIT):
            await asyncio.gather(*running)
            for client in clients:  # and once more, in peace
                await client.step()


def run(store: str, seconds: float) -> Report:
    """Let chaos reign over a ``file`` or ``redis`` store for so long; return what was survived."""
    report = Report(store)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="chaos-") as directory:
        chaos = Chaos(store, Path(directory), report)
        with chaos.running():
            try:
                asyncio.run(_run(chaos, seconds))
            except TimeoutError:
                logs = "\n".join(server.log()[-3000:] for server in chaos.servers)
                report.tally.faults.append(f"not every step was acknowledged in the end\n{logs}")
            chaos.count_deaths()
    report.seconds = time.monotonic() - began
    return report


def main() -> int:
    """Run from the command line; return 0 if nothing was lost."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--store", choices=["file", "redis"], action="append", help="default: both, in turn")
    parser.add_argument("--seconds", type=float, default=300.0, help="for each store (default: 300)")
    options = parser.parse_args()
    failed = False
    for store in options.store or ["file", "redis"]:
        report = run(store, options.seconds)
        print(report, flush=True)
        for fault in report.tally.faults[:20]:
            print(fault, file=sys.stderr)
        failed |= bool(report.tally.faults)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
