"""The registry of models: it registers, scales and removes model versions, and is the `Serving` of the endpoints."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Coroutine, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from torchserve_py.base.background_tasks import in_background
from torchserve_py.base.causes import Cause
from torchserve_py.base.metrics.server_metrics import ServerMetrics
from torchserve_py.base.settings.model_spec import ModelSpec
from torchserve_py.base.settings.schemas.versions import SavedModel
from torchserve_py.base.settings.table import Settings
from torchserve_py.base.url_secrets import without_secrets
from torchserve_py.core.archive.errors import ArchiveError, ArchiveExists
from torchserve_py.core.dispatch.ownership import loses_states
from torchserve_py.core.handover.left_files import in_folder
from torchserve_py.core.handover.left_sequences import IsNamed, ServerHandover
from torchserve_py.core.handover.next_server import Inheritance
from torchserve_py.core.models.assembly import Assembly
from torchserve_py.core.models.further_parts import FurtherParts
from torchserve_py.core.models.model import Model
from torchserve_py.core.models.over_of_models import OverOfModels
from torchserve_py.core.models.served_models import ModelVersions, ServedModels, shares_of
from torchserve_py.core.models.startup_models import StartupModel, remedy, saved_model, startup_models
from torchserve_py.core.models.traffic import Traffic
from torchserve_py.core.plans.plan import Plan
from torchserve_py.core.plans.precedence import check_worker_count
from torchserve_py.core.scheduling.scheduler import Scheduler
from torchserve_py.core.serving.changes import Changes
from torchserve_py.core.serving.errors import (
    ArchiveInUse,
    BadParameter,
    DefaultVersionInUse,
    DefaultVersionNotFound,
    DependencyError,
    ModelError,
    ModelGone,
    ModelVersionNotFound,
    ShuttingDown,
    UnregisterTimeout,
    VersionConflict,
    WorkersFailed,
)
from torchserve_py.core.serving.serving import RegisterRequest, RegisterResult, ServedModel, Tell
from torchserve_py.core.serving.usage import Usage
from torchserve_py.core.serving.weights import weights_without
from torchserve_py.core.workers.confinement import Confinement
from torchserve_py.core.workers.listener import WorkerListener
from torchserve_py.core.workers.pool import OVERTAKEN
from torchserve_py.core.workers.startup import WorkerFailed

logger = logging.getLogger(__name__)

#: Time limit for workers to finish their current work when the server stops after its drain (seconds).
_CLOSE_LIMIT = 5.0
#: How long sequences in memory may take to be left to the next server (seconds): with that limit, and what workers take
#: to end, less than the 15 seconds that a platform waits beyond the drain.
_LEAVE_LIMIT = 8.0
#: Where they are left, in the data folder.
_LEFT_FOLDER = "handover"
#: How many sequences another version gets in one turn of the event loop.
_MOVED_AT_ONCE = 500


class _InMemory(NamedTuple):
    """A model that keeps sequences in memory: what has them, and what leaves them to other servers."""

    name: str
    scheduler: Scheduler
    inheritance: Inheritance


class ModelRegistry(ServedModels):
    """All registered models, and the operations that change them."""

    def __init__(
        self,
        settings: Settings,
        listener: WorkerListener,
        metrics: ServerMetrics,
        parts: FurtherParts,
        confinement: Confinement = Confinement(),  # noqa: B008 - it is frozen
    ) -> None:
        super().__init__()
        self._settings = settings
        self._metrics = metrics
        self._changes = Changes()
        #: Models whose workers are starting, before they are served; and removed models that finish accepted jobs.
        self._unserved: set[Model] = set()
        #: Models whose registration has not come to its good end yet.
        self._unsettled: set[Model] = set()
        #: Why start-up models have not got their packages.
        self._not_installed: list[str] = []
        #: The sequences that are over, by the name of the model, which may have been unregistered since.
        self._over = OverOfModels()
        #: What servers leave of sequences in memory.
        shared = parts.shared_handover(settings)
        self._handover = ServerHandover(shared or in_folder(settings.data_folder / _LEFT_FOLDER))
        self._preparations: set[asyncio.Task[Plan]] = set()
        self._closing = False
        self._restore = parts.restored
        #: The usage of workers and GPUs that describe calls show; the server updates it with the system metrics.
        self.usage = Usage()
        self._assembly = Assembly(settings, listener, metrics, self.usage, confinement, self, parts)

    # Changing.

    async def load_startup_models(self) -> None:
        """Register the models that the settings name; a model that cannot be registered is logged and skipped.

        Raises OSError: workers are to run on other machines, and those cannot be reached.
        """
        await self._assembly.start()
        await self._handover.look()
        # In threads, as a disk may hang.
        self.restored = await asyncio.to_thread(self._restore, self._settings)
        wanted = await asyncio.to_thread(lambda: list(startup_models(self._settings, self.restored)))
        plans: list[asyncio.Task[Plan | None]] = []
        try:
            async with asyncio.TaskGroup() as group:
                plans += [group.create_task(self._prepare_at_startup(each)) for each in wanted]
                for each in wanted:  # in this order: of two with the same name and version the first is served
                    plan = await plans[0]
                    del plans[0]
                    self._add_at_startup(each, plan)
        finally:  # prepared models that are not registered; downloads stay for the next start
            for unused in plans:
                if not unused.cancelled() and not unused.exception() and (plan := unused.result()) is not None:
                    plan.files.remove()

    @property
    def why_useless(self) -> str:
        """Why the server has nothing to serve until it is started again, as it lacks packages; empty if it may have."""
        return "" if self._names or self._settings.enable_model_api else "; ".join(self._not_installed)

    def saved_models(self) -> list[SavedModel]:
        return [
            saved_model(model, versions)
            for versions in self._names.values()
            for model in versions.staying
            if not model.in_workflow and model not in self._unsettled
        ]

    def forget_not_loaded(self) -> None:
        self._not_loaded = []

    async def register(self, request: RegisterRequest, tell: Tell | None = None) -> RegisterResult:
        model = self._add(await self._prepare(request, at_startup=False))
        self._not_loaded = [spec for spec in self._not_loaded if not _is_loaded_by(spec, model)]
        self._unsettled.add(model)
        try:
            result = await self._start_registered(model, synchronous=request.synchronous)
            if tell is not None:
                await tell(saved_model(model, self._names.get(model.name)))
        except Exception:
            if model in self._all():  # another call may have unregistered it meanwhile
                await self._remove(model)
            raise
        finally:
            self._unsettled.discard(model)
        self._changed()
        return result

    async def _start_registered(self, model: Model, *, synchronous: bool) -> RegisterResult:
        """Start the workers of a model that was registered just now, and wait for them if the call is synchronous."""
        wanted = model.config.initial_workers
        scaling = model.start_workers(wanted)
        if not synchronous and wanted:
            self._changes.start(_unattended(scaling))
            return RegisterResult(model.name, model.version, 0, wanted, pending=True)
        try:
            await self._complete(scaling, model)
        except WorkersFailed as failure:
            if failure.status != OVERTAKEN:  # otherwise the model has as many as the other call has asked for
                raise
        pool = model.pool
        return RegisterResult(
            model.name, model.version, pool.ready_count, wanted, pending=False, loads_on_demand=pool.loads_on_demand
        )

    async def load(self, model: RegisterRequest | SavedModel, tell: Tell | None = None) -> ServedModel:
        request, saved = (RegisterRequest.of(model), model) if isinstance(model, SavedModel) else (model, None)
        successor = self._build(await self._prepare(request, at_startup=False))
        self._not_loaded = [spec for spec in self._not_loaded if not _is_loaded_by(spec, successor)]
        await asyncio.shield(self._changes.start(self._take_over(successor, saved, tell)))
        return successor.served

    async def scale(
        self, name: str, version: str | None, min_workers: int, max_workers: int, *, synchronous: bool
    ) -> int | None:
        self.check_scale(name, version, min_workers, max_workers)
        model = self.find(name, version)
        scaling = model.scale(min_workers, max_workers)
        if not synchronous:
            self._changes.start(_unattended(scaling))
            self._changed()
            return None
        await self._complete(scaling, model)
        return model.pool.ready_count

    def check_scale(self, name: str, version: str | None, min_workers: int, max_workers: int) -> None:
        check_worker_count(max_workers if self.find(name, version).config.follows_load else min_workers)

    async def renew(self, name: str, version: str, worker_id: str) -> None:
        model = self.find(name, version)
        await self._complete(model.pool.renew(worker_id), model)

    def let_requests_wait(self, name: str, version: str, *, wait: bool) -> None:
        self.find(name, version).pool.let_requests_wait(wait=wait)

    def hand_over(self, name: str, version: str, to: str) -> None:
        self.find(name, version).dispatcher.hand_over(self.find(name, to))

    async def move_sequences(self, name: str, version: str, to: str) -> None:
        giver, taker = self.find(name, version), self.find(name, to)
        await giver.dispatcher.move_to(taker.dispatcher, version, self._settings.unregister_model_timeout)

    def check_weights(self, name: str, weights: Mapping[str, int], *, force: bool = False) -> None:
        self.find(name)
        models = {version: self.find(name, version) for version in weights}
        versions = self._names[name]
        kinds = {each.served.kind for each in models.values()}
        if len(kinds) > 1:
            raise BadParameter(f"Versions {', '.join(weights)} of model {name} take requests of different kinds.")
        if leaving := [version for version, each in models.items() if each in versions.leaving]:
            raise ModelVersionNotFound(name, leaving[0])
        if not force:
            self.check_gains(name, self.shares(name), shares_of(weights, versions.default.version))

    def set_weights(
        self, name: str, weights: Mapping[str, int], *, until: int | None = None, force: bool = False
    ) -> None:
        self.check_weights(name, weights, force=force)
        for model in self._names[name].models.values():
            model.weight = weights.get(model.version, 0)
            model.weight_until = until if model.weight else None
        self._names[name].keep_sequences()
        self._weigh(name)
        self._changed()

    def check_default(self, name: str, version: str, *, force: bool = False) -> None:
        default = self.find(name)
        versions = self._names[name]
        model = versions.models.get(version)
        if model is None or model in versions.leaving:
            raise DefaultVersionNotFound(name, version)
        if not force:
            self.check_gains(name, {default.version: 1.0}, {version: 1.0})

    def set_default(self, name: str, version: str, *, chosen: bool = True, force: bool = False) -> None:
        self.check_default(name, version, force=force)
        self._names[name].choose(self.find(name, version), chosen=chosen)
        self._changed()

    def check_unregister(self, name: str, version: str | None) -> str:
        model = self.find(name, version)
        versions = self._names[name]
        if versions.default is model and any(each is not model for each in versions.staying):
            raise DefaultVersionInUse(name)
        return model.version

    async def unregister(self, name: str, version: str | None = None) -> None:
        model = self.find(name, self.check_unregister(name, version))
        versions = self._names[name]
        others = [each for each in versions.staying if each is not model]
        if model in versions.leaving:
            gone: Awaitable[bool] = versions.leaving[model]
        elif others and model.dispatcher.scheduler.open_sequences:
            gone = versions.leaving[model] = self._changes.start(self._leave(model))
            self._share_weight_of(model, versions)
            self._changed()
        else:
            # Without a ready worker, accepted jobs would wait in vain.
            limit = self._settings.unregister_model_timeout if model.pool.ready_count else 0
            gone = self._remove(model, finishes_in=limit)
        if not await asyncio.shield(gone):
            raise UnregisterTimeout(name)

    async def unload(self, name: str, version: str | None = None) -> None:
        model = self.find(name, version)
        models = [*self._names[name].models.values()] if version is None else [model]
        limit = self._settings.unregister_model_timeout
        if not all(await asyncio.gather(*[self._remove(model, finishes_in=limit) for model in models])):
            raise UnregisterTimeout(name)

    def refuse_new_work(self) -> None:
        """Refuse registrations and new jobs, except parts of accepted requests, because the server shuts down."""
        self._closing = True
        for model in (*self._all(), *self._unserved):
            model.dispatcher.refuse_new_jobs(Cause.draining)

    def _leave_wanted(self, wanted: Iterable[tuple[str, str]]) -> None:
        of_model: dict[str, list[str]] = {}
        for name, sequence_id in wanted:
            of_model.setdefault(name, []).append(sequence_id)
        for model in self._in_memory() if of_model else ():
            if model.name in of_model and not self._handover.of(model.name).changing_hands.locked():  # else later
                leaving = model.inheritance.leave_wanted(of_model[model.name], _LEAVE_LIMIT)
                in_background(leaving, "leaving sequences that another server asks for")

    def _give_up(self, is_among: IsNamed) -> None:
        for model in self._in_memory():
            model.inheritance.give_up(partial(is_among, model.name))

    def _in_memory(self) -> list[_InMemory]:
        """Return the models that keep sequences in memory."""
        return [
            _InMemory(model.name, model.dispatcher.scheduler, inheritance)
            for model in (*self._all(), *self._unserved)
            if (inheritance := model.dispatcher.inheritance) is not None
        ]

    def _has_in_memory(self, name: str, sequence_id: str) -> bool:
        return any(each.inheritance.is_here(sequence_id) for each in self._in_memory() if each.name == name)

    def _sequences_in_memory(self) -> Iterator[tuple[str, str]]:
        for model in self._in_memory():
            for each in model.scheduler.sequences():
                if each.has_state or each.is_left:
                    yield model.name, each.id

    async def drain(self, limit: float) -> bool:
        """Let every model finish its accepted jobs within ``limit`` seconds; return whether all have finished.

        New work is refused from now on. Where another server can have sequences in memory at once, they are left to it
        as soon as they rest; else they go on here, because there may be no next server.
        """
        self.refuse_new_work()
        if self._handover.is_shared:
            in_background(self._leave_resting(limit), "leaving sequences that rest")
        models = (*self._all(), *self._unserved)
        return all(await asyncio.gather(*(model.dispatcher.drain(limit) for model in models)))

    async def _leave_resting(self, limit: float) -> None:
        await self._sequences_have_settled()
        await asyncio.gather(*(model.inheritance.leave_resting(limit) for model in self._in_memory()))

    async def _sequences_have_settled(self) -> None:
        """Wait a while for sequences that change hands within this process."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_LIMIT):
                await self._handover.settle()

    async def leave_sequences(self) -> None:
        """Leave all sequences in memory that are open to the next server."""
        await self._sequences_have_settled()
        await asyncio.gather(*(model.inheritance.leave_all(_LEAVE_LIMIT) for model in self._in_memory()))
        lost = list(self._sequences_in_memory())
        if lost:
            text = "Sequences in memory that are lost, since they could not be left to another server within %g s: %d"
            logger.warning(text, _LEAVE_LIMIT, len(lost))
        await self._handover.has_left(lost)

    async def close(self) -> None:
        """End every model; open jobs and later calls fail with the cause that the server is shutting down."""
        self._closing = True
        for preparation in self._preparations:
            preparation.cancel()
        if self._preparations:
            await asyncio.wait(self._preparations, timeout=_CLOSE_LIMIT)
        models = self._all()
        await asyncio.gather(*(model.end(Cause.draining, _CLOSE_LIMIT) for model in (*models, *self._unserved)))
        await self._changes.wait(_CLOSE_LIMIT)  # they end when the workers that they wait for have ended
        await self._assembly.close()
        for model in models:
            model.files.remove()

    # Implementation.

    def _weigh(self, name: str) -> None:
        """Let the weights of a model's versions count, as they are now."""
        self._traffic.pop(name, None)
        if name in self._names and (weights := self.weights(name)):
            self._traffic[name] = Traffic(name, weights)

    def _share_weight_of(self, gone: Model, versions: ModelVersions) -> None:
        """Let the versions that stay share the requests of one that goes; one that is alone needs no weight."""
        staying = versions.staying
        before = {each.version: each.weight for each in (*staying, gone) if each.weight}
        weights = weights_without(before, {gone.version}, len(staying))
        for each in (*staying, gone):
            if each.weight:
                each.weight = weights.get(each.version, 0)
        self._weigh(gone.name)

    def _changed(self) -> None:
        for each in self.on_change:
            each()

    async def _prepare(self, request: RegisterRequest, *, at_startup: bool) -> Plan:
        """Prepare a registration; fail if the server closes meanwhile."""
        self._check_open()
        preparation = asyncio.create_task(self._assembly.prepare(request, at_startup=at_startup))
        self._preparations.add(preparation)
        preparation.add_done_callback(self._preparations.discard)
        try:
            plan = await preparation
            self._check_open()
        except asyncio.CancelledError:
            if preparation.cancelled():
                self._check_open()
            raise
        except ShuttingDown:
            preparation.result().files.remove(downloaded=True)
            raise
        except ArchiveExists as error:
            for each in self._ending:
                if each.files.downloaded == error.file:
                    raise ArchiveInUse(error.file.name, each.name, each.version) from error
            raise
        return plan

    def _check_open(self) -> None:
        if self._closing:
            raise ShuttingDown

    def _add(self, plan: Plan) -> Model:
        versions = self._names.get(plan.name)
        if versions is not None and plan.version in versions.models:
            self._changes.start(asyncio.to_thread(plan.files.remove, downloaded=True))
            raise VersionConflict(plan.name, plan.version)
        model = self._build(plan)
        if versions is None:
            self._names[model.name] = ModelVersions(model, self.forget_defaults)
        else:
            versions.add(model)
        self._weigh(model.name)
        logger.info("Model %s version %s is registered", model.name, model.version)
        return model

    def _build(self, plan: Plan) -> Model:
        try:
            model = self._assembly.build(plan, self._over.of(plan, self._names))
        except BaseException:
            plan.files.remove(downloaded=True)
            raise
        self._live[model.served.id] = model
        if model.served.is_stateful and not model.served.is_durable:
            model.dispatcher.inherit(self._handover.of(plan.name), plan.version)
            self._handover.share(self._has_in_memory, self._leave_wanted, self._give_up)
        return model

    async def _take_over(self, model: Model, saved: SavedModel | None, tell: Tell | None) -> None:
        """Start the workers of a model that is not served yet; then serve it in place of the one with its version.

        ``saved``, which the model was loaded from, tells whether it becomes the default version.
        """
        self._unserved.add(model)
        # Steps of stored sequences wait until the workers of the earlier model have given up its sequences.
        model.pool.hold()
        try:
            await model.start_workers(max(1, model.config.initial_workers))
            if tell is not None:
                told = saved_model(model, None)
                if saved is not None:
                    told = told.model_copy(update={"default": saved.default, "chosen": saved.chosen})
                await tell(told)
        except Exception as error:
            await self._end_workers(model)
            await asyncio.to_thread(model.files.remove)
            if isinstance(error, WorkerFailed):
                raise WorkersFailed(model.name, model.version, error.status) from error
            raise
        finally:
            self._unserved.discard(model)
        try:
            async with self._handover.of(model.name).changing_hands:
                old = self._serve(model, saved)
                if old is None or not model.served.is_durable:
                    model.pool.resume()
                if old is None:
                    return
                self._unserved.add(old)  # until it has finished
                old.dispatcher.leave_to(model.dispatcher)
                if old.dispatcher.inheritance is not None:
                    await old.dispatcher.inheritance.leave_all(self._settings.unregister_model_timeout)
            await self._finish(old, self._settings.unregister_model_timeout)
            await self._end_workers(old)
        finally:
            model.pool.resume()
        await asyncio.to_thread(old.files.remove)

    def _serve(self, model: Model, saved: SavedModel | None) -> Model | None:
        """Serve a model from now on, and return the one that had its name and version, whose jobs come here too."""
        versions = self._names.get(model.name)
        if versions is None:
            versions = self._names[model.name] = ModelVersions(model, self.forget_defaults)
        old = versions.models.get(model.version)
        versions.add(model)
        if (saved is not None and saved.default) or versions.default is old:
            versions.default = model
        versions.is_chosen |= saved is not None and saved.chosen
        if old is not None and saved is None:
            model.weight, model.weight_until = old.weight, old.weight_until
        self._weigh(model.name)
        self._changed()
        if old is model:
            return None
        if old is not None:
            if loses_states(old, [model]):
                old.dispatcher.lose_states()
            self._live = {id_: model if each is old else each for id_, each in self._live.items()}
        return old

    def _remove(self, model: Model, *, finishes_in: float = 0.0) -> Awaitable[bool]:
        """Take a model out of service at once, so that no other call removes it too; end it in the background.

        Accepted jobs may finish within ``finishes_in`` seconds. Return an awaitable: whether the workers are gone.
        """
        versions = self._names[model.name]
        versions.remove(model)
        if not versions.models:
            del self._names[model.name]
            self.forget_defaults()
            if model not in self._unsettled:  # else it was never served
                self._handover.of(model.name).drop()
        self._share_weight_of(model, versions)
        if loses_states(model, versions.staying):
            model.dispatcher.lose_states()
        self._changed()
        self._ending.add(model)
        return asyncio.shield(self._changes.start(self._end(model, finishes_in)))

    async def _leave(self, model: Model) -> bool:
        """Let a version run its open sequences for a while, then end it; return whether its workers are gone.

        The default version gets those that it continues.
        """
        to = self.find(model.name)
        if to.continues(model):
            ownership = self._names[model.name].ownership
            for number, sequence in enumerate(list(model.dispatcher.scheduler.sequences()), start=1):
                model.dispatcher.move(sequence.id, to, ownership.move(sequence, to))
                if not number % _MOVED_AT_ONCE:
                    await asyncio.sleep(0)
        limit = self._settings.unregister_model_timeout
        if to.takes_over(model):
            model.dispatcher.refuse_new_jobs(Cause.unregistered, runs_out=True)
            await model.dispatcher.move_to(to.dispatcher, model.version, limit)
        await model.dispatcher.drain(limit, Cause.unregistered, runs_out=True)
        versions = self._names.get(model.name)
        if versions is None or versions.models.get(model.version) is not model:
            return True  # it was unloaded or replaced meanwhile
        return await self._remove(model)

    async def _end(self, model: Model, finishes_in: float) -> bool:
        try:
            if finishes_in:
                await self._finish(model, finishes_in)
            gone = await self._end_workers(model)
            await asyncio.to_thread(model.files.remove, downloaded=True)  # in a thread: the files may be many and large
        finally:
            self._ending.discard(model)
        again = self._names.get(model.name)
        if again is None or model.version not in again.models:
            self._metrics.forget(model.name, model.version)
        logger.info("Model %s version %s is unregistered", model.name, model.version)
        return gone

    async def _complete(self, scaling: Coroutine[Any, Any, None], model: Model) -> None:
        """Complete a scaling, with its caller or without.

        Raises ModelGone: the model was unregistered meanwhile; WorkersFailed: a worker failed to get ready.
        """
        failed: WorkerFailed | None = None
        try:
            await asyncio.shield(self._changes.start(scaling))
        except WorkerFailed as failure:
            failed = failure
        finally:
            self._changed()
        versions = self._names.get(model.name)
        if versions is None or model.version not in versions.models:
            raise ModelGone(model.name, model.version) from failed
        if failed is not None:
            raise WorkersFailed(model.name, model.version, failed.status) from failed

    async def _end_workers(self, model: Model) -> bool:
        """End what is left of a model that is not served; return whether all of its workers are gone."""
        gone = await model.end(Cause.unregistered, self._settings.unregister_model_timeout)
        self._live = {id_: each for id_, each in self._live.items() if each is not model}
        return gone

    async def _finish(self, model: Model, limit: float) -> None:
        """Let a model that is no longer served answer its accepted jobs, unless the server ends meanwhile."""
        self._unserved.add(model)
        try:
            await model.dispatcher.drain(limit, Cause.unregistered)
        finally:
            self._unserved.discard(model)

    async def _prepare_at_startup(self, wanted: StartupModel) -> Plan | None:
        try:
            return await self._prepare(wanted.request, at_startup=True)
        except Exception as error:
            self._tell_not_loaded(wanted, error)
        return None

    def _add_at_startup(self, wanted: StartupModel, plan: Plan | None) -> None:
        if plan is None:
            self._not_loaded.append(wanted.spec)
            return
        try:
            model = self._add(plan)
        except Exception as error:
            self._tell_not_loaded(wanted, error)
            if not isinstance(error, VersionConflict):
                self._not_loaded.append(wanted.spec)
            return
        versions = self._names[model.name]
        if wanted.default and (wanted.chosen or versions.default is not model):
            versions.choose(model)
        self._changes.start(_unattended(model.start_workers(model.config.initial_workers)))

    def _tell_not_loaded(self, wanted: StartupModel, error: Exception) -> None:
        """Log why a start-up model is not loaded."""
        name = without_secrets(str(wanted.spec))
        if not isinstance(error, ArchiveError | ModelError | OSError):
            logger.error("Model %s is not loaded because of an error in the server", name, exc_info=error)
            return
        logger.warning("Model %s is not loaded: %s%s", name, error, remedy(wanted.request.url))
        if isinstance(error, DependencyError):
            self._not_installed.append(str(error))


async def _unattended(scaling: Coroutine[Any, Any, None]) -> None:
    """Await a scaling without a caller and drop its failure: the log already has why a worker failed."""
    with contextlib.suppress(WorkerFailed):
        await scaling


def _is_loaded_by(spec: ModelSpec, model: Model) -> bool:
    return spec.location == model.served.url if spec.name is None else spec.name == model.name
