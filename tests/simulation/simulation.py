"""One simulated world from one seed: servers, workers, clients and a store, and what contradicts the promise."""

import asyncio
import contextlib
import functools
import gc
import itertools
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, Final
from unittest import mock

from tests.simulation.checker import Reading, check
from tests.simulation.clients import CALM_LIMIT, KINDS, Client
from tests.simulation.damage import damage_file, damage_redis
from tests.simulation.disasters import Disasters
from tests.simulation.history import History
from tests.simulation.lists import simulated_lists
from tests.simulation.model import simulated_words
from tests.simulation.network import Network, Weather
from tests.simulation.servers import Server
from tests.simulation.stores import Trouble, simulated_stores
from tests.simulation.virtual_time import virtual_time
from tests.simulation.workers import CommitOverlap, CommitThread, WatchThread
from tests.simulation.world import Killed, Machine, World

from torchserve_py.base import background_tasks
from torchserve_py.core.jobs import call
from ts.sequences.handover import give_and_take, sent_ahead
from ts.sequences.steps import server_identity, stored_steps

#: Where the files of stores lie: in memory, if there is such a place.
FOLDER: Final = Path("/dev/shm" if Path("/dev/shm").is_dir() else "/tmp")
#: Seconds.
LEASE: Final = 10.0
#: What opens the stores that outlive their workers.
_MODULES: Final = {"file": "ts.sequences.sqlite.open_sqlite", "redis": "ts.sequences.redis.open_redis"}
#: Where handlers fail, the step kills every worker that runs it whose word is one of so many.
_DEADLY: Final = 11
#: The most bytes of a message with a piece of a sequence.
_STATE_PIECE: Final = 50
#: How many worlds wait for a collection of all garbage: they take a megabyte each.
WORLDS_AT_ONCE: Final = 50
#: How long it is remembered that a sequence is over (seconds): longer than anything comes late.
REMEMBERED: Final = 60 * 86_400.0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a seed comes to."""

    store: str
    servers: int
    workers: int
    versions: tuple[str, ...]
    clients: tuple[str, ...]
    lifetime: float
    kept: int
    require_start: bool
    weather: Weather
    at_points: float
    disasters: int
    failing: float
    has_logs: bool
    migrating: tuple[str, ...] = ()
    #: After how many seconds each server makes version 2.0 its default, where it has both.
    roll_out: float | None = None
    kept_states: int = 1
    #: How often a worker or a version is replaced, or the number of workers changes, where states are in memory.
    moves: int = 0
    #: How likely it is that a request of a client goes to any server, and not to the one before.
    roams: float = 0.0
    #: How often a server of a fleet is frozen while the other one goes on.
    freezes: int = 0
    sends_ahead: bool = False
    #: How long a sequence may last in all (seconds).
    longest: float | None = None

    @classmethod
    def draw(cls, random: Random) -> "Plan":
        """Draw lots."""
        store = random.choice(("file", "file", "file", "redis", "memory"))
        weather = Weather(
            dropped=random.choice((0.0, 0.05, 0.2)),
            late=random.choice((0.0, 0.05, 0.15)),
            doubled=random.choice((0.0, 0.1, 0.3)),
        )
        return cls(
            store=store,
            servers=1 if store == "memory" else random.randint(1, 3),
            workers=random.randint(1, 2),
            versions=random.choice((("1.0",), ("1.0",), ("1.0", "2.0"))),
            clients=tuple(random.choice(KINDS) for _ in range(random.randint(1, 3))),
            lifetime=random.choice((60.0, 3600.0, 2 * 86_400.0, 2 * 86_400.0)),
            kept=random.choice((3, 4)),
            require_start=random.random() < 0.5,
            weather=weather,
            at_points=random.choice((0.0, 0.002, 0.01)),
            disasters=random.choice((0, 1, 3, 5)),
            failing=random.choice((0.0, 0.0, 0.05)),
            has_logs=random.random() < 0.5,
        )

    def with_migrations(self, random: Random) -> "Plan":
        """Draw lots whether there are two versions that continue each other's sequences."""
        if random.random() >= 0.4:
            return self
        return replace(
            self,
            versions=("1.0", "2.0"),
            migrating=random.choice((("2.0",), ("2.0",), ("1.0", "2.0"))),
            roll_out=None if self.store == "memory" else random.choice((None, 1.0, 30.0, 600.0)),
        )

    def with_kept_states(self, random: Random) -> "Plan":
        """Draw lots whether earlier states are kept."""
        return replace(self, kept_states=random.choice((1, 1, 2, 4)))

    def with_moves(self, random: Random) -> "Plan":
        """Draw lots how often sequences in memory move."""
        if self.store != "memory":
            return self
        moving = replace(self, moves=random.choice((0, 5, 10, 20)), workers=random.randint(1, 3))
        if random.random() < 0.5:
            return moving
        return replace(
            moving,
            servers=2,
            weather=Weather(dropped=self.weather.dropped, late=0.0, doubled=0.0),
            at_points=0.0,
            disasters=random.choice((1, 3, 5, 8)),
            lifetime=2 * 86_400.0,
            roams=random.choice((0.0, 0.1, 0.5)),
        )

    def with_freezes(self, random: Random) -> "Plan":
        """Draw lots how often a server of a fleet is frozen, and how long its sequences last."""
        if not self.is_fleet or random.random() < 0.5:
            return self
        return replace(
            self,
            freezes=random.choice((0, 2, 5)),
            roams=random.choice((0.1, 0.5)),
            lifetime=random.choice((60.0, 3600.0, self.lifetime)),
            longest=random.choice((None, 60.0, 600.0)),
        )

    def with_states_ahead(self, random: Random) -> "Plan":
        """Draw lots whether states in memory are sent ahead of their sequences, as large ones are."""
        return replace(self, sends_ahead=self.store == "memory" and random.random() < 0.3)

    @property
    def is_fleet(self) -> bool:
        """Whether servers leave each other their sequences in memory in a folder.

        Without `freezes` none of them is taken for dead while it lives, so that what only moves is never lost.
        """
        return self.store == "memory" and self.servers > 1

    @property
    def served(self) -> int:
        """How many versions there are, all servers together."""
        return len({version for number in range(self.servers) for version in self.of_server(number)})

    @property
    def _serves_all(self) -> bool:
        """Whether each server has all versions."""
        return self.roll_out is not None or (self.moves > 0 and bool(self.migrating))

    def of_server(self, number: int) -> tuple[str, ...]:
        """The versions of a server, the first of which is its default at first."""
        if self.store == "memory" and not self._serves_all:
            return self.versions[:1]
        return self.versions if self._serves_all else (self.versions[number % len(self.versions)],)


