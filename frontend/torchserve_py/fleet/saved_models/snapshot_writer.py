"""Snapshots of a running server: when one is written, what is in it, and how many are kept.

A snapshot is written after the start, after a change of the models, and before the server ends. It has all models, so
changes one after the other must not write one each: those within a second share the next. What could not be written is
written again until it is. The event loop only collects the values; a thread writes the file. A disk that hangs keeps
neither the server's end nor the process waiting.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Final, Literal, TypeAlias

from torchserve_py.apis.workflows.workflow_endpoints import workflows_of
from torchserve_py.base.atomic_file import write_atomically
from torchserve_py.base.background_tasks import in_background
from torchserve_py.base.metrics.families import Family
from torchserve_py.base.metrics.instruments import Gauge
from torchserve_py.base.metrics.server_metrics import ServerMetrics
from torchserve_py.base.settings.model_spec import ModelSpec, is_url
from torchserve_py.base.settings.properties import properties_text, written
from torchserve_py.base.settings.schemas.versions import SavedModel
from torchserve_py.base.settings.server_settings import default_of, sources
from torchserve_py.base.settings.snapshot_files import SNAPSHOT_FOLDER, oldest_first
from torchserve_py.base.settings.table import Settings
from torchserve_py.core.archive.cancellation import run_in_daemon_thread
from torchserve_py.core.archive.downloads import file_name, split_checksum
from torchserve_py.core.archive.errors import ArchiveNotFound
from torchserve_py.core.archive.file_function import split_function
from torchserve_py.core.archive.locate import locate
from torchserve_py.core.serving.serving import Serving
from torchserve_py.endpoints.routing import EndpointContext
from torchserve_py.fleet.saved_models.saved_models_settings import SavedModelsSettings
from torchserve_py.fleet.saved_models.snapshot_file import Snapshot
from torchserve_py.version import __version__

logger = logging.getLogger(__name__)

#: How long a server that stops waits for its last snapshot (seconds).
_LAST_LIMIT = 10.0
#: How long there is none after one (seconds); and how many times as long as that one took, so that a server with
#: thousands of models has a tenth of its time for them at most.
_PAUSE: Final = 1.0
#: How long after a snapshot that could not be written the next one is tried (seconds).
_RETRY: Final = 15.0
_PAUSES_PER_WRITE: Final = 9

Occasion: TypeAlias = Literal["startup", "snapshot", "shutdown"]


async def write_snapshots(context: EndpointContext) -> None:
    """Write the first snapshot of a server, and further ones while it runs."""
    workflows = context.shared(workflows_of)
    writer = SnapshotWriter(context.settings, context.serving, lambda: workflows.saved)
    context.work.append(writer)
    show_writer(context.metrics, writer)
    await writer.started()


def show_writer(metrics: ServerMetrics, writer: SnapshotWriter) -> None:
    """Show at ``/metrics`` whether the latest snapshot could not be written."""
    meaning = "1 while the served models are not in a snapshot, because the latest could not be written"
    family = metrics.add(Family("ts_snapshot_unwritten", Gauge, "Count", meaning))
    family.child({}).read_from(lambda: writer.is_behind)


class SnapshotWriter:
    """Writes the snapshots of one server, unless they are switched off; a failure is logged, and tried again.

    `Serving`, and ``workflows`` for the value of ``load_workflows``, are asked in the event loop, and only there.

    Attributes:
        is_behind: Whether the latest snapshot could not be written.
    """

    def __init__(self, settings: Settings, serving: Serving, workflows: Callable[[], tuple[str, ...]]) -> None:
        self._settings = settings
        self._workflows = workflows
        self._serving = serving
        serving.on_change.append(self.changed)
        self._folder = settings.log_location / SNAPSHOT_FOLDER
        self._enabled = not settings.no_config_snapshots
        self._started = False
        self.is_behind = False
        self._last_milliseconds = 0
        self._changed = False
        self._following: asyncio.Task[None] | None = None
        #: Ends the pause after a snapshot: the last one is due.
        self._ends = asyncio.Event()

    async def started(self) -> None:
        """Write the snapshot of a server that has started, and write one after each change from now on."""
        if self._enabled:
            await self._write("startup")
            self._started = True
            if self.is_behind:
                self.changed()

    def changed(self) -> None:
        """Schedule a snapshot, because the models have changed."""
        if not self._started:
            return
        self._changed = True
        if self._following is None or self._following.done():
            self._following = in_background(self._follow(), "writing snapshots of the configuration")

    async def drain(self, limit: float) -> bool:
        """Do nothing: the last snapshot is written by `close`."""
        return True

    async def close(self) -> None:
        """Write the last snapshot if the server had started; ignore later changes."""
        if not self._started:
            return
        self._started = False
        self._ends.set()
        try:
            async with asyncio.timeout(_LAST_LIMIT):
                if self._following is not None:
                    await self._following
                await self._write("shutdown")
        except TimeoutError:
            logger.warning("The last snapshot of the configuration was not written within %g seconds", _LAST_LIMIT)

    async def _follow(self) -> None:
        while self._changed and self._started:
            self._changed = False
            begun = time.monotonic()
            await self._write("snapshot")
            pause = max(_PAUSE, _PAUSES_PER_WRITE * (time.monotonic() - begun))
            if self.is_behind:
                self._changed, pause = True, max(_RETRY, pause)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ends.wait(), pause)

    async def _write(self, occasion: Occasion) -> None:
        models, not_loaded = self._serving.saved_models(), tuple(self._serving.not_loaded)
        workflows = self._workflows()
        try:
            path = await run_in_daemon_thread(
                lambda: self._write_file(occasion, models, not_loaded, workflows), discard=lambda _: None
            )
        except (OSError, ValueError) as error:
            self.is_behind = True
            text = "The snapshot of the configuration could not be written, and is tried again in %g s: %s"
            logger.warning(text, _RETRY, error)
        else:
            if self.is_behind:
                logger.warning("The snapshot of the configuration is written now: %s", path)
            self.is_behind = False
            logger.debug("Wrote the snapshot %s", path)

    # In a thread, one at a time.

    def _write_file(
        self,
        occasion: Occasion,
        models: Sequence[SavedModel],
        not_loaded: Sequence[ModelSpec],
        workflows: tuple[str, ...],
    ) -> Path:
        self._last_milliseconds = max(time.time_ns() // 1_000_000, self._last_milliseconds + 1)
        when = datetime.fromtimestamp(self._last_milliseconds / 1000)
        path = self._folder / f"{when:%Y%m%d%H%M%S}{self._last_milliseconds % 1000:03d}-{occasion}.cfg"
        store = self._settings.model_store
        locations = {model.location: _restorable(model.location, store) for model in models}
        placed = tuple(model.model_copy(update={"location": locations[model.location]}) for model in models)
        snapshot = Snapshot(path.name, self._last_milliseconds, placed, tuple(not_loaded))
        comment = f"# Written by torchserve-py {__version__}: what differs from the defaults, and the models.\n"
        self._folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, comment + properties_text(_entries(self._settings, snapshot, workflows)))
        for surplus in oldest_first(self._folder)[: -self._settings.of(SavedModelsSettings).snapshots_kept]:
            surplus.unlink(missing_ok=True)
        return path


def _restorable(url: str, model_store: Path) -> str:
    """Return the location from which a later server can load `url`: in the model store, or a folder's absolute path."""
    if is_url(url):
        return file_name(split_checksum(url)[0])
    try:
        path = locate(url, model_store).absolute()
    except ArchiveNotFound:  # deleted while it is served
        return url
    store, function = model_store.absolute(), split_function(url)[1]
    found = str(path.relative_to(store) if path.is_relative_to(store) else path)
    return f"{found}:{function}" if function else found


def _entries(settings: Settings, snapshot: Snapshot, workflows: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for name, source in sources().items():
        value = workflows if name == "load_workflows" else getattr(settings, name)
        if source.in_file and name != "model_snapshot" and value != default_of(name, Path()):
            yield name, written(value)
    yield "model_snapshot", str(snapshot)
