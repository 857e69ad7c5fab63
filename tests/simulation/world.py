"""A world with a time of its own: processes take turns in a seeded order, and stop, freeze and die where a seed says.

Two kinds of code run in it, both unchanged. What is written for asyncio (the server) runs on `VirtualLoop`. What blocks
(the worker and its store) runs in a greenlet of its process, which gives way to the others wherever it would wait, and
at every named point: there it may be frozen for hours, or killed, in the middle of its work.

Nothing here depends on the real time, the hash of a text or an address in memory, so one seed always tells one story.
"""

import asyncio
import heapq
import itertools
import traceback
from collections import deque
from collections.abc import Callable
from contextvars import Context
from random import Random
from typing import Any, Final

import greenlet
from tests.simulation.history import History
from tests.simulation.virtual_time import VirtualLoop, is_beat, pass_beats

#: The number of turns after which a world is said never to come to rest.
MOST_TURNS: Final = 2_000_000
#: A world in which more has failed than this is over: its processes may fail for ever.
MOST_ERRORS: Final = 20
#: How long before something happens the chores of the time before are done (seconds).
_JUST_BEFORE: Final = 0.1


class Killed(SystemExit):
    """This process was killed: its greenlet unwinds. What it does meanwhile has no effect outside."""


class Machine:
    """The clocks that the processes of one machine read.

    Attributes:
        wall_offset: How far the wall clock is ahead of the true time (seconds).
        suspended: For how many seconds the machine has been suspended so far; its monotonic clock stood still then.
    """

    def __init__(self, world: "World", name: str) -> None:
        self.name = name
        self._world = world
        self._booted = -world.random.uniform(1_000, 1_000_000)
        self.wall_offset = 0.0
        self.suspended = 0.0
        self.suspended_until = 0.0

    def suspend(self, seconds: float) -> None:
        """Let no process of this machine run for so long."""
        end = max(self.suspended_until, self._world.now + seconds)
        self.suspended += end - max(self.suspended_until, self._world.now)
        self.suspended_until = end
        for process in self._world.processes:
            if process.machine is self:
                process.freeze(end - self._world.now)

    def boot_time(self) -> float:
        """Return the seconds since the machine was started."""
        return self._world.now - self._booted

    def monotonic(self) -> float:
        """Return the seconds since the machine was started without those for which it was suspended."""
        return self.boot_time() - self.suspended

    def wall_time(self) -> float:
        """Return what the wall clock shows."""
        return 1_700_000_000 + self._world.now + self.wall_offset


class Turn:
    """A call that is due; the handle that asyncio expects."""

    __slots__ = ("_when", "args", "callback", "context", "is_cancelled")

    def __init__(self, when: float, callback: Callable[..., Any], args: tuple[Any, ...], context: Context | None):
        self._when = when
        self.callback, self.args, self.context = callback, args, context
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self._when

    def postpone(self, seconds: float) -> None:
        self._when += seconds