@dataclass(frozen=True)
class Outcome:
    """What has become of a world."""

    seed: int
    plan: Plan
    history: History
    violations: list[str]

    def story(self) -> str:
        """Return all that has happened, and what of it contradicts the promise."""
        found = "\n".join(self.violations) or "nothing contradicts the promise"
        return f"seed {self.seed}: {self.plan}\n{self.history.story()}\n{found}\n"


def simulate(seed: int) -> Outcome:
    """Let a world run from its beginning until all is calm."""
    random, history = Random(seed), History()
    plan = Plan.draw(random).with_migrations(Random(f"migrations {seed}"))
    plan = plan.with_kept_states(Random(f"kept states {seed}")).with_moves(Random(f"moves {seed}"))
    plan = plan.with_freezes(Random(f"freezes {seed}")).with_states_ahead(Random(f"states ahead {seed}"))
    world = World(random, history)
    trouble, path = Trouble(world), FOLDER / f"simulation-{os.getpid()}-{seed}" / "sequences.db"
    gc.disable()
    logging.disable()
    try:
        with (
            _simulated(world, plan),
            simulated_stores(world, trouble, path, versions=plan.served),
        ):
            violations, damaged = _run(world, trouble, plan, path)
    finally:
        logging.disable(logging.NOTSET)
        # The world is young; what something still refers to is collected with many others.
        gc.collect(0 if gc.get_count()[1] < WORLDS_AT_ONCE else 2)
    reading = Reading(
        *(history, plan.store != "memory", plan.lifetime, LEASE, plan.require_start),
        *(plan.served, frozenset(damaged)),
    )
    violations += check(reading)
    violations += [f"nothing fails unexpectedly: {error}" for error in world.errors]
    return Outcome(seed, plan, history, violations)


def _run(world: World, trouble: Trouble, plan: Plan, path: Path) -> tuple[list[str], set[str]]:
    machines = [Machine(world, f"m{number}") for number in range(1, plan.servers + 1)]
    if plan.store == "file" or plan.is_fleet:
        machines = machines[:1] * plan.servers
    cache = _cache(plan, path)
    simulated_words.Handler.has_logs, simulated_words.Handler.migrating = plan.has_logs, plan.migrating
    simulated_words.Handler.complain = world.errors.append
    folder = path.parent / "left" if plan.is_fleet else None
    servers = [
        Server(world, f"s{number}", machine, cache, plan.workers, plan.of_server(number - 1), folder)
        for number, machine in enumerate(machines, start=1)
    ]
    if plan.roll_out is not None:
        for server in servers:
            world.fates.after(world.random.random() * plan.roll_out, setattr, server, "default", "2.0")
    for server in servers:
        server.all = servers
    network = Network(world, servers, plan.weather)
    clients = [
        Client(world, f"c{number}", kind, network, servers, requires_start=plan.require_start, roams=plan.roams)
        for number, kind in enumerate(plan.clients, start=1)
    ]
    damage = {
        "file": lambda: damage_file(path, world.random),
        "redis": lambda: damage_redis(world.random),
        "memory": lambda: None,
    }[plan.store]
    count = 0 if plan.is_fleet else plan.disasters
    disasters = Disasters(world, servers, trouble, damage, at_points=plan.at_points, count=count)
    if plan.store == "memory":
        disasters.move_sequences(plan.moves)
    if plan.is_fleet:
        disasters.end_processes(plan.disasters, plan.freezes)
    _let_handlers_fail(world, disasters, plan.failing)
    course = world.fates.loop.create_task(_course(world, trouble, network, clients, disasters))
    try:
        world.run_until(course.done)
        violations, damaged = course.result(), disasters.damaged
    except RuntimeError as error:
        violations, damaged = [f"it comes to an end: {error}"], set()
    for process in world.processes:
        process.kill()
    return violations, damaged


