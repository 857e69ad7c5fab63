"""Which responses in the background have not ended: a server that starts goes on with them.

While a response is made, an empty file named after it is in `data_folder`. A response that cannot be made keeps its
file until the next start, or until a client asks for it. Whether its model or key will come back nobody knows, so
that a file is kept without them for a week: another server with this folder may have them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

_FOLDER: Final = "background"
#: How long a response is noted that no server can go on with (seconds).
_LONGEST_WAIT: Final = 7 * 86_400.0


class UnfinishedRuns:
    """The files of one server, or of several with the same folder."""

    def __init__(self, data_folder: Path) -> None:
        self._folder = data_folder / _FOLDER
        self._was_told = False

    async def add(self, response_id: str) -> None:
        """Note that a response is being made."""
        await asyncio.to_thread(self._change, response_id, is_there=True)

    async def remove(self, response_id: str) -> None:
        """Note that nothing is left to do for a response."""
        await asyncio.to_thread(self._change, response_id, is_there=False)

    async def remove_if_old(self, response_id: str) -> None:
        """Stop noting a response, whose model or key is not here, if that has been so for a week."""
        begun = await asyncio.to_thread(_moment, self._folder / response_id)
        if begun < time.time() - _LONGEST_WAIT:
            await self.remove(response_id)

    async def oldest_first(self) -> list[str]:
        """Return the responses that were noted, and have not ended as far as is known."""
        return await asyncio.to_thread(lambda: [path.name for path in sorted(self._files(), key=_moment)])

    def _files(self) -> Iterator[Path]:
        if self._folder.is_dir():
            yield from self._folder.iterdir()

    def _change(self, response_id: str, *, is_there: bool) -> None:
        path = self._folder / response_id
        try:
            if is_there:
                self._folder.mkdir(parents=True, exist_ok=True)
                path.touch()
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            if not self._was_told:
                logger.warning("Responses in the background will not go on after a restart by themselves: %s", error)
            self._was_told = True


def _moment(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # another server with this folder has removed it
        return 0.0
