"""The life of the server process: build, start, serve, drain, stop. Start reading here.

`Server.start` opens the listeners of `doors.http_listeners` and of `doors.grpc.grpc_listeners`. A request goes

transport (bytes) ──▶ door (its API) ──▶ core.serving ──▶ core.dispatcher ──▶ scheduling (pure)
                                                              │
                                                              └──▶ workers ══ Unix socket ══▶ ts.worker (handler)

Doors know `core.serving` and what they pass through it: a `jobs.inference_request`, and `jobs.parts` or a
`scheduling.effects.Cause` back.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import importlib
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import uvloop

from torchserve_py.core.registry import ModelRegistry
from torchserve_py.core.snapshot import SnapshotWriter
from torchserve_py.doors.grpc_packages import GrpcPackagesError, check_grpc_packages
from torchserve_py.logs import access_log
from torchserve_py.logs.line_logs import FLUSH_INTERVAL, wait_until_written
from torchserve_py.logs.setup import configure_logging
from torchserve_py.metrics.metrics_file import MetricsConfigError, MetricsPlan, read_metrics_config
from torchserve_py.metrics.server_metrics import ServerMetrics
from torchserve_py.metrics.system import SystemMetrics
from torchserve_py.pid_file import PidFile, default_path
from torchserve_py.server_folder import server_folder
from torchserve_py.server_process import heeded_end_signals, release_end_signals
from torchserve_py.settings.flags import parse_flags
from torchserve_py.settings.log_config import LogConfigError
from torchserve_py.settings.resolution import Resolution, SettingsError
from torchserve_py.settings.table import Settings
from torchserve_py.workers.confinement import confinement_of
from torchserve_py.workers.launch import worker_package_root
from torchserve_py.workers.listener import WorkerListener
from torchserve_py.workflows.registry import WorkflowRegistry
from ts.no_new_privileges import gain_no_privileges

if TYPE_CHECKING:
    from torchserve_py.core.serving import Serving
    from torchserve_py.doors.grpc.grpc_listeners import GrpcDoors
    from torchserve_py.doors.http_listeners import Doors
    from torchserve_py.settings.addresses import Address

    Attendant = Callable[["Server"], Coroutine[None, None, None]]

logger = logging.getLogger(__name__)

STARTED_LINE = "Model server started."

#: The smallest time limit for a run of `system_metrics_cmd` (seconds), however short the interval between runs is.
_SHORTEST_COMMAND_LIMIT = 10

#: Time limit for writing the last lines of the access and metric logs (seconds).
_LAST_LINES_LIMIT = 5.0

#: How often freed memory is given back to the system (seconds).
_FREED_MEMORY_INTERVAL = 5.0

#: A higher limit has no use, and slows down code that loops over all possible descriptors.
_MOST_DESCRIPTORS = 1 << 20


class Unservable(Exception):
    """What the server was started for cannot be done; the message says why."""


class Server:
    """The parts of one server process."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._metrics = ServerMetrics(plan=_metrics_plan(settings))
        confinement = confinement_of(
            settings.worker_user, settings.worker_memory_limit, (settings.temp_dir, worker_package_root())
        )
        self._worker_listener = WorkerListener(settings.temp_dir, confinement.group)
        self._registry = ModelRegistry(settings, self._worker_listener, self._metrics, confinement)
        self._workflows = WorkflowRegistry(settings, self._registry)
        self._snapshots = SnapshotWriter(settings, self._registry)
        self._registry.on_change = self._snapshots.changed
        self._system_metrics = SystemMetrics(
            self._metrics,
            command=settings.system_metrics_cmd,
            command_limit=max(settings.metric_time_interval, _SHORTEST_COMMAND_LIMIT),
        )
        self._doors: Doors | None = None
        self._grpc_doors: GrpcDoors | None = None
        self._background: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Register the start-up models, then open the doors; the models continue to load in the background.

        Raises OSError: an address cannot be bound; GrpcPackagesError: the installed packages cannot serve gRPC.
        """
        await self._worker_listener.start()
        # The first workers start while the doors' libraries, which take longest, are imported.
        _, (http_listeners, grpc_listeners) = await asyncio.gather(
            self._registry.load_startup_models(), asyncio.to_thread(_import_doors)
        )
        self._doors = await http_listeners.start_doors(self._settings, self._registry, self._workflows, self._metrics)
        self._grpc_doors = await grpc_listeners.start_grpc_doors(self._doors.context)
        if not self._settings.disable_system_metrics:
            self._background.append(asyncio.create_task(self._collect_system_metrics()))
        self._background.append(asyncio.create_task(self._write_line_logs()))
        self._background.append(asyncio.create_task(_give_back_freed_memory()))
        await self._snapshots.started()

    @property
    def serving(self) -> Serving:
        """The models."""
        return self._registry

    @property
    def addresses(self) -> dict[str, Address]:
        """The addresses in use, by setting, once the server has started."""
        opened = [each.addresses for each in (self._doors, self._grpc_doors) if each is not None]
        return {name: address for addresses in opened for name, address in addresses.items()}

    async def drain(self) -> None:
        """Refuse new work, and let accepted work finish within the drain limit."""
        if self._doors is not None:
            self._doors.context.start_draining()
        limit = self._settings.drain_timeout
        logger.info("Draining: accepted requests and open sequences have at most %d s to finish", limit)
        end = time.monotonic() + limit
        await self._workflows.drain(limit)  # before the models: each further step of a workflow is new work for a model
        if not await self._registry.drain(max(0.0, end - time.monotonic())):
            logger.warning("The drain limit of %d s has passed; unfinished work is ended", limit)

    async def stop(self) -> None:
        """Answer open requests, close the doors and stop the workers; return when the workers are gone."""
        for task in self._background:
            task.cancel()
        await self._snapshots.stopping()
        await self._workflows.close()
        opened = (self._registry, self._doors, self._grpc_doors)
        await asyncio.gather(*(each.close() for each in opened if each is not None))
        await self._worker_listener.close()
        self._flush_line_logs()
        await asyncio.to_thread(wait_until_written, _LAST_LINES_LIMIT)

    async def _collect_system_metrics(self) -> None:
        while True:
            pids = self._registry.worker_pids()
            try:
                await asyncio.to_thread(self._system_metrics.collect, pids, self._registry.usage)
            except Exception:
                logger.exception("The system metrics could not be collected this time")
            self._registry.record_gpu_memory()
            await asyncio.sleep(self._settings.metric_time_interval)

    async def _write_line_logs(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_INTERVAL)
            self._flush_line_logs()

    def _flush_line_logs(self) -> None:
        access_log.flush()
        self._metrics.flush_logs()


async def _give_back_freed_memory() -> None:
    """Give freed memory back to the system from time to time; return at once where the C library cannot do that.

    The allocator keeps freed buffers (see `server_process`): after a flood of large bodies, more than a hundred
    megabytes. A server that is busy takes those it needs again, which costs it little.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    while trim is not None:
        await asyncio.sleep(_FREED_MEMORY_INTERVAL)
        await asyncio.to_thread(trim, 0)


