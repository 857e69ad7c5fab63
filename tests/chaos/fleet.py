"""Servers that share Redis behind a real proxy are killed, frozen, restarted in turn and joined by another one.

    python -m tests.chaos.fleet --seconds 300 [--proxy envoy]

The clients are those of ``tests.chaos.chaos`` and ``tests.chaos.live_sessions``: 150 step their sequences by requests
and 50 in live sessions, and whatever they see that is not what they were told is a contradiction. The proxies have the
configurations of ``deploy/``.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path

import aiohttp
from tests.chaos import chaos, live_sessions
from tests.chaos.attempts import Result, Sender
from tests.chaos.clients import SETTLE_LIMIT, Client
from tests.chaos.copies import Copier
from tests.chaos.disasters import Disasters, Event
from tests.chaos.endpoints import HttpListeners, Server
from tests.chaos.live_sessions import PATIENCE, TURNS, Crowd
from tests.chaos.outcome import tell
from tests.chaos.timeline import Timeline
from tests.proxies import Envoy, HAProxy, Proxy

from torchserve_py.client import AsyncClient

SERVERS = 3
CLIENTS, SESSIONS = 150, 50
#: ``sequenceMaxIdleMSec`` of the models (seconds); no sequence is left alone for so long, so none expires.
IDLE_LIMIT = 300.0
PROXIES = {"haproxy": HAProxy, "envoy": Envoy}
#: What a proxy's own answers mean: it has no server, or its server has broken off or is silent. Envoy's 503 is either.
ANSWERS = {
    HAProxy: {502: Result.UNHEARD, 503: Result.UNREACHED, 504: Result.UNHEARD},
    Envoy: {503: Result.UNHEARD, 504: Result.UNHEARD},
}
MODELS = {"chaos": chaos.MODEL, "talks": live_sessions.MODEL}
CONFIG = live_sessions.CONFIG_OF_STORES.replace("minWorkers: 2\nmaxWorkers: 2", "minWorkers: 1\nmaxWorkers: 1")
LIMITS = {"worker_heartbeat_timeout": 5, "drain_timeout": 10}


class BusyClient(Client):
    """Leaves no sequence alone for long: which server would let it expire, a proxy does not tell."""

    async def _idle(self) -> None:
        await self._plain()


class Fleet(Disasters):
    """Servers behind a proxy. One event follows the other: there is always a server that serves."""

    proxy: Proxy

    @property
    def events(self) -> list[Event]:
        return [
            ("server killed", self.kill_and_return),
            ("server frozen", self.freeze_server),
            ("servers restarted in turn", self.restart_all),
            ("server taken away and added", self.take_away_and_add),
        ]

    async def kill_and_return(self) -> None:
        """SIGKILL, and start again."""
        await self.kill_server()
        await self._all_serve()

    async def freeze_server(self) -> None:
        """SIGSTOP for a while; the proxy may find that it does not serve."""
        await super().freeze_server()
        await self._all_serve()

    async def restart_all(self) -> None:
        """Restart one after the other, each once the one before serves again."""
        for server in list(self.servers):
            await asyncio.to_thread(server.terminate)
            server.launch()
            await self._all_serve()

    async def take_away_and_add(self) -> None:
        """Stop a server, and start it again after a while."""
        server = random.choice(self.servers)
        await asyncio.to_thread(server.terminate)
        await asyncio.to_thread(self.proxy.wait_for, len(self.servers) - 1)
        await asyncio.sleep(random.random())
        server.launch()
        await self._all_serve()

    async def _all_serve(self) -> None:
        """Wait until the proxy has found all servers to be ready: there is always one that serves."""
        await asyncio.to_thread(self.proxy.wait_for, len(self.servers))


async def _run(fleet: Fleet, report: chaos.Report, sessions: live_sessions.Report, seconds: float) -> None:
    stopping, url = asyncio.Event(), fleet.proxy.url
    crowd = Crowd(sessions, fleet.timeline, TURNS)
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), connector=connector) as session,
        AsyncClient(url, patience=PATIENCE) as client,
    ):
        sender = Sender(HttpListeners([Server(url)], session), report.tally, ANSWERS[type(fleet.proxy)])
        copier = Copier(sender, report.tally, fleet.timeline)
        names = [f"c{number}" for number in range(report.clients)]
        clients = [BusyClient(name, sender, report.tally, fleet.timeline, copier) for name in names]
        running = [asyncio.create_task(each.run(stopping)) for each in clients]
        running += [asyncio.create_task(crowd.talk(client, number, stopping)) for number in range(sessions.clients)]
        try:
            await fleet.rage(seconds)
        finally:
            stopping.set()
            await asyncio.wait(running, timeout=2 * SETTLE_LIMIT)
        await asyncio.gather(*running)
        await fleet.recovered()
        await copier.finish()
        for each in clients:
            await each.finish()


def run(seconds: float, proxy: type[Proxy], scale: float = 1.0) -> tuple[chaos.Report, live_sessions.Report]:
    """Let things happen for so long, to so many times the usual clients; return what was survived."""
    report = chaos.Report("redis", int(CLIENTS * scale), SERVERS)
    sessions = live_sessions.Report("redis", int(SESSIONS * scale), SERVERS)
    with tempfile.TemporaryDirectory(prefix="chaos-") as directory:
        fleet = Fleet("redis", Path(directory), MODELS, CONFIG, Timeline(IDLE_LIMIT), LIMITS, SERVERS)
        survive(fleet, proxy, (report, sessions), lambda: _run(fleet, report, sessions, seconds))
    return report, sessions


def survive(
    fleet: Fleet,
    proxy: type[Proxy],
    reports: tuple[chaos.Report, live_sessions.Report],
    load: Callable[[], Coroutine[None, None, None]],
) -> None:
    """Run the servers of a fleet behind a proxy under a load, and add to the reports what happened."""
    began = time.monotonic()
    with fleet.running(), proxy([server.inference for server in fleet.servers]) as fleet.proxy:
        fleet.proxy.wait_for(len(fleet.servers))
        asyncio.run(load())
        fleet.count_deaths()
    for report in reports:
        report.events, report.seconds = fleet.happened, time.monotonic() - began


def command(
    description: str, run: Callable[[float, type[Proxy], float], tuple[chaos.Report, live_sessions.Report]]
) -> int:
    """Run from the command line; return 0 if nothing was contradicted."""
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--proxy", choices=PROXIES, default="haproxy")
    parser.add_argument("--scale", type=float, default=1.0, help="how many times the usual clients (default: 1)")
    options = parser.parse_args()
    return tell(run(options.seconds, PROXIES[options.proxy], options.scale))


if __name__ == "__main__":
    sys.exit(command(__doc__, run))
