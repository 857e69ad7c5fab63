"""The calls of the management API, for HTTP and gRPC: from plain values to the text of the answer.

Each change is a transaction (`transactions`). It continues if its caller disconnects: half a registration is of no use.
"""

import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, NamedTuple, Self

from torchserve_py.base.settings.schemas.versions import SavedModel
from torchserve_py.base.settings.table import Settings
from torchserve_py.base.url_secrets import without_secrets
from torchserve_py.core.serving.errors import ModelAwaited, ModelNotFound, ModelVersionNotFound, VersionConflict
from torchserve_py.core.serving.serving import (
    ModelStatus,
    RegisterRequest,
    RegisterResult,
    ServedModel,
    Serving,
    WorkerStatus,
)
from torchserve_py.endpoints.failures import EndpointError, Failure, bad_request, method_not_allowed
from torchserve_py.endpoints.management.edits import (
    DefaultChosen,
    Edit,
    Lapsed,
    Registered,
    Scaled,
    Unregistered,
    Weighted,
)
from torchserve_py.endpoints.management.handler_description import description_of
from torchserve_py.endpoints.management.transactions import Transactions
from torchserve_py.endpoints.routing import EndpointContext

logger = logging.getLogger(__name__)

#: Is called with the name of a model of which a version has come, is to go or has gone, before the call is answered.
FollowVersions = Callable[[str], Awaitable[None]]

_PAGE: Final = 100
_ALL_VERSIONS: Final = "all"
_PENDING: Final = "Processing worker updates..."
_PARTIAL: Final = "Workers scaling in progress..."


class Done(NamedTuple):
    """The result of a change: an HTTP status (200, 202 or 206) and TorchServe's text."""

    status: int
    text: str


class ModelApiDisabledError(EndpointError):
    """Registering and unregistering are switched off (``enable_model_api``); only ``GET`` is allowed."""

    def __init__(self) -> None:
        super().__init__(method_not_allowed("GET").failure._replace(cause="model_api_disabled"))