def _import_doors() -> tuple[ModuleType, ModuleType]:
    """Import and return the modules that open the HTTP and gRPC doors.

    Raises GrpcPackagesError: the installed packages of gRPC are incompatible with each other.
    """
    check_grpc_packages()
    http, grpc = "torchserve_py.doors.http_listeners", "torchserve_py.doors.grpc.grpc_listeners"
    return importlib.import_module(http), importlib.import_module(grpc)


def _metrics_plan(settings: Settings) -> MetricsPlan:
    if settings.metrics_config is None:
        return MetricsPlan(mode=settings.metrics_mode)
    listed = read_metrics_config(settings.metrics_config)
    return replace(listed, accepts_unlisted=settings.model_metrics_auto_detect, mode=settings.metrics_mode)


async def _say_started(server: Server) -> None:
    """Tell launchers that the server has started."""
    print(STARTED_LINE, flush=True)  # they wait for exactly this line
    await asyncio.Event().wait()


async def serve(settings: Settings, attend: Attendant = _say_started) -> None:
    """Run a server until a signal arrives; a signal during the start ends the start, a second one ends the drain.

    ``attend`` runs while the server does; the server stops when it returns or raises. Raises OSError: an address cannot
    be bound.
    """
    signals = asyncio.Queue[signal.Signals]()
    loop = asyncio.get_running_loop()
    for number in heeded_end_signals():
        loop.add_signal_handler(number, signals.put_nowait, number)
    release_end_signals()
    server = Server(settings)
    # After nvidia-smi has run (it loads the driver with privileges of its own), and before any code of a model runs.
    gain_no_privileges()
    try:
        received = await _until_signal(server.start(), signals)
        if received is None:
            # Objects that exist now live as long as the server: freezing them spares the collector repeated scans. Of
            # later ones few form cycles; with Python's threshold (700) it would look for these all the time.
            gc.collect()
            gc.freeze()
            gc.set_threshold(5_000)
            received = await _until_signal(attend(server), signals)
            logger.info("The server stops" if received is None else f"{received.name} received")
            await _until_signal(server.drain(), signals)
        else:
            logger.info("%s received during the start", received.name)
    finally:
        await server.stop()
    logger.info("The server has stopped")


