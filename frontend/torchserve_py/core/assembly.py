"""Builds a model from a registration: obtains its files, settles its configuration, wires dispatcher and workers."""

import asyncio
import itertools
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from torchserve_py.archive.cancellation import run_in_daemon_thread
from torchserve_py.archive.contract import CONTRACTS
from torchserve_py.archive.model_files import ModelFiles
from torchserve_py.archive.networks import DownloadPolicy
from torchserve_py.archive.obtain import obtain
from torchserve_py.core.autoscaler import Autoscaler
from torchserve_py.core.contracts import Configured, configuration_of
from torchserve_py.core.dependencies import install_dependencies
from torchserve_py.core.dispatcher import Dispatcher
from torchserve_py.core.effective import EffectiveConfig
from torchserve_py.core.errors import BadParameter
from torchserve_py.core.launching import launch_of, load_message, sends_ahead, shared_imports
from torchserve_py.core.model import Model
from torchserve_py.core.plan import Plan, plan_of
from torchserve_py.core.sequence_storage import make_folder
from torchserve_py.core.serving import RegisterRequest
from torchserve_py.metrics.server_metrics import ServerMetrics
from torchserve_py.metrics.system import Usage
from torchserve_py.nvidia_smi import list_gpus
from torchserve_py.settings.table import Settings
from torchserve_py.workers.confinement import Confinement
from torchserve_py.workers.devices import Assignment as DeviceAssignment
from torchserve_py.workers.devices import Devices, visible_devices
from torchserve_py.workers.forking import Forking, can_fork
from torchserve_py.workers.launch import Launch
from torchserve_py.workers.lifecycle import WorkerLimits
from torchserve_py.workers.listener import WorkerListener
from torchserve_py.workers.pool import Place, WorkerPool
from torchserve_py.workers.process import NO_LIMIT
from torchserve_py.workers.worker import Worker

if TYPE_CHECKING:
    from torchserve_py.workers.ray_cluster import RayCluster

logger = logging.getLogger(__name__)

#: Most warnings logged for one registration; a configuration file may hold thousands of unknown keys.
_MAX_WARNINGS = 20
#: Time limit from the launch of a worker to its connection: for importing the worker, not the model (seconds).
_CONNECT_LIMIT = 120.0
#: Time limit from the stop message to the exit of an idle worker (seconds).
_STOP_LIMIT = 10.0


