"""Versions and servers are replaced one after the other, under stored sequences and live sessions, with kills.

    python -m tests.chaos.rolling --seconds 300 [--proxy envoy]

Two servers of a fleet share Redis behind a proxy. 500 clients step stored sequences by requests, 100 in live sessions.
Meanwhile a new version of both models is registered, which migrates states but for one sequence in ten, and becomes the
default; the old one is unregistered once the sequences that began before that are over; and so on. Workers and servers
are killed, and servers restarted in turn. Whatever a client sees that is not what it was told is a contradiction.
"""

import asyncio
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import requests
from tests.chaos import chaos, live_sessions
from tests.chaos.attempts import Sender, Step
from tests.chaos.clients import SETTLE_LIMIT
from tests.chaos.copies import Copier
from tests.chaos.disasters import Event
from tests.chaos.endpoints import HttpListeners, Server
from tests.chaos.fleet import ANSWERS, CONFIG, IDLE_LIMIT, LIMITS, MODELS, BusyClient, Fleet, command, survive
from tests.chaos.ledger import Ledger
from tests.chaos.live_sessions import PATIENCE, TURNS, Crowd
from tests.chaos.timeline import Timeline
from tests.e2e.running_server import DEADLINE, RunningServer
from tests.proxies import Proxy

from torchserve_py.client import AsyncClient

SERVERS = 2
CLIENTS, SESSIONS = 500, 100
#: Between two steps of a client, at most (seconds).
PACE = 20.0
#: Between two events, at most (seconds).
INTERVAL = 10.0
#: Between two looks, and before a call is made again (seconds).
LOOK = 0.2
#: What a call may be told while servers, and workers that load, are killed.
_BUSY = {408, 409, 500, 503, 507}


class UnhurriedClient(BusyClient):
    """Steps now and then, so that two servers can serve hundreds of them, and says when its sequence began."""

    began = 0.0

    async def _incarnation(self, stopping: asyncio.Event) -> None:
        self.began = time.monotonic()
        await super()._incarnation(stopping)

    def _has_patience(self) -> bool:
        # A step without a number that is given up may come minutes later where steps are rare, and enter what has begun
        # since.
        return self._now is None or super()._has_patience()

    def _slow(self, rate: float) -> float:
        return 0.0

    async def _plain(self) -> None:
        await asyncio.sleep(PACE * random.random())
        await super()._plain()


class NoCopies(Copier):
    """Sends no copies: after the end of a version nobody knows any more what its steps were answered."""

    def keep(self, step: Step, ledger: Ledger) -> None:
        """Keep nothing."""


class RollingFleet(Fleet):
    """Two servers, of which one at a time is killed or restarted, and workers that are killed."""

    @property
    def events(self) -> list[Event]:
        return [
            ("worker killed", self.kill_worker),
            ("worker killed", self.kill_worker),
            ("server killed", self.kill_and_return),
            ("servers restarted in turn", self.restart_all),
        ]

    def version(self, model: str, version: str) -> Path:
        """Write a version of a model."""
        folder = self.directory / f"{model}-{version}"
        if not folder.exists():
            shutil.copytree(self.directory / f"model-{model}", folder, ignore=shutil.ignore_patterns("__pycache__"))
            (handler,) = folder.glob("*_handler.py")
            (folder / "MAR-INF").mkdir()
            about = {"modelName": model, "modelVersion": version, "handler": handler.name}
            manifest = {"model": {**about, "configFile": "model-config.yaml"}}
            (folder / "MAR-INF" / "MANIFEST.json").write_text(json.dumps(manifest))
        return folder


