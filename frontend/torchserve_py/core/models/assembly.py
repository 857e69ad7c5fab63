"""Builds a model from a registration: obtains its files, settles its configuration, wires dispatcher and workers."""

import asyncio
import importlib
import itertools
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from torchserve_py.base.metrics.server_metrics import ServerMetrics
from torchserve_py.base.settings.server_settings import secret_variables
from torchserve_py.base.settings.state_folders import StateFolders
from torchserve_py.base.settings.table import Settings
from torchserve_py.core.archive.cancellation import run_in_daemon_thread
from torchserve_py.core.archive.downloads import DownloadPolicy
from torchserve_py.core.archive.model_files import ModelFiles
from torchserve_py.core.archive.obtain import obtain
from torchserve_py.core.debugging.debug_launcher import DebugLauncher
from torchserve_py.core.dispatch.dispatcher import Dispatcher
from torchserve_py.core.fair_use.fair_order import new_order
from torchserve_py.core.forking.forking import Forking, can_fork
from torchserve_py.core.forking.forking_launcher import ForkingLauncher
from torchserve_py.core.forking.forking_settings import ForkingSettings
from torchserve_py.core.gpus.visible_devices import devices as devices_of_host
from torchserve_py.core.models.further_parts import FurtherParts
from torchserve_py.core.models.model import Autoscaler, Model
from torchserve_py.core.models.model_launch import caller_in, launch_of, load_message, sends_ahead
from torchserve_py.core.plans.contracts import Configured, configuration_of
from torchserve_py.core.plans.effective_config import EffectiveConfig
from torchserve_py.core.plans.plan import Plan, plan_of
from torchserve_py.core.scheduling.closed import ClosedSequences
from torchserve_py.core.serving.errors import BadParameter
from torchserve_py.core.serving.serving import RegisterRequest, Serving
from torchserve_py.core.serving.usage import Usage
from torchserve_py.core.workers.confinement import Confinement
from torchserve_py.core.workers.devices import DeviceAssignment
from torchserve_py.core.workers.launch_command import Launch
from torchserve_py.core.workers.lifecycle import WorkerLimits
from torchserve_py.core.workers.listener import WorkerListener
from torchserve_py.core.workers.local_launcher import LocalLauncher
from torchserve_py.core.workers.pool import PoolPlace, WorkerPool
from torchserve_py.core.workers.process import NO_LIMIT
from torchserve_py.core.workers.worker import Worker
from torchserve_py.core.workers.worker_launcher import Launcher
from torchserve_py.plugins import contracts, launchers, plugins

logger = logging.getLogger(__name__)

#: Most warnings logged for one registration; a configuration file may hold thousands of unknown keys.
_MAX_WARNINGS = 20
#: Time limit from the launch of a worker to its connection: for importing the worker, not the model (seconds).
_CONNECT_LIMIT = 120.0
#: Time limit from the stop message to the exit of an idle worker (seconds).
_STOP_LIMIT = 10.0