class Process:
    """One process of a machine: its turns are taken in order, while it is neither frozen nor dead."""

    def __init__(self, world: "World", name: str, machine: Machine) -> None:
        self.world, self.name, self.machine = world, name, machine
        self.pid = next(world.pids)
        self.loop = VirtualLoop(self, Turn)
        self.turns: deque[Turn] = deque()
        #: The next beat of the clock of the process's scheduler, if it has one.
        self.beat: Turn | None = None
        self.frozen_until = machine.suspended_until
        self.is_dead = False
        #: Called in the order in which they were added, once the process is dead.
        self.on_death: list[Callable[[], None]] = []
        self._blocking: list[greenlet.greenlet] = []
        self._tasks: list[asyncio.Task[Any]] = []

    @property
    def is_frozen(self) -> bool:
        return self.frozen_until > self.world.now

    def soon(self, callback: Callable[..., Any], *args: Any) -> None:
        """Call something in this process at its next turn."""
        self.world.add(self, Turn(self.world.now, callback, args, None))

    def after(self, delay: float, callback: Callable[..., Any], *args: Any) -> None:
        """Call something in this process ``delay`` seconds from now, at the earliest."""
        self.world.add(self, Turn(self.world.now + delay, callback, args, None))

    def chore(self, delay: float, callback: Callable[..., Any], *args: Any) -> Turn:
        """Call something in this process ``delay`` seconds from now that nobody notices before something else happens.

        What recurs all the time is done only once in a long time in which nothing else happens: right before that ends.
        """
        turn = Turn(self.world.now, callback, args, None)
        self.world.add_chore(self.world.now + delay, self, turn)
        return turn

    def run_blocking(self, function: Callable[[], None]) -> None:
        """Run code that blocks, in a greenlet of this process, which is what a thread is elsewhere."""

        def run() -> None:
            try:
                function()
            except Killed:
                pass
            except Exception:
                self.world.errors.append(f"{self.name} died:\n{traceback.format_exc()}")
                self.kill()

        thread = greenlet.greenlet(run, self.world.hub)
        self._blocking = [each for each in self._blocking if not each.dead] + [thread]
        self.soon(thread.switch)

    def keep(self, task: asyncio.Task[Any]) -> None:
        """Keep a task of the event loop until it is done, or the process dead."""
        self._tasks = [each for each in self._tasks if not each.done()] + [task]

    def freeze(self, seconds: float) -> None:
        """Let this process have no turn for so long."""
        self.frozen_until = max(self.frozen_until, self.world.now + seconds)
        self.world.wake_at(self.frozen_until)

    def kill(self) -> None:
        """End this process at once, wherever it is."""
        if self.is_dead:
            return
        self.is_dead = True
        self.turns.clear()
        self.beat = None
        world, here = self.world, greenlet.getcurrent()
        for thread in self._blocking:
            if thread and thread is not here:
                thread.parent = here
                with world.running(self):
                    thread.throw(Killed())
        world.history.died(world.now, self.name)
        for each in self.on_death:
            each()
        for task in self._tasks:
            coroutine = task.get_coro()
            if not task.done() and not coroutine.cr_running:  # else it has called this
                with world.running(self):
                    coroutine.close()
        self._tasks = []

    @property
    def blocks(self) -> bool:
        """Whether the code that runs now is the blocking code of this process, which may give way."""
        return greenlet.getcurrent() in self._blocking