async def _until_signal(
    work: Coroutine[None, None, None], signals: asyncio.Queue[signal.Signals]
) -> signal.Signals | None:
    """Await `work` and return None; or, when a signal arrives first, cancel `work` and return the signal.

    An exception of `work` is raised.
    """
    working, signalled = asyncio.create_task(work), asyncio.create_task(signals.get())
    await asyncio.wait([working, signalled], return_when=asyncio.FIRST_COMPLETED)
    for task in (working, signalled):
        task.cancel()
    await asyncio.wait([working, signalled])
    if not working.cancelled():
        working.result()
    return None if signalled.cancelled() else signalled.result()


def raise_descriptor_limit() -> None:
    """Raise the soft limit of file descriptors, often 1024, to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:  # macOS has a further limit of the kernel's own
        logger.warning("The limit of %d file descriptors cannot be raised to %d: %s", soft, wanted, error)


def run(settings: Settings, attend: Attendant = _say_started) -> int:
    """Run a server to its end and return the exit status; see `serve`."""
    raise_descriptor_limit()
    try:
        with (
            server_folder(settings.temp_dir) as folder,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            runner.run(serve(settings.model_copy(update={"temp_dir": folder}), attend))
    except (OSError, MetricsConfigError, GrpcPackagesError, Unservable) as error:
        logger.error("The server cannot run: %s", error)
        return 1
    except Exception:
        logger.exception("The server cannot run because of an error in the server itself")
        return 1
    return 0


def main() -> int:
    """Run the server as the environment and the command line configure it; flags are those of `torchserve-py`."""
    try:
        return _configure_and_run()
    finally:
        _remove_pid_file()


def _configure_and_run() -> int:
    resolution = Resolution(parse_flags(sys.argv[1:]), os.environ, Path.cwd())
    try:
        settings = resolution.settings()
        configure_logging(settings)
    except (SettingsError, LogConfigError, OSError) as error:
        print(error, flush=True)  # logging is not configured yet
        return 1
    for warning in resolution.warnings:
        logger.warning(warning)
    return run(settings)


def _remove_pid_file() -> None:
    """Remove the pid file, by which the launcher finds this server."""
    try:
        PidFile(default_path(), __name__).remove(os.getpid())
    except OSError as error:
        logger.warning("The pid file could not be removed; the next start removes it: %s", error)


if __name__ == "__main__":
    sys.exit(main())