async def _course(
    world: World, trouble: Trouble, network: Network, clients: list[Client], disasters: Disasters
) -> list[str]:
    """The clients run in any weather; then all is calm, and each client steps once more."""
    await _together(world, [client.run() for client in clients], clients)
    disasters.are_over, trouble.until, network.weather = True, 0.0, Weather(dropped=0.0, late=0.0, doubled=0.0)
    while network.under_way or (until := max(process.frozen_until for process in world.processes)) > world.now:
        if network.under_way:
            rest = asyncio.Event()
            network.on_rest = functools.partial(world.fates.soon, rest.set)
            await rest.wait()
        else:
            await asyncio.sleep(until - world.now)
    world.history.note(world.now, "all", "is calm")
    await _together(world, [client.finish() for client in clients], clients)
    return [
        f"a sequence continues once all is calm: {client.name} could not within {CALM_LIMIT:.0f} s"
        for client in clients
        if not client.is_satisfied and client.name not in disasters.damaged
    ]


async def _together(world: World, courses: list[Any], clients: list[Client]) -> None:
    """Let each client take its course in its own process, and wait for all of them."""
    tasks = [client.process.loop.create_task(course) for course, client in zip(courses, clients, strict=True)]
    for task in tasks:
        done = asyncio.Event()
        task.add_done_callback(lambda _, done=done: world.fates.soon(done.set))
        await done.wait()
        task.result()


def _cache(plan: Plan, path: Path) -> dict[str, Any]:
    return {
        "store": plan.store,
        "module": _MODULES.get(plan.store, ""),
        "durable": plan.store != "memory",
        "capacity": 2 if plan.store != "memory" else 100,
        "path": str(path),
        "fsync": False,
        "url": "redis://redis",
        "replicas": 0,
        "lease": LEASE,
        "lifetime": plan.lifetime,
        "longest": plan.longest,
        "kept": plan.kept,
        "remembered": REMEMBERED,
        "most_ids": 1000,
        "most_state": 1_000_000,
        "checkpoint_steps": 3,
        "kept_states": plan.kept_states,
        "rebuilt_at_once": 2,
        "state_version": "",
        "require_start": plan.require_start,
        "restart_expired": False,
    }


def _let_handlers_fail(world: World, disasters: Disasters, share: float) -> None:
    runs = itertools.count(1)

    def run(word: str) -> int:
        world.point("in the handler")
        number = next(runs)
        if world.random.random() < share and not disasters.are_over:
            raise ValueError(word)
        if share and sum(word.encode()) % _DEADLY == 0 and not disasters.are_over:
            world.history.note(world.now, world.current.name, f"killed by the step {word}")
            world.current.kill()
            raise Killed
        if world.random.random() < 0.2:
            world.sleep(world.random.random() * 2)
        return number

    simulated_words.Handler.run = staticmethod(run)


@contextlib.contextmanager
def _simulated(world: World, plan: Plan) -> Iterator[None]:
    """Let all code read the clocks of a world, and see its processes."""

    def started(pid: int) -> str | None:
        machine = world.current.machine
        found = [each for each in world.processes if each.pid == pid and each.machine is machine]
        return str(pid) if found and not found[0].is_dead else None

    overlap = CommitOverlap(pays=world.random.random() < 0.5)
    with (
        virtual_time(world),
        mock.patch.multiple(server_identity, started=started, _place=lambda: world.current.machine.name),
        mock.patch.object(give_and_take, "STATE_PIECE", _STATE_PIECE),
        mock.patch.object(sent_ahead, "STATE_PIECE", _STATE_PIECE),
        mock.patch.object(give_and_take, "LARGE", 0 if plan.sends_ahead else sent_ahead.LARGE),
        mock.patch.object(give_and_take, "_AHEAD_AT_ONCE", 1),
        mock.patch.object(background_tasks, "_running", set()),
        simulated_lists(world),
        mock.patch.object(stored_steps, "CommitThread", lambda: CommitThread(world)),
        mock.patch.object(stored_steps, "CommitOverlap", lambda: overlap),
        mock.patch.object(stored_steps, "WatchThread", functools.partial(WatchThread, world)),
        mock.patch.multiple(call, _ID_PREFIX="job-", _numbers=itertools.count(1)),
    ):
        yield
