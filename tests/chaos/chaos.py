"""Many clients step their sequences while all that can be killed is killed, and believe every word that they are told.

    python -m tests.chaos.chaos --store file --seconds 60

Two servers share one store. At random moments a worker or a whole server is killed (SIGKILL) or frozen (SIGSTOP), for
longer than the model's ``responseTimeout`` and the sequences' idle limit; a server is restarted; a batch fails; Redis
is killed or frozen, and fails over; the disk has no room left. Whatever a client sees that is not what it was told is a
contradiction.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from tests.chaos.attempts import Sender, Tally
from tests.chaos.clients import SETTLE_LIMIT, Client
from tests.chaos.copies import Copier, told
from tests.chaos.disasters import SERVERS, Disasters
from tests.chaos.endpoints import HttpListeners
from tests.chaos.outcome import tell
from tests.chaos.timeline import Timeline

MODEL = Path(__file__).parent / "model"
CLIENTS = 24
#: ``sequenceMaxIdleMSec`` in seconds; like the model's other limits shorter than something stays frozen or down.
IDLE_LIMIT = 2.0

CONFIG = """
minWorkers: 2
maxWorkers: 2
batchSize: 3
maxBatchDelay: 2
responseTimeout: 2
sequenceBatching: true
sequenceMaxIdleMSec: 2000
maxNumSequence: 1000
maxSequenceJobQueueSize: 4
handler:
  cache: {{store: {store}, capacity: 10, lease: 2, {place}}}
"""


@dataclass
class Report:
    """What was survived."""

    store: str
    logs: bool = False
    clients: int = CLIENTS
    servers: int = SERVERS
    seconds: float = 0.0
    events: Counter[str] = field(default_factory=Counter)
    tally: Tally = field(default_factory=Tally)

    @property
    def contradictions(self) -> list[str]:
        """What clients saw that was not what they had been told."""
        return self.tally.contradictions

    def __str__(self) -> str:
        tally = self.tally
        events = ", ".join(f"{count} × {name}" for name, count in sorted(self.events.items()))
        outcomes = ", ".join(f"{count} × {name}" for name, count in tally.outcomes.most_common())
        expired = ", ".join(f"{count} × {why}" for why, count in tally.expired.most_common())
        store = f"{self.store}, with logs" if self.logs else self.store
        return (
            f"{store}: {self.seconds:.0f} s, {self.clients} clients, {self.servers} servers. Survived: {events}.\n"
            f"  sequences {tally.incarnations}, requests {tally.requests}, steps acknowledged {tally.acknowledged}, "
            f"unknown outcomes settled by asking {tally.asked}, slowest step {tally.slowest:.1f} s\n"
            f"  requests: {outcomes}\n"
            f"  late copies, up to {tally.latest_copy:.0f} s: {told(tally.copies) or 'none'}\n"
            f"  open sequences that expired: {expired or 0}\n"
            f"  contradictions {len(self.contradictions)}"
        )


async def endure(disasters: Disasters, tally: Tally, seconds: float) -> None:
    """Let clients step their sequences while things happen."""
    stopping = asyncio.Event()
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), connector=connector) as session:
        sender = Sender(HttpListeners(disasters.addresses, session), tally)
        copier = Copier(sender, tally, disasters.timeline)
        clients = [Client(f"c{number}", sender, tally, disasters.timeline, copier) for number in range(CLIENTS)]
        watching = asyncio.create_task(disasters.timeline.watch())
        running = [asyncio.create_task(client.run(stopping)) for client in clients]
        try:
            await disasters.rage(seconds)
        finally:
            stopping.set()
            await asyncio.wait(running, timeout=2 * SETTLE_LIMIT)
        await asyncio.gather(*running)
        await copier.finish()
        for client in clients:
            await client.finish()
        watching.cancel()


def run(store: str, seconds: float, replicas: int = 0, *, logs: bool = False) -> Report:
    """Let chaos reign over a store (``file``, ``redis`` or ``sentinel``) for so long; return what was survived.

    Args:
        replicas: With ``sentinel``, how many replicas of Redis must have a step.
        logs: Whether the steps append to a log; every third state is written whole.
    """
    report = Report(f"{store}, replicas {replicas}" if store == "sentinel" else store, logs)
    config = CONFIG
    if logs:
        config = config.replace("capacity: 10,", "capacity: 10, checkpointEvery: 3,") + "  logs: true\n"
    replicas = replicas if store == "sentinel" else 0  # a single Redis has none
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="chaos-") as directory:
        limits = {"worker_heartbeat_timeout": 2, "drain_timeout": 1}
        disasters = Disasters(
            store, Path(directory), {"chaos": MODEL}, config, Timeline(IDLE_LIMIT), limits, replicas=replicas
        )
        with disasters.running():
            asyncio.run(endure(disasters, report.tally, seconds))
            disasters.count_deaths()
    report.events = disasters.happened
    report.seconds = time.monotonic() - began
    return report


def main() -> int:
    """Run from the command line; return 0 if nothing was contradicted."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    stores = ["file", "redis", "sentinel"]
    parser.add_argument("--store", choices=stores, action="append", help="default: file and redis, in turn")
    parser.add_argument("--seconds", type=float, default=300.0, help="for each store (default: 300)")
    parser.add_argument("--replicas", type=int, default=1, help="for sentinel: handler.cache.replicas (default: 1)")
    parser.add_argument("--logs", action="store_true", help="steps append to a log, instead of storing the state")
    options = parser.parse_args()
    stores = options.store or ["file", "redis"]
    return tell(run(store, options.seconds, options.replicas, logs=options.logs) for store in stores)


if __name__ == "__main__":
    sys.exit(main())
