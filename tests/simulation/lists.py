"""The lists of servers that leave each other sequences, in the time of a simulated world."""

import contextlib
import os
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from unittest import mock

from tests.simulation.world import World

from torchserve_py.core.handover import server_lists, whereabouts
from torchserve_py.core.handover.left_files import LeftFiles
from torchserve_py.core.handover.whereabouts import Whereabouts

#: How often a server looks that seeks a sequence (seconds): less often than others, which would take long here.
_SEEK_INTERVAL: Final = 0.1
#: For how long lists and what servers wait for count: for ever.
_KEPT: Final = float("inf")


@contextlib.contextmanager
def simulated_lists(world: World) -> Iterator[None]:
    """Let servers look at lists when something happens, and write them at the time of a world."""
    pause, write, leave = Whereabouts._pause, server_lists.write_atomically, LeftFiles.write

    async def pause_here(self: Whereabouts) -> None:
        if self._sought:
            await pause(self)
            return
        look = world.current.chore(whereabouts._WANTED_INTERVAL, self._wake.set)
        await self._wake.wait()
        look.cancel()
        self._wake.clear()

    def write_here(path: Path, text: str, *, flushed: bool) -> None:
        write(path, text, flushed=flushed)
        os.utime(path)

    def leave_here(self: LeftFiles, key: str, *given: Any) -> None:
        leave(self, key, *given)
        with contextlib.suppress(FileNotFoundError):
            os.utime(self._folder / key)

    def fail(*_: object) -> None:
        world.errors.append(traceback.format_exc())

    with (
        mock.patch.object(Whereabouts, "_pause", pause_here),
        mock.patch.object(whereabouts, "_SEEK_INTERVAL", _SEEK_INTERVAL),
        mock.patch.object(whereabouts.logger, "exception", fail),
        mock.patch.object(server_lists, "write_atomically", write_here),
        mock.patch.object(LeftFiles, "write", leave_here),
        mock.patch.dict(server_lists._KEPT, dict.fromkeys(server_lists._KEPT, _KEPT)),
    ):
        yield
