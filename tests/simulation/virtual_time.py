"""The event loop, the clocks and the chance of a simulated world, as the real code finds them."""

import asyncio
import contextlib
import os
import secrets
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

from torchserve_py.net import running_time
from ts.protocol.boot_clock import boot_time

if TYPE_CHECKING:
    from tests.simulation.world import Process, Turn, World

#: How often the clock of a server beats (seconds).
_BEAT: Final = running_time._BEAT
#: The shortest delay (seconds).
_LEAST: Final = 1e-6
#: How long a call of a disk takes (seconds): one of these, at most.
_OF_DISK: Final = (0.001, 0.001, 0.001, 0.3)


class VirtualLoop(asyncio.AbstractEventLoop):
    """The event loop of one process: what is scheduled on it is a turn of that process."""

    def __init__(self, process: "Process", turn_type: type["Turn"]) -> None:
        self._process, self._world, self._turn_type = process, process.world, turn_type

    def time(self) -> float:
        return self._world.now

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> Any:
        return self.call_at(self._world.now, callback, *args, context=context)

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> Any:
        # Real time passes while a loop comes round; here a delay below what a sum of floats can hold would be none.
        return self.call_at(
            self._world.now + (max(delay, _LEAST) if delay > 0 else 0.0), callback, *args, context=context
        )

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> Any:
        turn = self._turn_type(when, callback, args, context)
        self._world.add(self._process, turn)
        return turn

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Any = None) -> Any:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self._process.keep(task)
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        """Run what blocks in a greenlet; the disk gives an answer soon, or now and then late."""
        answer, random = self.create_future(), self._world.random

        def run() -> None:
            self._world.sleep(random.random() * random.choice(_OF_DISK))
            try:
                result = func(*args)
                self._world.sleep(random.random() * random.choice(_OF_DISK))
            except Exception as error:
                self._process.soon(answer.set_exception, error)
            else:
                self._process.soon(answer.set_result, result)

        self._process.run_blocking(run)
        return answer

    def is_running(self) -> bool:
        return True

    def get_debug(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if "exception" in context:  # else a task of a process that was killed
            self._world.errors.append(f"{context.get('message')}: {context['exception']!r}")


def is_beat(turn: "Turn") -> bool:
    """Whether a turn is one that lets the clock of a server know that its event loop comes round in time."""
    return getattr(turn.callback, "__func__", None) is running_time.RunningTime._beat


def pass_beats(process: "Process", until: float) -> None:
    """Let a process that has nothing to do but its beats have those before ``until``, without a turn for each.

    All that such a beat does is to say up to when the clock runs, and when the next beat is.
    """
    turn = process.beat
    if turn is None or turn.is_cancelled or turn.when() > until:
        return
    passed = (1 + int((until - turn.when()) / _BEAT)) * _BEAT
    turn.callback.__self__._runs_until += passed  # type: ignore[attr-defined]
    turn.postpone(passed)


@contextlib.contextmanager
def virtual_time(world: "World") -> Iterator[None]:
    """Let all code that reads a clock, sleeps or draws lots do so in a world."""

    def clock(read: Callable[[Any], float]) -> Callable[..., float]:
        return lambda *_: read(world.current.machine)

    def set_times(path: Any, times: tuple[float, float] | None = None) -> None:
        now = world.current.machine.wall_time()
        utime(path, times or (now, now))

    machine, utime = type(world.current.machine), os.utime
    patched: dict[Any, dict[str, Any]] = {
        time: {
            "time": clock(machine.wall_time),
            "monotonic": clock(machine.monotonic),
            "perf_counter": clock(machine.monotonic),
            "clock_gettime": clock(machine.boot_time),
            "time_ns": lambda: int(world.current.machine.wall_time() * 1e9),
            "sleep": world.sleep,
        },
        os: {"urandom": world.random.randbytes, "getpid": lambda: world.current.pid, "utime": set_times},
        secrets: {
            "randbits": world.random.getrandbits,
            "token_hex": lambda size=16: world.random.randbytes(size).hex(),
            "token_bytes": world.random.randbytes,
        },
        uuid: {"uuid4": lambda: uuid.UUID(int=world.random.getrandbits(128), version=4)},
    }
    with contextlib.ExitStack() as stack:
        for module, names in patched.items():
            stack.enter_context(mock.patch.multiple(module, **names))
        assert boot_time() == world.current.machine.boot_time(), "leases go by a clock that no world can change"
        yield
