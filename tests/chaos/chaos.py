"""Many clients step their sequences while all that can be killed is killed, and believe every word that they are told.

    python -m tests.chaos.chaos --store file --seconds 60

Two servers share one store. At random moments a worker or a whole server is killed (SIGKILL) or frozen (SIGSTOP), for
longer than the model's ``responseTimeout`` and the sequences' idle limit; a server is restarted; a batch fails; Redis
is killed or frozen; the disk has no room left. Whatever a client sees that is not what it was told is a contradiction.
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
from tests.chaos.attempts import Sender, Tally
from tests.chaos.clients import SETTLE_LIMIT, Client
from tests.chaos.timeline import Timeline
from tests.e2e.running_server import RunningServer
from tests.redis_server import RedisServer

MODEL = Path(__file__).parent / "model"
SERVERS = 2
CLIENTS = 24
#: Seconds between two events, at most.
INTERVAL = 3.0
#: How long something stays frozen, full or down (seconds), at most: longer than each of the model's limits.
PERIOD = 4.0
IDLE_LIMIT = 2.0
#: How many contradictions are printed in full.
PRINTED = 10

CONFIG = """
minWorkers: 2
maxWorkers: 2
batchSize: 3
maxBatchDelay: 2
responseTimeout: 2
sequenceBatching: true
sequenceMaxIdleMSec: %d
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
        outcomes = ", ".join(f"{count} × {name}" for name, count in tally.outcomes.most_common())
        return (
            f"{self.store}: {self.seconds:.0f} s, {CLIENTS} clients, {SERVERS} servers. Survived: {events}.\n"
            f"  sequences {tally.incarnations}, requests {tally.requests}, steps acknowledged {tally.acknowledged}, "
            f"unknown outcomes settled by asking {tally.asked}, slowest step {tally.slowest:.1f} s\n"
            f"  requests: {outcomes}\n"
            f"  contradictions {len(tally.contradictions)}"
        )


