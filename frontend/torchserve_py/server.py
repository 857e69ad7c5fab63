"""The life of the server process: build, start, serve, drain, stop. Start reading here.

`Server.start` opens the listeners of `endpoints.http_listeners` and those of `plugins`. A request goes

transport (bytes) ──▶ endpoint (its API) ──▶ serving.serving ──▶ dispatch.dispatcher ──▶ scheduling (pure)
                                                              │
                                                              └──▶ workers ══ Unix socket ══▶ ts.process (handler)

Endpoints know `serving.serving` and what they pass through it: a `jobs.call`, and `jobs.parts` or a
`scheduling.effects.Cause` back.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import platform
import resource
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

if __name__ == "__main__":  # what is imported from here on stays: to look for garbage in it takes a tenth of the start
    gc.disable()

import uvloop

from torchserve_py.base.background_tasks import in_background
from torchserve_py.base.daemon_threads import DaemonThreads
from torchserve_py.base.logs import access_log
from torchserve_py.base.metrics.metrics_plan import MetricsConfigError, MetricsPlan
from torchserve_py.base.metrics.server_metrics import ServerMetrics
from torchserve_py.base.pid_file import PidFile, default_path
from torchserve_py.base.server_folder import server_folder
from torchserve_py.base.settings.flags import parse_flags
from torchserve_py.base.settings.log_config import LogConfigError
from torchserve_py.base.settings.resolution import Resolution, SettingsError
from torchserve_py.base.settings.table import Settings
from torchserve_py.base.terminal import tell
from torchserve_py.contracts.model_packages.installation import install
from torchserve_py.contracts.served_functions.function_calls import calls_of
from torchserve_py.core.confinement.user_confinement import confinement as confinement_of
from torchserve_py.core.models.further_parts import FurtherParts
from torchserve_py.core.models.registry import ModelRegistry
from torchserve_py.core.orphans.orphans import orphans_adopted, reap_orphans
from torchserve_py.core.workers.launch_command import worker_package_root
from torchserve_py.core.workers.listener import WorkerListener
from torchserve_py.endpoints.token_authorization import Authorization, Protection
from torchserve_py.fleet.memory_budget.memory_room import worker_room
from torchserve_py.fleet.saved_models.restored_models import restored, shared_handover
from torchserve_py.fleet.scaling.autoscaler import autoscaler
from torchserve_py.openings import problems_of_opening
from torchserve_py.ops.browser_guard.browser_guard import BrowserGuard
from torchserve_py.ops.freed_memory.freed_memory import give_back_freed_memory, share_one_arena
from torchserve_py.ops.log_files import setup as log_files
from torchserve_py.ops.metrics.custom_metrics import CustomMetrics
from torchserve_py.ops.metrics.metric_log import metric_lines
from torchserve_py.ops.metrics.metrics_settings import listed_metrics
from torchserve_py.ops.tls.tls import server_context
from torchserve_py.plugin_api import PluginUnavailable
from torchserve_py.plugins import authorization, plugins
from torchserve_py.sequences.steps.kept_states import states_of
from torchserve_py.server_process import SERVER, has_terminal, heeded_end_signals, release_end_signals
from torchserve_py.version import TORCHSERVE_VERSION, __version__
from ts.process.no_new_privileges import gain_no_privileges

if TYPE_CHECKING:
    from torchserve_py.base.settings.addresses import Address
    from torchserve_py.core.serving.serving import Serving
    from torchserve_py.endpoints.http_listeners import HttpListeners
    from torchserve_py.endpoints.routing import EndpointContext, PluginWork
    from torchserve_py.plugin_api import BackgroundOffer, EndpointsOffer, Listener, ListenerOffer

    StartListeners = Callable[
        [Settings, Serving, ServerMetrics, Iterable[EndpointsOffer], Authorization | None, Protection],
        Awaitable[HttpListeners],
    ]
    Attendant = Callable[["Server"], Coroutine[None, None, None]]

logger = logging.getLogger(__name__)

#: What new files and folders never are, whatever the umask that the server is started with: writable for other users.
#: Workers inherit it. What holds keys, states or requests is made for the server's user alone.
_NOT_FOR_OTHERS: Final = 0o022

STARTED_LINE = "Model server started."

#: How often the log of metrics gets lines of what has changed since the last time (seconds).
_CHANGES_INTERVAL = 1.0

#: A higher limit has no use, and slows down code that loops over all possible descriptors.
_MOST_DESCRIPTORS = 1 << 20


#: What the wings above the core and the endpoints give them.
FURTHER_PARTS: Final = FurtherParts(autoscaler, worker_room, install, calls_of, states_of, restored, shared_handover)
PROTECTION: Final = Protection(server_context, BrowserGuard)


class Unservable(Exception):
    """What the server was started for cannot be done; the message says why."""


class Server:
    """The parts of one server process."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        listed = listed_metrics(settings) or MetricsPlan()
        summary = settings.metric_log_lines == "summary"
        plan = replace(listed, mode=settings.metrics_mode, summary=summary)
        self._metrics = ServerMetrics(None, plan, metric_lines, CustomMetrics)
        confinement = confinement_of(settings, (settings.temp_dir, worker_package_root()))
        self._worker_listener = WorkerListener(settings.temp_dir, confinement.group)
        self._registry = ModelRegistry(settings, self._worker_listener, self._metrics, FURTHER_PARTS, confinement)
        self._endpoints: HttpListeners | None = None
        self._listeners: list[Listener] = []
        self._background: list[asyncio.Task[None]] = []
        self._drain: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Register the start-up models, then open the endpoints; the models continue to load in the background.

        Raises Unservable: an address is taken, a key store or file cannot be used, or the packages of all models cannot
        be installed; OSError: an address was taken meanwhile; PluginUnavailable: a plugin cannot work in this
        installation.
        """
        if problems := await problems_of_opening(self._settings):
            raise Unservable("; ".join(problems))
        await self._worker_listener.start()
        # The first workers start while the endpoints' libraries, which take longest, are imported.
        _, (start_http_listeners, endpoints, listeners, background) = await asyncio.gather(
            self._registry.load_startup_models(), asyncio.to_thread(_import_endpoints)
        )
        if problem := self._registry.why_useless:
            raise Unservable(problem)
        tokens = authorization(self._settings)
        self._endpoints = await start_http_listeners(
            self._settings, self._registry, self._metrics, endpoints, tokens, PROTECTION
        )
        self._endpoints.context.drain = self.begin_drain
        for listener in listeners:
            self._listeners.append(await listener(self._endpoints.context))
        for offer in background:
            self._background.append(in_background(offer.work(self._endpoints.context), offer.what))
        self._background.append(in_background(reap_orphans(), "reaping orphans"))
        self._background.append(in_background(give_back_freed_memory(), "giving back freed memory"))
        self._background.append(in_background(self._log_changes(), "logging metrics that have changed"))

    @property
    def serving(self) -> Serving:
        """The models."""
        return self._registry

    @property
    def context(self) -> EndpointContext:
        """What the endpoints share, once the server has started."""
        assert self._endpoints is not None
        return self._endpoints.context

    @property
    def _work(self) -> Sequence[PluginWork]:
        return () if self._endpoints is None else self._endpoints.context.work

    @property
    def addresses(self) -> dict[str, Address]:
        """The addresses in use, by setting, once the server has started."""
        endpoints = {} if self._endpoints is None else self._endpoints.addresses
        of_plugins = (each.addresses for each in self._listeners)
        return endpoints | {name: address for addresses in of_plugins for name, address in addresses.items()}

    def reload(self) -> None:
        """Look at the files that may change while the server runs, such as its keys and its certificate."""
        logger.info("SIGHUP received: files that have changed are read again")
        for look in () if self._endpoints is None else self._endpoints.context.on_reload:
            self._background.append(in_background(asyncio.to_thread(look), "reading a file again"))

    def begin_drain(self) -> asyncio.Task[None]:
        """Say at once that the server is not ready; after `drain_delay` refuse new work, and let the rest finish.

        Accepted work has `drain_timeout` seconds. Returns the task that does so, the same one each time.
        """
        if self._drain is None:
            self._start_leaving()  # in the same turn: a client that reads it expects refusals
            self._drain = in_background(self._leave(), "draining")
            self._background.append(self._drain)
        return self._drain

    async def drain(self) -> None:
        """Wait until the server has drained; see `begin_drain`."""
        await asyncio.shield(self.begin_drain())

    def _start_leaving(self) -> None:
        if self._endpoints is not None:
            self._endpoints.context.start_leaving()
        if not self._settings.drain_delay:
            self._refuse_new_work()

    async def _leave(self) -> None:
        if self._settings.drain_delay:
            logger.info(
                "Leaving: not ready from now on; new work is accepted for %d s more", self._settings.drain_delay
            )
            await asyncio.sleep(self._settings.drain_delay)
            self._refuse_new_work()
        limit = self._settings.drain_timeout
        logger.info("Draining: accepted requests and open sequences have at most %d s to finish", limit)
        finished = await asyncio.gather(*(each.drain(limit) for each in (self._registry, *self._work)))
        if not all(finished):
            logger.warning("The drain limit of %d s has passed; unfinished work is ended", limit)

    def _refuse_new_work(self) -> None:
        if self._endpoints is not None:
            self._endpoints.context.start_draining()
        self._registry.refuse_new_work()

    async def stop(self) -> None:
        """Answer open requests, close the endpoints and stop the workers; return when the workers are gone."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*(work.close() for work in self._work))
        await self._registry.leave_sequences()
        opened = (self._registry, self._endpoints, *self._listeners)
        await asyncio.gather(*(each.close() for each in opened if each is not None))
        await self._worker_listener.close()
        access_log.flush()
        self._metrics.flush_logs()
        await asyncio.to_thread(_flush_logs)

    async def _log_changes(self) -> None:
        while True:
            await asyncio.sleep(_CHANGES_INTERVAL)
            try:
                self._metrics.flush_logs()
            except Exception:  # records of requests would pile up
                logger.exception("Metrics could not be added up this time")