class Assembly:
    """Wires models to the server's settings, sockets, devices and metrics.

    Raises PluginUnavailable: a plugin cannot work in this installation, or not as the settings say.
    """

    def __init__(
        self,
        settings: Settings,
        listener: WorkerListener,
        metrics: ServerMetrics,
        usage: Usage,
        confinement: Confinement,
        serving: Serving,
        parts: FurtherParts,
    ) -> None:
        self._settings = settings
        self._confinement = confinement
        found = [plugin.observer(settings) for plugin in plugins()]
        self._observers = [observer for observer in found if observer is not None]
        self._listener = listener
        self._metrics = metrics
        self._usage = usage
        #: The warnings about files that several models share that have been logged.
        self._told: set[str] = set()
        self._parts = parts
        self._room = parts.worker_room(settings, metrics, usage)
        self._devices = devices_of_host(settings)
        self._worker_numbers = itertools.count(settings.initial_worker_port)
        self._next_distribution_number = settings.initial_distribution_port
        hidden = settings.blacklist_env_vars
        secret = secret_variables() | settings.secret_variables
        hidden_variables = frozenset(
            name for name in os.environ if name in secret or (hidden and hidden.fullmatch(name))
        )
        #: Returns with what a function calls others of its file.
        self._call_model = parts.calls_of(serving, settings.max_request_size)
        #: How the workers of all models are launched; what is a model's own is added.
        self._launch = Launch(Path("/"), hidden_variables=hidden_variables, confinement=confinement)
        self._launcher = self._launcher_of(settings)

    def _launcher_of(self, settings: Settings) -> Launcher:
        offer = launchers().get(settings.worker_launcher)
        if offer is not None:
            launcher: Launcher = importlib.import_module(offer.module).launcher(settings, self._listener)
            return launcher
        if settings.debug:
            return DebugLauncher()
        if settings.of(ForkingSettings).fork_workers and can_fork():
            return ForkingLauncher(Forking(self._confinement, self._launch.hidden_variables))
        return LocalLauncher()

    async def start(self) -> None:
        """Get ready to start workers. Raises OSError: that is not possible here."""
        await self._launcher.open()

    async def prepare(self, request: RegisterRequest, *, at_startup: bool) -> Plan:
        """Obtain the model's files, settle its configuration and install its dependencies; this may take long.

        Raises ArchiveError: the archive could not be fetched or read; ModelError: it cannot be served as it is
        configured.
        """
        if request.s3_sse_kms:
            raise BadParameter("Parameter s3_sse_kms is not supported yet. A presigned URL needs no signature of ours.")
        settings = self._settings

        def get() -> tuple[ModelFiles, Configured]:
            files = obtain(
                request.url,
                model_store=settings.model_store,
                temp_dir=settings.temp_dir,
                policy=DownloadPolicy(settings.allowed_urls, settings.allowed_url_networks),
                handler=request.handler,
                has_default_handler=bool(settings.default_service_handler),
                reuse=at_startup,
            )
            try:  # in this thread, because reading a file of a megabyte takes a second
                return files, configuration_of(files, settings.model_store)
            except BaseException:
                files.remove(downloaded=True)
                raise

        files, configured = await run_in_daemon_thread(get, lambda unwanted: unwanted[0].remove(downloaded=True))
        try:
            plan = self._plan(request, files, configured, at_startup=at_startup)
            files = await self._parts.install(plan, settings)
            await asyncio.to_thread(self._confinement.share, files.unpacked_dir, files.dependencies_dir)
            folders = StateFolders.of(settings)
            await asyncio.to_thread(plan.config.states.prepare, folders, plan.name, self._confinement)
        except BaseException:
            await asyncio.shield(asyncio.to_thread(files.remove, downloaded=True))  # the files may be many
            raise
        return replace(plan, files=files)

    async def close(self) -> None:
        """Give up what workers were started with, once all of them have ended."""
        await self._launcher.close()

    def _plan(self, request: RegisterRequest, files: ModelFiles, configured: Configured, *, at_startup: bool) -> Plan:
        for warning in configured.config.warnings[:_MAX_WARNINGS]:
            logger.warning("%s: %s", request.model_name or configured.name or files.name, warning)
        for warning in configured.shared_warnings[:_MAX_WARNINGS]:
            if warning not in self._told:
                self._told.add(warning)
                logger.warning("%s", warning)
        states = self._parts.states_of(configured.config.plugin_keys)
        return plan_of(request, files, configured, self._settings, self._devices, states, at_startup=at_startup)

    def build(self, plan: Plan, over: ClosedSequences | None = None) -> Model:
        """Wire the model; its pool has no workers yet. ``over`` is what its versions share, if it keeps sequences."""
        settings, config = self._settings, plan.config
        offer = contracts().get(plan.files.contract)
        metrics = self._metrics.model(plan.name, plan.version, "" if offer is None else offer.metrics)
        dispatcher = Dispatcher(
            config.policy(ahead=sends_ahead(config, settings)),
            metrics,
            stream_buffer_size=settings.stream_buffer_size,
            record_model_metrics=lambda entries: self._metrics.record_model_metrics(plan.name, entries, plan.version),
            client_timeout=config.client_timeout_ms / 1000 or None,
            over=over,
            order=new_order,
        )
        limits = self._limits(config)
        found = (each.of_model(plan.name, plan.version, config.plugin_keys) for each in self._observers)
        observers = [each for each in found if each is not None]

        caller = caller_in(plan)
        call_model = None if caller is None else self._call_model(caller)
        devices: dict[str, DeviceAssignment] = {}
        declared = self._metrics.declared_model_metrics

        def new_place(place: PoolPlace) -> Callable[[], Worker]:
            # It belongs to the place: a worker that replaces a dead one gets the same device.
            device = devices[place.worker_id] = plan.devices.next()
            label = f"W-{place.worker_id}-{plan.name}_{plan.version}"
            launch = launch_of(self._launch, plan, device, place, settings)
            load = load_message(plan, device, place, settings, declared, observers)
            return lambda: Worker(
                place.worker_id, label, self._launcher, launch, load, limits, self._listener, dispatcher, call_model
            )

        def end_place(worker_id: str) -> None:
            plan.devices.give_back(devices.pop(worker_id))
            self._launcher.forget_place(worker_id)
            if not devices:
                self._launcher.forget_files(plan.files.model_dir)

        pool = WorkerPool(
            new_place,
            end_place,
            lambda: self._new_worker_id(config),
            dispatcher,
            metrics,
            max_retry=config.max_retry_timeout,
            stop_limit=settings.unregister_model_timeout,
            renew_to_scale=settings.cpu_launcher_enable,
            on_demand=config.follows_load,
        )
        following: Autoscaler | None = None
        if config.follows_load:
            label = f"Model {plan.name} version {plan.version}"
            following = self._parts.autoscaler(label, config.plugin_keys, pool, dispatcher, metrics)
        return Model(plan, dispatcher, pool, self._usage, observers, following, self._room)

    def _limits(self, config: EffectiveConfig) -> WorkerLimits:
        limits = WorkerLimits(
            connect=_CONNECT_LIMIT,
            load=config.startup_timeout,
            response=config.response_timeout,
            stop=_STOP_LIMIT,
            heartbeat=self._settings.worker_heartbeat_timeout,
        )
        if self._settings.debug:
            return replace(limits, connect=NO_LIMIT, load=NO_LIMIT, response=NO_LIMIT, heartbeat=NO_LIMIT)
        return limits

    def _new_worker_id(self, config: EffectiveConfig) -> str:
        if not config.ranks:
            return str(next(self._worker_numbers))
        number = self._next_distribution_number
        self._next_distribution_number += config.ranks
        return str(number)