class Chaos:
    """Servers, what they share, and all that can happen to them."""

    def __init__(self, store: str, directory: Path, report: Report) -> None:
        self.report = report
        self.timeline = Timeline(IDLE_LIMIT)
        self.redis = RedisServer(directory) if store == "redis" else None
        self._disk_full = directory / "disk-full"
        self._events = directory / "events"
        self._events.touch()
        place = f"path: {directory / 'sequences.db'}" if self.redis is None else f"url: '{self.redis.url}'"
        model = directory / "model"
        shutil.copytree(MODEL, model, ignore=shutil.ignore_patterns("__pycache__"))
        (model / "model-config.yaml").write_text(CONFIG % (IDLE_LIMIT * 1000, store, place))
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
            ("worker frozen", self.freeze_worker),
            ("server killed", self.kill_server),
            ("server frozen", self.freeze_server),
            ("server and workers frozen", self.freeze_all),
            ("server restarted", self.restart_server),
        ]
        if self.redis is not None:
            return [*events, ("Redis killed", self.kill_redis), ("Redis frozen", self.freeze_redis)]
        return [*events, ("disk full", self.fill_disk)]

    async def kill_worker(self) -> None:
        """SIGKILL."""
        self._signal_worker(signal.SIGKILL)

    async def stop_worker(self) -> None:
        """SIGSTOP, for good: the server has to notice."""
        self._signal_worker(signal.SIGSTOP)

    def _signal_worker(self, number: signal.Signals) -> psutil.Process | None:
        server = random.choice(self.servers)
        with contextlib.suppress(psutil.NoSuchProcess, IndexError, AssertionError):  # it may be starting just now
            worker = random.choice(server.workers())
            worker.send_signal(number)
            return worker
        return None

    async def freeze_worker(self) -> None:
        """SIGSTOP, for a while: it may be killed meanwhile, or wake up in time."""
        worker = self._signal_worker(signal.SIGSTOP)
        await asyncio.sleep(PERIOD * random.random())
        if worker is not None:
            _send([worker], signal.SIGCONT)

    async def kill_server(self) -> None:
        """SIGKILL, and start again; the workers die with it."""
        server = random.choice(self.servers)
        assert server.process is not None
        with contextlib.suppress(psutil.NoSuchProcess, AssertionError):
            server.server.kill()
        server.process.kill()
        await asyncio.to_thread(server.process.wait)
        server.launch()

    async def restart_server(self) -> None:
        """SIGTERM, and start again."""
        server = random.choice(self.servers)
        self.timeline.server_stopped()
        await asyncio.to_thread(server.terminate)
        self.timeline.server_stopped()
        server.launch()

    async def freeze_server(self) -> None:
        """SIGSTOP of a server for a while; its workers go on."""
        with contextlib.suppress(psutil.NoSuchProcess, AssertionError):
            await self._freeze([random.choice(self.servers).server])

    async def freeze_all(self) -> None:
        """SIGSTOP of a server and its workers for a while, during which its leases may end."""
        with contextlib.suppress(psutil.NoSuchProcess, AssertionError):
            server = random.choice(self.servers).server
            await self._freeze([server, *server.children(recursive=True)])

    async def _freeze(self, processes: list[psutil.Process]) -> None:
        _send(processes, signal.SIGSTOP)
        await asyncio.sleep(PERIOD * random.random())
        _send(processes, signal.SIGCONT)

    async def kill_redis(self) -> None:
        """SIGKILL, and start again after a while."""
        assert self.redis is not None
        self.redis.kill()
        await asyncio.sleep(PERIOD / 2 * random.random())
        await asyncio.to_thread(self.redis.start)

    async def freeze_redis(self) -> None:
        """SIGSTOP for a while."""
        assert self.redis is not None
        self.redis.send_signal(signal.SIGSTOP)
        await asyncio.sleep(PERIOD * random.random())
        self.redis.send_signal(signal.SIGCONT)

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
            self.timeline.note(name)
            await event()
            self.timeline.note(f"{name}: over")
            self.report.events[name] += 1

    def count_deaths(self) -> None:
        """Report those that workers brought about themselves."""
        self.report.events.update(self._events.read_text().splitlines())


def _send(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


async def _run(chaos: Chaos, seconds: float) -> None:
    tally, stopping = chaos.report.tally, asyncio.Event()
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), connector=connector) as session:
        sender = Sender([server.inference for server in chaos.servers], session, tally)
        clients = [Client(f"c{number}", sender, tally, chaos.timeline) for number in range(CLIENTS)]
        watching = asyncio.create_task(chaos.timeline.watch())
        running = [asyncio.create_task(client.run(stopping)) for client in clients]
        try:
            await chaos.rage(seconds)
        finally:
            stopping.set()
            await asyncio.wait(running, timeout=2 * SETTLE_LIMIT)
        await asyncio.gather(*running)
        for client in clients:
            await client.finish()
        watching.cancel()


def run(store: str, seconds: float) -> Report:
    """Let chaos reign over a ``file`` or ``redis`` store for so long; return what was survived."""
    report = Report(store)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="chaos-") as directory:
        chaos = Chaos(store, Path(directory), report)
        with chaos.running():
            asyncio.run(_run(chaos, seconds))
            chaos.count_deaths()
    report.seconds = time.monotonic() - began
    return report


def main() -> int:
    """Run from the command line; return 0 if nothing was contradicted."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--store", choices=["file", "redis"], action="append", help="default: both, in turn")
    parser.add_argument("--seconds", type=float, default=300.0, help="for each store (default: 300)")
    options = parser.parse_args()
    failed = False
    for store in options.store or ["file", "redis"]:
        report = run(store, options.seconds)
        print(report, flush=True)
        for contradiction in report.tally.contradictions[:PRINTED]:
            print(contradiction, file=sys.stderr)
        failed |= bool(report.tally.contradictions)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