class Roller:
    """Replaces versions, one after the other.

    Args:
        oldest: Returns when the oldest sequence began that is not over.
    """

    def __init__(self, fleet: RollingFleet, oldest: Callable[[], float], stopping: asyncio.Event) -> None:
        self._fleet = fleet
        self._oldest = oldest
        self._stopping = stopping

    async def run(self) -> None:
        """Roll until it is time to stop; a version that is there then stays."""
        number = 1
        while not self._stopping.is_set():
            number += 1
            before, version = f"{number - 1}.0", f"{number}.0"
            self._fleet.timeline.note(f"version {version} comes")
            for model in MODELS:
                query = {
                    "url": str(self._fleet.version(model, version)),
                    "initial_workers": "1",
                    "synchronous": "true",
                }
                await self._until(partial(self._has, model, version), "POST", "/models", query)
                await self._until(partial(self._is_up, model, version))
            for model in MODELS:
                path = f"/models/{model}/{version}/set-default"
                await self._until(partial(self._is_default, model, version), "PUT", path)
            self._fleet.timeline.note(f"version {version} is the default")
            switched = time.monotonic()
            while self._oldest() < switched and not self._stopping.is_set():
                await asyncio.sleep(LOOK)
            if self._stopping.is_set():
                break
            for model in MODELS:
                path = f"/models/{model}/{before}"
                await self._until(partial(self._has_none, model, before), "DELETE", path)
            self._fleet.happened["versions replaced"] += 1

    async def _until(
        self, condition: Callable[[], bool], method: str = "", path: str = "", query: dict[str, str] | None = None
    ) -> None:
        """Make a call, at one server and then at the other, until what it is for is so on both."""
        end, turn = time.monotonic() + DEADLINE, 0
        while not self._stopping.is_set() and not await asyncio.to_thread(condition):
            assert time.monotonic() < end, f"not within {DEADLINE:g} s: {method} {path} {query or ''}"
            if method:
                server = self._fleet.servers[turn % SERVERS]
                await asyncio.to_thread(self._call, server, method, path, query)
                turn += 1
            await asyncio.sleep(LOOK)

    @staticmethod
    def _call(server: RunningServer, method: str, path: str, query: dict[str, str] | None) -> None:
        try:
            answer = requests.request(method, f"{server.management}{path}", params=query, timeout=DEADLINE)
        except requests.RequestException:
            return  # it is down
        assert answer.ok or answer.status_code in {404, *_BUSY}, f"{method} {path}: {answer.text}"

    def _versions(self, model: str) -> list[dict[str, dict[str, Any]]]:
        """Return the versions of a model on each server, by name, the default one as ``default`` as well."""
        found = []
        for server in self._fleet.servers:
            try:
                versions = {each["modelVersion"]: each for each in server.describe(model, "/all")}
                found.append({**versions, "default": server.describe(model)[0]})
            except (requests.RequestException, KeyError, TypeError):
                found.append({})
        return found

    def _has(self, model: str, version: str) -> bool:
        return all(version in each for each in self._versions(model))

    def _has_none(self, model: str, version: str) -> bool:
        return all(each and version not in each for each in self._versions(model))

    def _is_up(self, model: str, version: str) -> bool:
        ready = [each.get(version, {"workers": []})["workers"] for each in self._versions(model)]
        return all(any(worker["status"] == "READY" for worker in workers) for workers in ready)

    def _is_default(self, model: str, version: str) -> bool:
        return all(bool(each) and each["default"]["modelVersion"] == version for each in self._versions(model))


async def _run(fleet: RollingFleet, report: chaos.Report, sessions: live_sessions.Report, seconds: float) -> None:
    stopping, url = asyncio.Event(), fleet.proxy.url
    crowd = Crowd(sessions, fleet.timeline, TURNS)
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), connector=connector) as session,
        AsyncClient(url, patience=PATIENCE) as client,
    ):
        sender = Sender(HttpListeners([Server(url)], session), report.tally, ANSWERS[type(fleet.proxy)])
        copier = NoCopies(sender, report.tally, fleet.timeline)
        names = [f"c{number}" for number in range(report.clients)]
        clients = [UnhurriedClient(name, sender, report.tally, fleet.timeline, copier) for name in names]
        running = [asyncio.create_task(each.run(stopping)) for each in clients]
        running += [asyncio.create_task(crowd.talk(client, number, stopping)) for number in range(sessions.clients)]

        def oldest() -> float:
            return min([each.began for each in clients] + list(crowd.began.values()))

        rolling = asyncio.create_task(Roller(fleet, oldest, stopping).run())
        try:
            await fleet.rage(seconds, interval=INTERVAL)
        finally:
            stopping.set()
            await asyncio.wait([*running, rolling], timeout=2 * SETTLE_LIMIT)
        await asyncio.gather(*running, rolling)
        await fleet.recovered()
        for each in clients:
            await each.finish()


def run(seconds: float, proxy: type[Proxy], scale: float = 1.0) -> tuple[chaos.Report, live_sessions.Report]:
    """Let versions and servers be replaced for so long, under so many times the usual clients."""
    report = chaos.Report("redis", clients=max(1, int(CLIENTS * scale)), servers=SERVERS)
    sessions = live_sessions.Report("redis", max(1, int(SESSIONS * scale)), SERVERS)
    config = CONFIG.replace("maxNumSequence: 1000", "maxNumSequence: 20000")
    with tempfile.TemporaryDirectory(prefix="chaos-") as directory:
        properties = {**LIMITS, "fleet_state": Path(directory) / "fleet", "unregister_model_timeout": 60}
        fleet = RollingFleet("redis", Path(directory), MODELS, config, Timeline(IDLE_LIMIT), properties, SERVERS)
        survive(fleet, proxy, (report, sessions), lambda: _run(fleet, report, sessions, seconds))
    return report, sessions


if __name__ == "__main__":
    sys.exit(command(__doc__, run))
