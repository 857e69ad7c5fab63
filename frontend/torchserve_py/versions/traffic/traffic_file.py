"""The canaries and shadows of a server as a file beside its snapshots, for its next start.

The file holds what runs now; the weights themselves are in the snapshots. It is written whole, by a thread, before the
call that has changed something is answered.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Final

from torchserve_py.base.atomic_file import write_atomically
from torchserve_py.base.settings.table import Settings
from torchserve_py.versions.traffic.traffic_body import SavedTraffic

logger = logging.getLogger(__name__)

#: The folder of the snapshots, below the directory of the logs, and the file in it.
_FOLDER: Final = "config"
_NAME: Final = "traffic.json"


class TrafficFile:
    """The file of one server; without snapshots there is none."""

    def __init__(self, settings: Settings) -> None:
        folder = settings.log_location / _FOLDER
        self._path: Path | None = None if settings.no_config_snapshots else folder / _NAME
        #: What the file holds, as far as that is known.
        self._written: SavedTraffic | None = None
        self._lock = asyncio.Lock()

    async def read(self) -> SavedTraffic:
        """Return what ran when the file was written; nothing, and a line in the log, if the file is damaged."""
        if self._path is None:
            return SavedTraffic()
        try:
            text = await asyncio.to_thread(self._path.read_text, "utf-8")
            self._written = SavedTraffic.model_validate_json(text)
        except FileNotFoundError:
            self._written = SavedTraffic()
        except (OSError, ValueError) as error:
            logger.error("Canaries and shadows end: %s cannot be read: %s", self._path, str(error)[:500])
        return self._written or SavedTraffic()

    async def write(self, now: SavedTraffic) -> None:
        """Write what runs now, if it is something else than before; a failure is logged."""
        if (path := self._path) is None:
            return
        async with self._lock:
            if now == self._written:
                return
            try:
                await asyncio.to_thread(_write, path, now)
                self._written = now
            except OSError as error:
                logger.warning("Canaries and shadows would not survive a restart: %s", error)


def _write(path: Path, now: SavedTraffic) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, now.model_dump_json(by_alias=True, exclude_defaults=True))