class Assembly:
    """Wires models to the server's settings, sockets, devices and metrics."""

    def __init__(
        self,
        settings: Settings,
        listener: WorkerListener,
        metrics: ServerMetrics,
        usage: Usage,
        confinement: Confinement,
    ) -> None:
        self._settings = settings
        self._confinement = confinement
        self._traces = None
        self._tracing = None
        if settings.traces is not None:
            from torchserve_py.core.job_spans import Tracing, destination_of  # here: OpenTelemetry is slow to import

            self._traces = destination_of(settings.traces)
            self._tracing = Tracing(self._traces)
        self._listener = listener
        #: Where Ray places workers; None: they run on this machine.
        self.cluster: RayCluster | None = None
        self._metrics = metrics
        self._usage = usage
        gpus = list_gpus()
        visible = visible_devices(gpus, os.environ.get("CUDA_VISIBLE_DEVICES"), settings.number_of_gpu)
        self._devices = Devices(visible, hide_others=bool(gpus))
        self._worker_numbers = itertools.count(settings.initial_worker_port)
        self._next_distribution_number = settings.initial_distribution_port
        hidden = settings.blacklist_env_vars
        hidden_variables = frozenset(name for name in os.environ if hidden and hidden.fullmatch(name))
        forks = settings.fork_workers and settings.worker_launcher == "local" and not settings.debug and can_fork()
        self._forking = Forking(confinement, hidden_variables) if forks else None
        #: How the workers of all models are launched; what is a model's own is added.
        self._launch = Launch(
            Path("/"),
            hidden_variables=hidden_variables,
            by_hand=settings.debug,
            confinement=confinement,
            forking=self._forking,
        )

    async def start(self) -> None:
        """Join the cluster whose nodes workers are to run on.

        Raises OSError: there is none, or the packages for it are missing.
        """
        if self._settings.worker_launcher == "ray":
            from torchserve_py.workers.ray_cluster import RayCluster  # most servers do without

            self.cluster = RayCluster(self._listener, self._settings.ray_address, self._settings.ray_worker_host)
            await self.cluster.join()

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
                reuse=at_startup,
            )
            try:  # in this thread, because reading a file of a megabyte takes a second
                return files, configuration_of(files)
            except BaseException:
                files.remove(downloaded=True)
                raise

        files, configured = await run_in_daemon_thread(get, lambda unwanted: unwanted[0].remove(downloaded=True))
        try:
            plan = self._plan(request, files, configured, at_startup=at_startup)
            files = await install_dependencies(
                files,
                plan.name,
                settings.temp_dir,
                use_venv=plan.config.use_venv,
                requirements=settings.install_py_dep_per_model,
                runtime=plan.config.runtime,
                listed=plan.requirements,
                file=plan.requirements_file,
            )
            await asyncio.to_thread(self._confinement.share, files.unpacked_dir, files.dependencies_dir)
            await asyncio.to_thread(make_folder, plan.config.cache, settings.log_location, self._confinement)
            imports: Sequence[str] = ()
            if self._forking is not None:
                imports = await asyncio.to_thread(shared_imports, files.model_dir, plan.handler)
        except BaseException:
            await asyncio.shield(asyncio.to_thread(files.remove, downloaded=True))  # the files may be many
            raise
        return replace(plan, files=files, imports=imports)

    async def close(self) -> None:
        """End what the workers were forked from, and leave the cluster, once all workers have ended."""
        if self._forking is not None:
            await self._forking.close()
        if self.cluster is not None:
            await self.cluster.leave()

    def _plan(self, request: RegisterRequest, files: ModelFiles, configured: Configured, *, at_startup: bool) -> Plan:
        for warning in configured.config.warnings[:_MAX_WARNINGS]:
            logger.warning("%s: %s", request.model_name or configured.name or files.name, warning)
        plan = plan_of(request, files, configured, self._settings, self._devices, at_startup=at_startup)
        if (configured.requirements or configured.requirements_file) and not self._settings.install_py_dep_per_model:
            text = "%s: its requirements are not installed, because install_py_dep_per_model is not true"
            logger.info(text, plan.name)
        return plan

    def build(self, plan: Plan) -> Model:
        """Wire the model; its pool has no workers yet."""
        settings, config = self._settings, plan.config
        metrics = self._metrics.model(
            plan.name, plan.version, as_mlserver=CONTRACTS[plan.files.contract].mlserver_metrics
        )
        dispatcher = Dispatcher(
            config.policy(ahead=sends_ahead(config, settings)),
            metrics,
            end_header=settings.ts_header_key_sequence_end,
            stream_buffer_size=settings.stream_buffer_size,
            record_model_metrics=lambda entries: self._metrics.record_model_metrics(plan.name, entries),
            client_timeout=config.client_timeout_ms / 1000 or None,
        )
        limits = self._limits(config)

        devices: dict[str, DeviceAssignment] = {}

        def new_place(place: Place) -> Callable[[], Worker]:
            # It belongs to the place: a worker that replaces a dead one gets the same device.
            device = devices[place.worker_id] = plan.devices.next()
            label = f"W-{place.worker_id}-{plan.name}_{plan.version}"
            launch = launch_of(self._launch, plan, device, place, settings, self._traces, self.cluster)
            load = load_message(plan, device, place, settings, self._metrics.declared_model_metrics)
            return lambda: Worker(place.worker_id, label, launch, load, limits, self._listener, dispatcher)

        def end_place(worker_id: str) -> None:
            plan.devices.give_back(devices.pop(worker_id))
            if self.cluster is not None:
                self.cluster.forget(worker_id)
                if not devices:
                    self.cluster.forget_files(plan.files.model_dir)

        pool = WorkerPool(
            new_place,
            end_place,
            lambda: self._new_worker_id(config),
            dispatcher,
            metrics,
            max_retry=config.max_retry_timeout,
            stop_limit=settings.unregister_model_timeout,
            renew_to_scale=settings.cpu_launcher_enable,
            on_demand=config.scaling is not None,
        )
        autoscaler = None
        if config.scaling is not None:
            label = f"Model {plan.name} version {plan.version}"
            autoscaler = Autoscaler(label, config.scaling, pool, dispatcher, metrics)
        return Model(plan, dispatcher, pool, self._usage, self._tracing, autoscaler)

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