def _import_endpoints() -> tuple[StartListeners, list[EndpointsOffer], list[ListenerOffer], list[BackgroundOffer]]:
    """Import all endpoints; return the function that opens those of HTTP, and what plugins offer.

    Raises PluginUnavailable: a plugin cannot work in this installation.
    """
    from torchserve_py.endpoints.http_listeners import start_http_listeners

    endpoints = [offer for plugin in plugins() for offer in plugin.endpoints()]
    listeners = [offer for plugin in plugins() for offer in plugin.listeners()]
    return start_http_listeners, endpoints, listeners, [offer for plugin in plugins() for offer in plugin.background()]


async def _say_started(server: Server) -> None:
    """Tell launchers that the server has started."""
    # They wait for exactly this line; written at once with its end, so that no line of the log gets into it.
    await asyncio.to_thread(print, f"{STARTED_LINE}\n", end="")
    await asyncio.Event().wait()


async def serve(settings: Settings, attend: Attendant = _say_started) -> None:
    """Run a server until a signal arrives; a signal during the start ends the start, a second one ends the drain.

    ``attend`` runs while the server does; the server stops when it returns or raises. Raises OSError: an address cannot
    be bound.
    """
    signals = asyncio.Queue[signal.Signals]()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(DaemonThreads())
    server = Server(settings)
    for number in heeded_end_signals():
        if number is signal.SIGHUP and not has_terminal():
            loop.add_signal_handler(number, server.reload)
        else:
            loop.add_signal_handler(number, signals.put_nowait, number)
    release_end_signals()
    # After nvidia-smi has run (it loads the driver with privileges of its own), and before any code of a model runs.
    gain_no_privileges()
    gc.set_threshold(5_000)  # of later objects few form cycles: with Python's 700 it would look for these all the time
    try:
        received = await _until_signal(server.start(), signals)
        if received is None:
            gc.freeze()  # what exists now lives as long as the server: this spares the collector repeated scans
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
    share_one_arena()
    try:
        with (
            orphans_adopted(),
            server_folder(settings.temp_dir) as folder,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            runner.run(serve(settings.model_copy(update={"temp_dir": folder}), attend))
    except (OSError, MetricsConfigError, PluginUnavailable, Unservable) as error:
        logger.error("The server cannot run: %s", error)
        return 1
    except Exception:
        logger.exception("The server cannot run because of an error in the server itself")
        return 1
    return 0


def _flush_logs() -> None:
    for handler in logging.getLogger().handlers:
        handler.flush()


def configure_logging(settings: Settings) -> None:
    """Send each log to its place, as `ops.log_files` has it. Raises LogConfigError, OSError.

    From here on the process makes files, so here it takes care that no other user can write to any of them.
    """
    os.umask(os.umask(_NOT_FOR_OTHERS) | _NOT_FOR_OTHERS)
    log_files.configure_logging(settings)


def main() -> int:
    """Run the server as the environment and the command line configure it; flags are those of `torchserve-py`."""
    try:
        return _configure_and_run()
    finally:
        _forget_process()


def _forget_process() -> None:
    """Remove the pid file that names this process."""
    try:
        PidFile(default_path(), SERVER).remove(os.getpid())
    except OSError as error:
        logger.warning("The pid file could not be removed; the next start removes it: %s", error)


def _configure_and_run() -> int:
    resolution = Resolution(parse_flags(sys.argv[1:]), os.environ, Path.cwd())
    try:
        settings = resolution.settings()
        configure_logging(settings)
    except (SettingsError, LogConfigError, OSError) as error:
        tell(error)  # logging is not configured yet
        return 1
    versions = (__version__, TORCHSERVE_VERSION, platform.python_version(), os.getpid())
    logger.info("torchserve-py %s, compatible with TorchServe %s, runs on Python %s as process %d", *versions)
    for warning in resolution.warnings:
        logger.warning(warning)
    return run(settings)


if __name__ == "__main__":
    gc.freeze()  # no later collection looks at what was imported
    gc.enable()
    sys.exit(main())