class World:
    """The time, the processes and their order. Everything random comes from `random`."""

    def __init__(self, random: Random, history: History) -> None:
        self.random, self.history = random, history
        self.now = 0.0
        self.pids = itertools.count(100)
        self.processes: list[Process] = []
        self.hub = greenlet.getcurrent()
        #: Decides what happens to a process at a named point: seconds to be frozen, -1 to be killed, 0 for nothing.
        self.fate_at: Callable[[Process, str], float] = lambda process, point: 0.0
        #: What no code handled.
        self.errors: list[str] = []
        #: What is to be done, when at the earliest, and by whom; see `Process.chore`.
        self._chores: list[tuple[float, int, Process, Turn]] = []
        self._timers: list[tuple[float, int, Process, Turn]] = []
        self._numbers = itertools.count()
        self._runnable: list[Process] = []
        self._beating: list[Process] = []
        self.fates = self.process("fates", Machine(self, "fates"))
        self.current = self.fates

    def process(self, name: str, machine: Machine) -> Process:
        """Start a process."""
        process = Process(self, name, machine)
        self.processes.append(process)
        return process

    def add(self, process: Process, turn: Turn) -> None:
        """Give a process a turn at its time."""
        if process.is_dead:
            return
        if is_beat(turn):
            if process.beat is None and process not in self._beating:
                self._beating.append(process)
            process.beat = turn
        elif turn.when() > self.now:
            heapq.heappush(self._timers, (turn.when(), next(self._numbers), process, turn))
        else:
            self._give_turn(process, turn)

    def add_chore(self, when: float, process: Process, turn: Turn) -> None:
        """Give a process a turn at ``when`` or somewhat later; see `Process.chore`."""
        heapq.heappush(self._chores, (when, next(self._numbers), process, turn))

    def wake_at(self, when: float) -> None:
        """Make sure that time does not pass ``when`` unnoticed."""
        heapq.heappush(self._timers, (when, next(self._numbers), self.fates, Turn(when, lambda: None, (), None)))

    def running(self, process: Process) -> "_Running":
        """Let the code in a ``with`` block run in a process."""
        return _Running(self, process)

    # The main loop

    def run_until(self, is_over: Callable[[], bool]) -> None:
        """Take turns until it is over, or too much has failed. Raises RuntimeError: it is never over."""
        for _ in range(MOST_TURNS):
            if is_over() or len(self.errors) > MOST_ERRORS:
                return
            self._take_turn()
        raise RuntimeError(f"it is not over after {MOST_TURNS} turns, at {self.now:.1f} s")

    def _take_turn(self) -> None:
        runnable = [each for each in self._runnable if each.turns and each.frozen_until <= self.now]
        if not runnable:
            self._pass_time()
            return
        process = runnable[0] if len(runnable) == 1 else runnable[self.random.randrange(len(runnable))]
        turn = process.turns.popleft()
        if not process.turns:
            self._runnable.remove(process)
        if not turn.is_cancelled:
            self.perform(process, turn)

    def perform(self, process: Process, turn: Turn) -> None:
        """Make the call that a turn stands for."""
        with self.running(process):
            try:
                if turn.context is None:
                    turn.callback(*turn.args)
                else:
                    turn.context.run(turn.callback, *turn.args)
            except Killed:
                pass
            except Exception:
                self.errors.append(f"{process.name}:\n{traceback.format_exc()}")

    def _pass_time(self) -> None:
        timers = self._timers
        while timers and (timers[0][3].is_cancelled or timers[0][2].is_dead):
            heapq.heappop(timers)
        if not timers:
            raise RuntimeError(f"nothing can happen any more at {self.now:.1f} s")
        self.now = max(self.now, self._next_chore(timers[0][0]))
        for process in self._beating:
            if process.frozen_until <= self.now:
                pass_beats(process, self.now)
            elif process.beat is not None and process.beat.when() <= self.now:  # it comes late
                self._give_turn(process, process.beat)
                process.beat = None
        while timers and timers[0][0] <= self.now:
            _, _, process, turn = heapq.heappop(timers)
            if not turn.is_cancelled and not process.is_dead:
                self._give_turn(process, turn)

    def _next_chore(self, until: float) -> float:
        """Give turns to those whose chores come before something happens at ``until``; return when that is."""
        chores = self._chores
        if not chores or chores[0][0] > until:
            return until
        when, due = max(chores[0][0], until - _JUST_BEFORE), []
        while chores and chores[0][0] <= when:
            due.append(heapq.heappop(chores))
        for _, _, process, turn in sorted(due, key=lambda chore: chore[1]):  # in the order in which they were added
            if not process.is_dead:
                self._give_turn(process, turn)
        return when

    def _give_turn(self, process: Process, turn: Turn) -> None:
        if not process.turns:
            self._runnable.append(process)
        process.turns.append(turn)

    # Code that blocks

    def sleep(self, seconds: float) -> None:
        """Let others have their turns for so long; called by blocking code."""
        self.current.after(seconds, self.here())
        self.wait()

    def here(self) -> Callable[[], None]:
        """Return what continues the blocking code that calls this, once it waits, when it has a turn."""
        process = self.current
        assert process.blocks, "only blocking code may wait"
        return greenlet.getcurrent().switch

    def wait(self) -> None:
        """Let others have their turns, until the code that calls this is continued; see `here`."""
        process = self.current
        if process.is_dead:
            raise Killed
        self.hub.switch()
        self.current = process

    def point(self, name: str) -> None:
        """Name a point of the blocking code that runs: its process may be frozen here, or killed."""
        process = self.current
        if process.is_dead:
            raise Killed
        if not process.blocks:
            return
        fate = self.fate_at(process, name)
        if fate < 0:
            self.history.note(self.now, process.name, f"killed {name}")
            process.kill()
            raise Killed
        if fate > 0:
            self.history.note(self.now, process.name, f"frozen {name} for {fate:.1f} s")
            process.freeze(fate)
            self.sleep(0.0)


class _Running:
    def __init__(self, world: World, process: Process) -> None:
        self._world, self._process = world, process

    def __enter__(self) -> None:
        self._before, self._world.current = self._world.current, self._process
        asyncio._set_running_loop(self._process.loop)

    def __exit__(self, *_: object) -> None:
        self._world.current = self._before
        asyncio._set_running_loop(self._before.loop)
