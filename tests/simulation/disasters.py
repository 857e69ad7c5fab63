"""What befalls the processes of a simulated world: at the points of their work, and at any other time."""

from collections.abc import Callable, Sequence
from typing import Final

from tests.simulation.servers import Server
from tests.simulation.stores import Trouble
from tests.simulation.world import Machine, Process, World

#: How long a process may be frozen (seconds): one of these, at most.
_FREEZES: Final = (0.1, 1.0, 15.0, 30.0, 120.0, 3 * 3600.0)
_JUMPS: Final = (-30 * 86_400.0, -3 * 3600.0, -60.0, 60.0, 3 * 3600.0, 30 * 86_400.0)
#: A part of the names of points at which a disaster is more likely, so many times; each world has one of these.
_FAVOURITES: Final = (
    "acquire",
    "commit",
    "COMMIT",
    "write",
    "command",
    "answer",
    "handler",
    "release",
    "renew",
    "find",
)
#: The same for worlds in which sequences in memory move.
_FAVOURITES_IN_MEMORY: Final = ("message", "answer", "handler", "")
_MORE_LIKELY: Final = 10
#: What moves sequences in memory, and how likely it is; at how many of the first points of workers' work, and how many
#: seconds after these.
_MOVES: Final = {Server.renew_worker: 3, Server.remove_worker: 2, Server.add_worker: 2, Server.exchange_version: 2}
_POINTS_WITH_MOVES: Final = 60
_UNTIL_MOVES: Final = (0.0, 0.0, 0.001, 0.1, 2.0)
#: For how long a server of a fleet is frozen (seconds): one of these. Others take it for dead after 10 s.
_FREEZES_IN_FLEETS: Final = (3.0, 30.0)
#: Within so many seconds the disasters happen.
_PERIOD: Final = 30.0