class ManagementCalls:
    """Carries out the calls of the management API.

    Methods raise the errors of `Serving`, and those that they name. `register`, `load`, `unload` and `unregister` raise
    ModelApiDisabledError if the model API is off.
    """

    @classmethod
    def of(cls, context: EndpointContext) -> Self:
        """Return those of a server."""
        return cls(context.settings, context.serving)

    def __init__(self, settings: Settings, serving: Serving) -> None:
        self._serving = serving
        self._model_api = settings.enable_model_api
        self.transactions = Transactions()
        self.followers: list[FollowVersions] = []

    def page(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return a page of the default versions, sorted by name; functions of workflows are not among them."""
        models = [model for model in self._serving.models() if not model.is_function]
        entries = [{"modelName": model.name, "modelUrl": without_secrets(model.url)} for model in models]
        return page_of("models", entries, given)

    async def describe(self, name: str, version: str | None, *, customized: bool) -> list[dict[str, Any]]:
        """Describe one version (default if None) or ``all``; ``customized`` adds the handler's own description."""
        if version == _ALL_VERSIONS:
            return [self._describe(model) for model in self._serving.versions(name)]
        model = self._serving.get(name, version)
        description = self._describe(model)
        if customized:
            metadata = await description_of(self._serving, model)
            description["customizedMetadata"] = metadata if isinstance(metadata, dict) else {}
        return [description]

    async def register(self, given: Mapping[str, Any]) -> Done:
        """Register a model as the given parameters say. Raises EndpointError: they do not name the archive."""
        self.check_model_api()
        if "url" not in given:
            raise bad_request("Parameter url is required.")
        result = await self.transactions.complete(self._register(RegisterRequest(**given)))
        registered = f'Model "{result.model_name}" Version: {result.model_version} registered with'
        if result.workers_wanted == 0:
            advice = "Use scale workers API to add workers for the model."
            if result.loads_on_demand:
                advice = "The first request starts one."
            return Done(200, f"{registered} 0 initial workers. {advice}")
        if result.pending:
            return Done(202, _PENDING)
        if result.workers_started < result.workers_wanted:
            return Done(206, _PARTIAL)
        return Done(200, f"{registered} {result.workers_wanted} initial workers")

    async def load(self, model: RegisterRequest | SavedModel) -> ServedModel:
        """Serve a model, or serve it again, with `Serving.load`."""
        self.check_model_api()
        return await self.transactions.complete(self._load(model))

    async def unload(self, name: str, version: str | None = None) -> None:
        """Stop serving a version of a model, or all versions, after its accepted requests are answered."""
        self.check_model_api()
        versions = self._serving.versions(name) if version is None else [self._serving.get(name, version)]
        edit = Unregistered(name, tuple(each.version for each in versions))
        await self.transactions.carry_out(edit, partial(self._end, name, partial(self._serving.unload, name, version)))

    async def scale(self, name: str, version: str | None, given: Mapping[str, Any]) -> Done:
        """Change the number of workers of a version, the default one if None, as the given parameters say.

        Raises EndpointError: the numbers are invalid, or contradict each other.
        """
        min_workers = _count(given, "min_worker", 1)
        max_workers = _count(given, "max_worker", min_workers)
        synchronous = given.get("synchronous", False)
        model = self._serving.get(name, version)
        if max_workers < min_workers:
            raise bad_request("max_worker cannot be less than min_worker.")
        self.transactions.check_free(name)
        self._serving.check_scale(name, version, min_workers, max_workers)
        ready = await self.transactions.carry_out(
            Scaled(name, model.version, min_workers, max_workers),
            lambda: self._serving.scale(name, model.version, min_workers, max_workers, synchronous=synchronous),
        )
        if ready is None:
            return Done(202, _PENDING)
        if ready < min_workers:
            return Done(206, _PARTIAL)
        text = f"Workers scaled to {min_workers} for model: {name}"
        return Done(200, text if version is None else f"{text}, version: {version}")

    async def unregister(self, name: str, version: str | None) -> Done:
        """Unregister a version, the default one if None.

        One that this server is to serve as its fleet does, and cannot load, is unregistered in the fleet.
        """
        self.check_model_api()
        done = Done(200, f'Model "{name}" unregistered')
        try:
            version = self._serving.check_unregister(name, version)
        except ModelAwaited:
            if version is None:
                raise
            await self.transactions.carry_out(Unregistered(name, (version,)), _nothing)
            return done
        except (ModelNotFound, ModelVersionNotFound):
            if version is None or not self.transactions.is_unsure(name, version):
                raise
            await self.transactions.carry_out(Unregistered(name, (version,)), _nothing)
            return done
        end = partial(self._serving.unregister, name, version)
        await self.transactions.carry_out(Unregistered(name, (version,)), partial(self._end, name, end))
        return done

    async def set_default(self, name: str, version: str, *, force: bool = False) -> Done:
        """Let a version serve requests that name no version.

        ``force``: even if it has no ready worker, as in TorchServe.
        """
        self.transactions.check_free(name)
        self._serving.check_default(name, version, force=force)
        _warn_of(name, [version], self._serving, force=force)

        async def apply() -> None:
            self._serving.set_default(name, version, force=True)

        await self.transactions.carry_out(DefaultChosen(name, version), apply)
        return Done(200, f'Default version successfully updated for model "{name}" to "{version}"')

    async def set_weights(
        self,
        name: str,
        weights: Mapping[str, int],
        *,
        until: int | None = None,
        force: bool = False,
        insist: bool = False,
    ) -> None:
        """Let versions share the requests that name none, see `Serving.set_weights`.

        With ``insist`` the weights hold here at once, whatever is ready, and a fleet that cannot be told is told again
        until it is: for what protects clients, such as the end of a canary.
        """
        if not insist:
            self.transactions.check_free(name)
        self._serving.check_weights(name, weights, force=force or insist)
        if insist:
            edit = Weighted(name, weights, self._serving.weights(name), until)
            self._serving.set_weights(name, weights, until=until, force=True)
            await self.transactions.insist([edit])
            return
        _warn_of(name, weights, self._serving, force=force)

        async def apply() -> None:
            self._serving.set_weights(name, weights, until=until, force=True)

        await self.transactions.carry_out(Weighted(name, weights, until=until), apply)

    async def prolong_weights(self, name: str, weights: Mapping[str, int], until: int) -> None:
        """Move on when weights end, where they are still these. Raises EndpointError: a fleet cannot be told."""

        async def apply() -> None:
            if self._serving.weights(name) == weights:
                self._serving.set_weights(name, weights, until=until, force=True)

        await self.transactions.carry_out(Weighted(name, weights, weights, until), apply)

    async def end_lapsed_weights(self, name: str) -> None:
        """Give the default version all requests, because nobody has moved on when the weights end; tell a fleet so.

        Servers whose state says that somebody has keep theirs.
        """
        until = self._serving.weights_until(name)
        assert until is not None
        self._serving.set_weights(name, {}, force=True)
        await self.transactions.insist([Lapsed(name, until)])

    async def publish(self, name: str, default: str) -> None:
        """Give all requests of a model to a version, and tell a fleet how many workers each version has here now.

        A fleet that cannot be told is told again until it is.
        """
        self._serving.set_default(name, default, force=True)
        self._serving.set_weights(name, {}, force=True)
        edits: list[Edit] = [
            Scaled(name, each.version, each.min_workers or 0, each.max_workers or 0)
            for each in self._serving.saved_models()
            if each.name == name
        ]
        await self.transactions.insist([*edits, DefaultChosen(name, default), Weighted(name, {})])

    def is_held(self, name: str) -> bool:
        """Return whether an operation of several steps is under way with a model."""
        return name in self.transactions.held

    @contextlib.contextmanager
    def holding(self, name: str, refusal: Failure | None = None) -> Iterator[None]:
        """Keep others from changing a model on this server while an operation of several steps is under way.

        With a ``refusal`` calls that change its workers, its default version or its weights get that.
        """
        with self.transactions.holding(name, refusal):
            yield

    async def _register(self, request: RegisterRequest) -> RegisterResult:
        try:
            result = await self._serving.register(request, self._tell_registered)
        except VersionConflict as conflict:
            result = self._registered_before(conflict)
        await self._follow(result.model_name)
        return result

    def _registered_before(self, conflict: VersionConflict) -> RegisterResult:
        """Return the result of a call that is made again because nobody knew whether the fleet was told of it."""
        name, version = conflict.name, conflict.version
        if not self.transactions.is_unsure(name, version):
            raise conflict
        self.transactions.forget_unsure(name, version)
        status = self._serving.status(self._serving.get(name, version))
        ready = sum(worker.ready for worker in status.workers)
        wanted = status.min_workers
        return RegisterResult(
            name, version, ready, wanted, pending=ready < wanted, loads_on_demand=status.loads_on_demand
        )

    async def _load(self, model: RegisterRequest | SavedModel) -> ServedModel:
        served = await self._serving.load(model, self._tell_registered)
        await self._follow(served.name)
        return served

    async def _end(self, name: str, end: Callable[[], Awaitable[None]]) -> None:
        """End a version, unless that has happened meanwhile: this server follows its fleet."""
        await self._follow(name)
        with contextlib.suppress(ModelNotFound, ModelVersionNotFound):
            await end()
        await self._follow(name)

    async def _follow(self, name: str) -> None:
        for follow in self.followers:
            await follow(name)

    async def _tell_registered(self, saved: SavedModel) -> None:
        await self.transactions.tell([Registered(saved)])

    def _describe(self, model: ServedModel) -> dict[str, Any]:
        return _describe(model, self._serving.status(model), self._serving.declared(model), self._serving.usage.rests)

    def check_model_api(self) -> None:
        """Check that models may be registered and unregistered. Raises ModelApiDisabledError: the model API is off."""
        if not self._model_api:
            raise ModelApiDisabledError


async def _nothing() -> None:
    """Do nothing here: what is told concerns others."""


def _warn_of(name: str, versions: Iterable[str], serving: Serving, *, force: bool) -> None:
    for each in versions if force else ():
        if not serving.is_loaded(serving.get(name, each)):
            logger.warning("Requests of model %s go to version %s, which has no ready worker, by force", name, each)


def page_of(name: str, entries: Sequence[dict[str, str]], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the page of entries that ``limit`` and ``next_page_token`` name, as TorchServe answers a list.

    A page that ends exactly at the last entry still names a next one, which is empty, as in TorchServe.
    """
    limit, start = given.get("limit", _PAGE), _count(given, "next_page_token", 0)
    if not 0 <= limit <= _PAGE:
        limit = _PAGE
    page: dict[str, Any] = {}
    if start + limit <= len(entries):
        page["nextPageToken"] = str(start + limit)
    page[name] = entries[start : start + limit]
    return page


def _count(given: Mapping[str, Any], name: str, default: int) -> int:
    value: int = given.get(name, default)
    if value < 0:
        raise bad_request(f"Parameter {name}: '{value}' is not an integer of at least 0.")
    return value


def _describe(
    model: ServedModel, status: ModelStatus, declared: Mapping[str, Any], rests: Mapping[int, tuple[str, float]]
) -> dict[str, Any]:
    """Return what ``GET /models/{model}`` shows of one version: TorchServe's fields, in its order, and three of ours.

    Times are UTC. ``openSequences`` is there if the model keeps sequences, ``unregistering`` if it runs only those.
    While a worker is ready, ``sequenceStates`` says where the states of sequences are kept, and what a step writes
    there: the ``state``, or ``entries`` of a log.
    """
    config = model.config
    states = declared.get("sequence_states")
    return {
        "modelName": model.name,
        "modelVersion": model.version,
        "modelUrl": without_secrets(model.url),
        "runtime": config.runtime,
        "minWorkers": status.min_workers,
        "maxWorkers": status.max_workers,
        "batchSize": config.batch_size,
        "maxBatchDelay": config.max_batch_delay_ms,
        "responseTimeout": config.response_timeout,
        "startupTimeout": config.startup_timeout,
        "maxRetryTimeoutInSec": config.max_retry_timeout,
        "clientTimeoutInMills": config.client_timeout_ms,
        "parallelType": config.parallel_type,
        "parallelLevel": config.parallel_level,
        "deviceType": config.device_type,
        **({} if config.device_ids is None else {"deviceIds": list(config.device_ids)}),
        "continuousBatching": config.continuous,
        "useJobTicket": config.use_job_ticket,
        "useVenv": config.use_venv,
        "stateful": config.stateful,
        "sequenceMaxIdleMSec": config.sequence_max_idle_ms,
        "sequenceTimeoutMSec": config.sequence_timeout_ms,
        "maxNumSequence": config.max_num_sequence,
        "maxSequenceJobQueueSize": config.max_sequence_job_queue_size,
        **({"openSequences": status.open_sequences} if config.stateful else {}),
        **({} if states is None else {"sequenceStates": states}),
        **({"unregistering": True} if status.is_leaving else {}),
        "loadedAtStartup": model.loaded_at_startup,
        "workers": [_worker(worker, rests.get(worker.pid)) for worker in status.workers],
        "jobQueueStatus": {"remainingCapacity": status.queue_remaining, "pendingRequests": status.queue_pending},
    }


def _worker(worker: WorkerStatus, rest: tuple[str, float] | None) -> dict[str, Any]:
    description: dict[str, Any] = {
        "id": worker.id,
        "startTime": _written(worker.started_at),
        "status": "READY" if worker.ready else "WAITING" if worker.waits else "UNLOADING",
        "memoryUsage": worker.memory,
        "pid": worker.pid,
        "gpu": worker.gpu,
        "gpuUsage": worker.gpu_usage,
    }
    if worker.gpu_memory is not None:
        description["gpuMemoryUsage"] = worker.gpu_memory
    if worker.failure:
        description["failure"] = worker.failure
    if worker.starts_in is not None:
        description["startsAgainInSec"] = worker.starts_in
    if rest is not None:
        state, since = rest
        description["sleep"] = {"state": state, "since": _written(datetime.fromtimestamp(since, UTC))}
    return description


def _written(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
