"""Servers that share a store, and all that can happen to them, at random moments."""

import asyncio
import contextlib
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import requests
from tests.chaos.endpoints import Server
from tests.chaos.timeline import Timeline
from tests.e2e.running_server import DEADLINE, RunningServer, eventually
from tests.ports import free_ports
from tests.redis_sentinels import DOWN_AFTER, FailoverRedis
from tests.redis_server import RedisServer

SERVERS = 2
#: Seconds between two events, at most.
INTERVAL = 3.0
#: How long something stays frozen, full or down (seconds), at most.
PERIOD = 4.0
#: What the models import.
SHARED = [Path(__file__).parent / name for name in ("hazards.py", "versions.py")]
#: The name of an event, and what makes it happen.
Event = tuple[str, Callable[[], Awaitable[None]]]


class Disasters:
    """Servers, what they share, and all that can happen to them.

    Args:
        store: ``file``, ``redis``, ``sentinel`` for Redis that fails over, or ``memory`` for none.
        directory: What the servers share.
        models: The names and the folders of the models that they serve.
        config: The configuration of each, with the places ``{store}`` and ``{place}``.
        timeline: What happened when.
        properties: Of the servers.
        servers: How many there are.
        replicas: With ``sentinel``, how many replicas of Redis must have a step.
    """

    def __init__(
        self,
        store: str,
        directory: Path,
        models: Mapping[str, Path],
        config: str,
        timeline: Timeline,
        properties: Mapping[str, Any],
        servers: int = SERVERS,
        replicas: int = 0,
    ) -> None:
        self.happened = Counter[str]()
        self.timeline = timeline
        self.store = store
        self.redis = RedisServer(directory) if store == "redis" else None
        self.failover = FailoverRedis(directory) if store == "sentinel" else None
        self.directory = directory
        self._disk_full = directory / "disk-full"
        self._events = directory / "events"
        self._events.touch()
        places = {"memory": "", "file": f"path: {directory / 'sequences.db'},"}
        shared = self.redis or self.failover
        place = places[store] if shared is None else f"url: '{shared.url}', replicas: {replicas},"
        text = config.format(store=store if shared is None else "redis", place=place)
        folders = {name: directory / f"model-{name}" for name in models}
        for name, folder in folders.items():
            shutil.copytree(models[name], folder, ignore=shutil.ignore_patterns("__pycache__"))
            for each in SHARED:
                shutil.copy(each, folder)
            (folder / "model-config.yaml").write_text(text)
        environment = {"CHAOS_DIRECTORY": str(directory)}
        self._grpc_ports = free_ports(servers)
        self.servers = [
            RunningServer(folders, properties={**properties, "grpc_inference_port": port}, environment=environment)
            for port in self._grpc_ports
        ]

    @property
    def addresses(self) -> list[Server]:
        """Where clients find the servers."""
        pairs = zip(self.servers, self._grpc_ports, strict=True)
        return [Server(server.inference, f"127.0.0.1:{port}") for server, port in pairs]

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Start everything, and end everything."""
        with contextlib.ExitStack() as stack:
            if self.redis is not None:
                stack.enter_context(self.redis)
            if self.failover is not None:
                stack.enter_context(self.failover)
            for server in self.servers:
                stack.enter_context(server)
            for server in self.servers:
                server.wait_ready()
            yield

    async def recovered(self) -> None:
        """Wait until all servers are ready again."""
        for server in self.servers:
            await asyncio.to_thread(eventually, lambda server=server: is_ready(server), "a server is ready again")

    @property
    def events(self) -> list[Event]:
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
        if self.failover is not None:
            failovers = [("primary Redis killed", self.kill_primary), ("primary Redis frozen", self.freeze_primary)]
            return [*events, *failovers, *failovers]
        return [*events, ("disk full", self.fill_disk)] if self.store == "file" else events

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

    async def kill_primary(self) -> None:
        """SIGKILL; it comes back once another Redis has taken its place, with what is on its disk."""
        assert self.failover is not None
        primary = await asyncio.to_thread(self.failover.find_primary)
        primary.kill()
        await asyncio.to_thread(self.failover.wait_failed_over, primary)
        await asyncio.to_thread(primary.start)
        await asyncio.to_thread(self.failover.wait_whole)

    async def freeze_primary(self) -> None:
        """SIGSTOP for about as long as it takes to be replaced: it wakes up in the middle of that, or afterwards."""
        assert self.failover is not None
        primary = await asyncio.to_thread(self.failover.find_primary)
        primary.send_signal(signal.SIGSTOP)
        await asyncio.sleep(DOWN_AFTER / 1000 + PERIOD * random.random())
        primary.send_signal(signal.SIGCONT)
        await asyncio.to_thread(self.failover.wait_whole)

    async def fill_disk(self) -> None:
        """No room for a while."""
        self._disk_full.touch()
        await asyncio.sleep(PERIOD * random.random())
        self._disk_full.unlink()

    async def rage(self, seconds: float, more: Sequence[Event] = (), interval: float = INTERVAL) -> None:
        """Let things happen; ``more`` may happen, too."""
        end, events = time.monotonic() + seconds, [*self.events, *more]
        while time.monotonic() < end:
            await asyncio.sleep(interval * random.random())
            name, event = random.choice(events)
            self.timeline.note(name)
            await event()
            self.timeline.note(f"{name}: over")
            self.happened[name] += 1

    def count_deaths(self) -> None:
        """Count those that workers brought about themselves."""
        self.happened.update(self._events.read_text().splitlines())


def is_ready(server: RunningServer) -> bool:
    """Return whether a server answers, and all its models have their workers."""
    with contextlib.suppress(requests.ConnectionError):
        return requests.get(f"{server.inference}/ready", timeout=DEADLINE).status_code == 200
    return False


def _send(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)