class Disasters:
    """The disasters of one world.

    Args:
        at_points: How likely one is at each point of a worker's work.
        count: How many there are at other times.
        damage: Damages what the store has of a sequence; returns which, and what.
    """

    def __init__(
        self,
        world: World,
        servers: Sequence[Server],
        trouble: Trouble,
        damage: Callable[[], tuple[str, str] | None],
        *,
        at_points: float,
        count: int,
    ) -> None:
        self._world, self._servers, self._trouble, self._at_points = world, servers, trouble, at_points
        self._damage = damage
        #: The sequences of which the store has been damaged.
        self.damaged: set[str] = set()
        self.are_over = False
        self._favourite = world.random.choice(_FAVOURITES)
        #: At which of the next points of workers' work sequences in memory begin to move; the last one comes first.
        self._moves_at: list[int] = []
        self._points = 0
        world.fate_at = self._fate_at
        kinds = {
            self._kill_server: 2,
            self._kill_worker: 1,
            self._stop_server: 2,
            self._freeze_server: 1,
            self._freeze_worker: 1,
            self._freeze_server_and_workers: 2,
            self._suspend_machine: 1,
            self._set_clock: 1,
            self._set_clock_meanwhile: 4,
            self._trouble_store: 1,
            self._damage_store: 2,
        }
        for disaster in world.random.choices([*kinds], [*kinds.values()], k=count):
            world.fates.after(world.random.random() * _PERIOD, self._befall, disaster)

    def move_sequences(self, count: int) -> None:
        """Let sequences in memory move so many times, in the midst of what a worker does then, or soon after it."""
        random = self._world.random
        self._favourite = random.choice(_FAVOURITES_IN_MEMORY)
        self._moves_at = sorted((random.randrange(_POINTS_WITH_MOVES) for _ in range(count)), reverse=True)

    def end_processes(self, count: int, freezes: int) -> None:
        """Let servers stop, and servers and workers die, so many times; and servers freeze, so many times."""
        random = self._world.random
        kinds = {self._stop_server: 6, self._kill_server: 1, self._kill_worker: 1}
        for disaster in random.choices([*kinds], [*kinds.values()], k=count):
            self._world.fates.after(random.random() * random.choice((_PERIOD, 3.0)), self._befall, disaster)
        for _ in range(freezes):
            self._world.fates.after(random.random() * random.choice((_PERIOD, 3.0)), self._befall, self._freeze_alone)

    def _freeze_alone(self) -> None:
        server, seconds = self._server(), self._world.random.choice(_FREEZES_IN_FLEETS)
        self._world.history.frozen(self._world.now, server.name, self._world.now + seconds)
        server.process.freeze(seconds)

    def _count_point(self) -> None:
        """Let sequences move if it is time."""
        self._points += 1
        while self._moves_at and self._moves_at[-1] < self._points:
            self._moves_at.pop()
            self._world.fates.after(self._world.random.choice(_UNTIL_MOVES), self._befall, self._move)

    def _move(self) -> None:
        server, (move,) = self._server(), self._world.random.choices([*_MOVES], [*_MOVES.values()])
        if server.is_up:
            self._note(server.name, move.__name__.replace("_", " "))
            server.process.soon(move, server)

    def _befall(self, disaster: Callable[[], None]) -> None:
        if not self.are_over:
            disaster()

    def _fate_at(self, process: Process, point: str) -> float:
        random = self._world.random
        if self._moves_at:
            self._count_point()
        if self.are_over or not self._at_points:
            return 0.0
        likely = self._at_points * (_MORE_LIKELY if self._favourite in point else 1)
        if random.random() >= likely:
            return 0.0
        return -1.0 if random.random() < 0.5 else self._length()

    def _length(self) -> float:
        return self._world.random.random() * self._world.random.choice(_FREEZES)

    def _note(self, who: str, text: str) -> None:
        self._world.history.note(self._world.now, who, text)

    def _server(self) -> Server:
        return self._world.random.choice(self._servers)

    def _worker(self, server: Server) -> Process | None:
        return self._world.random.choice(server.workers).process if server.workers else None

    def _kill_server(self) -> None:
        server = self._server()
        self._note(server.name, "killed")
        server.process.kill()

    def _kill_worker(self) -> None:
        if (worker := self._worker(self._server())) is not None:
            self._note(worker.name, "killed")
            worker.kill()

    def _stop_server(self) -> None:
        self._stop(self._server())

    def _stop(self, server: Server) -> None:
        if server.is_up:
            self._note(server.name, "told to stop")
            server.process.soon(server.stop)

    def _freeze_server(self) -> None:
        self._freeze(self._server().process, self._length())

    def _freeze_worker(self) -> None:
        if (worker := self._worker(self._server())) is not None:
            self._freeze(worker, self._length())

    def _freeze_server_and_workers(self) -> None:
        self._freeze_both(self._server(), self._length())

    def _freeze_both(self, server: Server, seconds: float) -> None:
        for process in (server.process, *(worker.process for worker in server.workers)):
            self._freeze(process, seconds)

    def _freeze(self, process: Process, seconds: float) -> None:
        self._note(process.name, f"frozen for {seconds:.1f} s")
        process.freeze(seconds)

    def _suspend_machine(self) -> None:
        machine, seconds = self._server().machine, self._length()
        self._note(machine.name, f"the machine is suspended for {seconds:.1f} s")
        machine.suspend(seconds)

    def _set_clock(self) -> None:
        machine = self._world.random.choice([process.machine for process in self._world.processes])
        self._set_clock_of(machine, self._world.random.choice(_JUMPS))

    def _set_clock_of(self, machine: Machine, jump: float) -> None:
        if machine.name == "redis":  # which itself drops what its clock says is old
            jump = -abs(jump)
        machine.wall_offset += jump
        self._note(machine.name, f"the wall clock is set by {jump:+.0f} s")

    def _set_clock_meanwhile(self) -> None:
        """Set the clock while the server that has answered last, which holds a sequence, is away.

        Set back while it is frozen, the clock prolongs a lease that ends at a moment of it; set forward once the server
        has stopped, it lets sequences expire that do so.
        """
        names = {server.name: server for server in self._servers}
        answers = (event for event in reversed(self._world.history.events) if event.what == "answered")
        server = next((names[event.who] for event in answers if event.details.status == 200), self._servers[0])
        jump = abs(self._world.random.choice(_JUMPS))
        if self._world.random.random() < 0.3:
            self._stop(server)
        else:
            self._freeze_both(server, self._world.random.uniform(100.0, 200.0))
            jump = -jump
        self._world.fates.after(self._world.random.random(), self._set_clock_of, server.machine, jump)

    def _trouble_store(self) -> None:
        self._trouble.until = self._world.now + (seconds := self._world.random.random() * 20)
        self._note("store", f"trouble for {seconds:.1f} s")

    def _damage_store(self) -> None:
        if (struck := self._damage()) is not None:
            self.damaged.add(struck[0])
            self._note("store", f"damaged for {struck[0]}: {struck[1]}")
