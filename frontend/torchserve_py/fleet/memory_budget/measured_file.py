"""What models took and how long they loaded, as a file beside the snapshots, for the server's next start.

Only forecasts come of it: a version may have other files by then, so nothing is refused for what an earlier one took.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from torchserve_py.base.atomic_file import write_atomically
from torchserve_py.base.background_tasks import in_background
from torchserve_py.base.settings.table import Settings
from torchserve_py.fleet.memory_budget.budgeted_model import BudgetedModel
from ts.protocol.regular_files import read_regular

logger = logging.getLogger(__name__)

#: The folder of the snapshots, below the directory of the logs, and the file in it.
_FOLDER: Final = "config"
_NAME: Final = "measured.json"
#: A change by less than this part is not written.
_LEAST_CHANGE: Final = 0.05
#: How many versions are remembered, those measured last.
_MOST_VERSIONS: Final = 1000
_MOST_BYTES: Final = 16 << 20


class Measured(BaseModel):
    """What one version took: its greatest peaks in bytes by resource, and how long it loaded the last time."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    peaks: dict[str, Annotated[int, Field(ge=0)]]
    load_seconds: Annotated[float, Field(ge=0, strict=False)]

    def is_like(self, other: Measured | None) -> bool:
        """Return whether both are about the same."""
        if other is None or self.peaks.keys() != other.peaks.keys():
            return False
        pairs = [(size, other.peaks[resource]) for resource, size in self.peaks.items()]
        return all(abs(ours - theirs) <= _LEAST_CHANGE * theirs for ours, theirs in pairs)


class _Versions(BaseModel):
    """The file: what was measured, by model and version."""

    model_config = ConfigDict(extra="forbid")

    versions: dict[str, Measured] = {}


class MeasuredFile:
    """The file of one server; without snapshots there is none."""

    def __init__(self, settings: Settings) -> None:
        self._path: Path | None = None
        self._versions: dict[str, Measured] = {}
        self._writing: asyncio.Task[None] | None = None
        if not settings.no_config_snapshots:
            self._path = settings.log_location / _FOLDER / _NAME
            self._versions = _read(self._path)

    def recall(self, member: BudgetedModel) -> None:
        """Let a version that is registered know what was measured before."""
        if (measured := self._versions.get(member.label)) is not None:
            member.footprint.recall(measured.peaks)
            member.load_seconds = measured.load_seconds

    def keep(self, members: Iterable[BudgetedModel]) -> None:
        """Write what was measured of versions, if it has changed: in the background, where a disk may hang."""
        if self._path is None or (self._writing is not None and not self._writing.done()):
            return
        changed = {}
        for member in members:
            if member.load_seconds is not None and (peaks := member.footprint.peaks):
                measured = Measured(peaks=dict(peaks), load_seconds=member.load_seconds)
                if not measured.is_like(self._versions.get(member.label)):
                    changed[member.label] = measured
        if changed:
            others = [(label, each) for label, each in self._versions.items() if label not in changed]
            self._versions = dict([*others, *changed.items()][-_MOST_VERSIONS:])
            self._writing = in_background(self._write(self._path), "writing what models take")

    async def _write(self, path: Path) -> None:
        text = _Versions(versions=self._versions).model_dump_json()
        try:
            await asyncio.to_thread(_write, path, text)
        except OSError as error:
            logger.warning("What models take would be unknown after a restart: %s", error)


def _read(path: Path) -> dict[str, Measured]:
    try:
        return _Versions.model_validate_json(read_regular(path, _MOST_BYTES)).versions
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        logger.warning("What models took before is unknown: %s cannot be read: %s", path, str(error)[:500])
        return {}


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text)
