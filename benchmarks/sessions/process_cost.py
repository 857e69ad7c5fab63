"""The processor time of a server's processes, those that are killed among them, and the killing."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Final

import psutil

_SAMPLING: Final = 0.5  # seconds


class Processes:
    """A process and all that it has started.

    Args:
        pid: The process.
        victims: A text in the command line of those that may be killed; empty if none may.
    """

    def __init__(self, pid: int, victims: str = "") -> None:
        self._root = psutil.Process(pid)
        self._victims = victims
        self._seconds: dict[tuple[int, float], float] = {}
        self.killed = 0

    def seconds(self) -> float:
        """Return the processor time until now; of a process that has died, until it was last looked at."""
        for process in self._all():
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                self._seconds[process.pid, process.create_time()] = times.user + times.system
        return sum(self._seconds.values())

    async def watch(self) -> None:
        """Look at the processes until cancelled."""
        while True:
            self.seconds()
            await asyncio.sleep(_SAMPLING)

    async def kill(self, every: float, chance: random.Random) -> None:
        """Kill one of the victims at random every so many seconds, until cancelled."""
        while True:
            await asyncio.sleep(every)
            self.seconds()
            victims = [process for process in self._all() if self._is_victim(process)]
            if victims:
                chance.choice(victims).kill()
                self.killed += 1

    def _is_victim(self, process: psutil.Process) -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            return bool(self._victims) and self._victims in " ".join((process.name(), *process.cmdline()))
        return False

    def _all(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            return [self._root, *self._root.children(recursive=True)]
        return []
