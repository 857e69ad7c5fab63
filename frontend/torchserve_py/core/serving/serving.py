"""What endpoints and plugins may use of the models that are served: one interface, and the plain values that cross it.

No live object crosses it. An endpoint names a model by the `ServedModel` that `Serving.get` gave it, and asks
`Serving` for everything that changes while the model is served.
"""

import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple, Protocol, Self, TypeAlias

from torchserve_py.base.settings.model_spec import ModelSpec
from torchserve_py.base.settings.schemas.plugin_keys import PluginKeys
from torchserve_py.base.settings.schemas.versions import SavedModel
from torchserve_py.core.archive.contract import Contract
from torchserve_py.core.archive.file_function import FileFunction
from torchserve_py.core.jobs.call import Call
from torchserve_py.core.serving.model_activity import Activity, SequenceOrder, SequencePage
from torchserve_py.core.serving.usage import Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedConfig:
    """The settings of a model version, as endpoints show them. Times are in milliseconds (`_ms`) or seconds.

    0 means no limit, where a setting allows 0.
    """

    batch_size: int
    max_batch_delay_ms: int
    response_timeout: int
    startup_timeout: int
    max_retry_timeout: int
    client_timeout_ms: int
    job_queue_size: int
    use_job_ticket: bool
    continuous: bool
    #: Whether each request is a separate call: for a handler that is a coroutine, and with the other contracts.
    async_communication: bool
    stateful: bool = False
    sequence_max_idle_ms: int = 0
    sequence_timeout_ms: int = 0
    max_num_sequence: int = 0
    max_sequence_job_queue_size: int = 0
    device_type: Literal["cpu", "gpu"]
    device_ids: tuple[int, ...] | None
    parallel_type: str
    parallel_level: int
    use_venv: bool
    runtime: str
    #: Whether the server itself decides how many workers there are.
    follows_load: bool = False
    #: What the model's configuration says under the keys of plugins.
    plugin_keys: PluginKeys = field(default_factory=PluginKeys)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class ServedModel:
    """A registered model version, as far as it does not change.

    ``id`` differs for each registration: a version that is registered again has another.
    """

    id: int
    name: str
    version: str
    url: str
    contract: Contract
    config: ServedConfig
    is_stateful: bool
    is_durable: bool  # whether states of sequences outlive their worker
    loaded_at_startup: bool
    #: Returns whether workers do not start because memory runs out.
    lacks_memory: Callable[[], bool] = lambda: False
    #: Returns why none of its workers could load it at the last attempt; empty if one could, or there was no attempt.
    load_failure: Callable[[], str] = lambda: ""
    #: Returns when the next of its workers is started again (seconds since 1970), if one is and all of them fail.
    starts_at: Callable[[], float | None] = lambda: None
    #: Returns how many sequences are open.
    open_sequences: Callable[[], int] = lambda: 0
    function: FileFunction | None = None  # what it is of a Python file with several models
    is_function: bool = False  # whether it runs a function of a workflow's handler; TorchServe's list leaves these out

    @property
    def kind(self) -> tuple[Contract, bool]:
        """What versions of a model must have in common to take the same requests."""
        return self.contract, self.is_stateful


def seconds_until(moment: float) -> int:
    """Return the whole seconds until a moment (seconds since 1970), 0 if it has passed."""
    return max(0, math.ceil(moment - time.time()))


@dataclass(frozen=True, kw_only=True)
class WorkerStatus:
    """One worker of a model version now."""

    id: str
    started_at: datetime
    ready: bool  # takes jobs
    memory: int  # bytes, 0 before it was measured
    pid: int  # -1 before there is a process
    gpu: bool
    gpu_usage: str
    gpu_memory: int | None  # bytes, None where it is not known
    failure: str  # why the last start failed, "" if it did not
    gave_up: bool  # whether the worker has been failing for so long that it is started rarely
    waits: bool = False  # no machine has room for it at present
    state: str = ""  # one word; see `workers.supervisor.Supervisor.condition`
    device: str = "cpu"
    restarts: int = 0
    deaths: int = 0  # how often the worker of its place has died, or did not get ready
    last_end: str = ""  # why the last worker ended that was not told to, "" if none did
    running: int = 0  # jobs
    launched_at: datetime | None = None  # when the process was started; `started_at` is when its place was
    starts_at: float | None = None  # when it is started again (seconds since 1970), if only that is waited for

    @property
    def starts_in(self) -> int | None:
        """In how many seconds it is started again, None if that is not what is waited for."""
        return None if self.starts_at is None else seconds_until(self.starts_at)


class WorkerCountChange(NamedTuple):
    """A change of the number of workers that no person has asked for: when (seconds since 1970), and why."""

    at: float
    before: int
    now: int
    why: str


@dataclass(frozen=True, kw_only=True)
class ModelStatus:
    """The workers and the queue of a model version now."""

    min_workers: int
    max_workers: int
    workers: Sequence[WorkerStatus]  # oldest first
    queue_remaining: int  # free room, in jobs
    queue_pending: int  # waiting jobs
    loads_on_demand: bool = False  # there may be no worker, and a request starts one
    latest_change: WorkerCountChange | None = None
    open_sequences: int = 0
    migrated: int = 0  # sequences that have moved here from other versions so far
    not_migrated: int = 0  # sequences of other versions whose states could not be migrated
    is_leaving: bool = False  # whether the version is being unregistered, and runs only sequences that are open

    @property
    def ready(self) -> bool:
        """Whether the configured minimum of workers takes jobs, and at least one, unless a request starts it."""
        return self.loads_on_demand or sum(worker.ready for worker in self.workers) >= max(1, self.min_workers)


@dataclass(frozen=True, kw_only=True)
class RegisterRequest:
    """A registration call; None = not given. ``max_batch_delay`` is in milliseconds, timeouts in seconds.

    ``max_workers`` is given only by a snapshot, where ``initial_workers`` is the minimum. A workflow sets
    ``in_workflow`` for the models that are its nodes, ``is_function`` for those that run a function of its handler.
    """

    url: str
    model_name: str | None = None
    handler: str | None = None
    runtime: str | None = None
    batch_size: int | None = None
    max_batch_delay: int | None = None
    initial_workers: int | None = None
    max_workers: int | None = None
    synchronous: bool = True
    response_timeout: int | None = None
    startup_timeout: int | None = None
    weight: int | None = None
    weight_until: int | None = None
    s3_sse_kms: bool = False
    in_workflow: bool = False
    is_function: bool = False

    @classmethod
    def of(cls, saved: SavedModel) -> Self:
        """Return the registration that restores a saved model."""
        return cls(
            url=saved.location,
            model_name=saved.name,
            handler=saved.handler,
            runtime=saved.runtime,
            batch_size=saved.batch_size,
            max_batch_delay=saved.max_batch_delay,
            initial_workers=saved.min_workers,
            max_workers=saved.max_workers,
            response_timeout=saved.response_timeout,
            startup_timeout=saved.startup_timeout,
            weight=saved.weight,
            weight_until=saved.weight_until,
        )


@dataclass(frozen=True)
class RegisterResult:
    """The result of a registration."""

    model_name: str
    model_version: str
    workers_started: int
    workers_wanted: int
    pending: bool  # whether the workers are still being started
    loads_on_demand: bool = False  # whether a request starts the first worker


class Awaited(NamedTuple):
    """A version that the server is to serve and does not: why, for people, and whether it has failed to load it."""

    why: str
    failed: bool


class AwaitedWorkflow(NamedTuple):
    """A start-up workflow that is not registered yet, and whether that has failed; it is tried again then."""

    name: str
    failed: bool


#: Is told of a version before a change of it counts; if it raises, the change is undone.
Tell: TypeAlias = Callable[[SavedModel], Awaitable[None]]

#: Gets the version that has a call, and the call, whose answer it must not read.
Watcher: TypeAlias = Callable[[ServedModel, Call], None]

StickyBy: TypeAlias = Callable[[Call], str | None]


class Restored(NamedTuple):
    """What a server served before, and the start-up models that it could not load."""

    models: Sequence[SavedModel]
    not_loaded: Sequence[ModelSpec]


class Serving(Protocol):
    """The models of a server.

    A method that takes a name raises `ModelNotFound` if no model has it, and `ModelVersionNotFound` if the model has no
    such version. A method that takes a `ServedModel` raises `ModelVersionNotFound` once that model is unregistered and
    gone, except `submit`, whose job fails with the cause ``unregistered``.
    """

    # The models.

    def get(self, name: str, version: str | None = None) -> ServedModel:
        """Return a version of a model, the default version when ``version`` is None."""

    def get_latest(self, name: str, version: str | None = None) -> ServedModel:
        """Return a version of a model; when ``version`` is None, see `models.served_models.ModelVersions.latest`."""

    def models(self) -> Sequence[ServedModel]:
        """Return the default version of every model, sorted by name: the same object until that changes."""

    def versions(self, name: str) -> Sequence[ServedModel]:
        """Return all versions of a model, in the order of registration."""

    def continues(self, name: str, version: str, other: str) -> bool:
        """Return whether a version with a ready worker continues the stored sequences of another version."""

    def takes_over(self, name: str, version: str, other: str) -> bool:
        """Return whether a version with a ready worker can have the sequences in memory of another version."""

    # One model.

    def submit(self, model: ServedModel, call: Call) -> None:
        """Admit a call; a refusal is raised by the first `Call.next`.

        A request that names no version, but has the header ``x-model-version``, counts as one that names that version.
        A request of a sequence that belongs to another version of the model here goes to that one, if it names none.

        Raises ModelVersionNotFound: there is no version as in the header; BadParameter: it takes other requests.
        """

    def watch(self, name: str, watcher: Watcher | None) -> None:
        """Call ``watcher``, which must raise nothing, after each submission to a model; None ends that."""

    def weights(self, name: str) -> Mapping[str, int]:
        """Return the weight of each version of a model that has one; with some, they say who runs what names none."""

    def weights_until(self, name: str) -> int | None:
        """Return when the weights of a model end unless that is moved on (seconds since 1970), None if they stay."""

    def lapsed(self, now: float) -> Sequence[str]:
        """Return the models whose weights have ended; they count until somebody changes them."""

    def knows_sequence(self, model: ServedModel, sequence_id: str) -> bool:
        """Return whether the sequence is open, or remembered as lost (its next request gets that as its answer)."""

    def release_sequence(self, model: ServedModel, sequence_id: str) -> None:
        """Close a sequence whose client has left, once none of its requests runs; do nothing if it is not open.

        Any server that shares the store can continue a stored sequence at once; any other sequence has ended.
        """

    def declared(self, model: ServedModel) -> Mapping[str, Any]:
        """Return what the model declares, see `ts.protocol.messages.Loaded`; empty while no worker is ready."""

    def is_loaded(self, model: ServedModel) -> bool:
        """Return whether a worker has loaded the model and takes jobs, or will as soon as there is a job."""

    def fails_to_load(self, model: ServedModel) -> bool:
        """Return whether the model has workers, and none of them could load the model at its last attempt."""

    def status(self, model: ServedModel) -> ModelStatus:
        """Return the workers and the queue of the model."""

    def activity(self, model: ServedModel) -> Activity:
        """Return what the jobs of the model did so far, and their state now."""

    async def sequences(self, model: ServedModel, text: str, order: SequenceOrder, limit: int) -> SequencePage:
        """Return at most ``limit`` of the open sequences whose ids hold ``text``."""

    def end_sequence(self, model: ServedModel, sequence_id: str) -> None:
        """End a sequence, with what is stored of it, once none of its requests runs; do nothing if it is not open."""

    async def check_health(self, model: ServedModel, limit: float) -> bool:
        """Return whether every worker says within ``limit`` seconds that it is healthy, and there is one."""

    async def expose_metrics(self, model: ServedModel, limit: float) -> Mapping[str, str] | None:
        """Return the metrics of the model's own code in Prometheus' text format, by worker.

        None: a worker exceeds ``limit``, in seconds.
        """

    # Health.

    @property
    def not_loaded(self) -> Sequence[ModelSpec]:
        """The start-up models whose registration failed, and that have not been registered since."""

    #: What the server has begun with instead of `load_models`; None: with these.
    restored: Restored | None

    #: By name and version, what the server is to serve as its fleet does, and does not yet; replaced, never changed.
    awaited: Mapping[tuple[str, str], Awaited]

    #: The start-up workflows that are not registered yet; replaced, never changed.
    awaited_workflows: Sequence[AwaitedWorkflow]

    #: Called after each change of the served models, and of their numbers of workers.
    on_change: list[Callable[[], None]]

    #: Returns what requests without a sequence have in common that are to get the same version, None if nothing.
    sticky_by: StickyBy

    #: What the workers take of the machine, filled by whoever measures it.
    usage: Usage

    def worker_pids(self) -> Sequence[int]:
        """Return the process ids of all workers."""

    def record_gpu_memory(self) -> None:
        """Show in the metrics what the workers of all models have on GPUs."""

    def healthy(self) -> bool:
        """Return whether the default version of every model has its workers, as TorchServe's ``/ping`` counts them."""

    def startup_ready(self) -> bool:
        """Return whether every start-up model is registered and has its minimum of workers.

        Every start-up workflow must be registered, too. What the fleet serves, and this server has failed to load,
        counts as well.
        """

    # Changes.

    def forget_not_loaded(self) -> None:
        """Empty `not_loaded`, because a fleet says what is to be served; `awaited` tells what is missing of that."""

    async def register(self, request: RegisterRequest, tell: Tell | None = None) -> RegisterResult:
        """Register a model and start its workers; wait for them when the request is synchronous.

        What ``tell`` raises is passed on; the model is not registered then. `saved_models` leaves it out until then.

        Raises ArchiveError: the archive could not be fetched or read; ModelError: the model cannot be served, or its
        workers did not start (then it is not registered), or the server is shutting down.
        """

    async def load(self, model: RegisterRequest | SavedModel, tell: Tell | None = None) -> ServedModel:
        """Serve a model with at least one worker, and return it once all of its workers are ready.

        A model that is already served under this name and version goes on until then, and finishes its accepted jobs.

        A model as it was saved becomes the default version if it was. ``tell`` is called when the workers are ready,
        before the model is served; what it raises is passed on, and nothing has changed then.

        Raises as `register` does; if the workers did not start, nothing has changed.
        """

    async def scale(
        self, name: str, version: str | None, min_workers: int, max_workers: int, *, synchronous: bool
    ) -> int | None:
        """Change how many workers a model version has; return how many are ready, None unless that is waited for.

        Raises BadParameter: that many workers cannot be started; WorkersFailed: a worker of a synchronous call did not
        start (it is tried again); ModelGone: the version was unregistered meanwhile.
        """

    def check_scale(self, name: str, version: str | None, min_workers: int, max_workers: int) -> None:
        """Check that `scale` can be begun. Raises BadParameter: that many workers cannot be started."""

    async def renew(self, name: str, version: str, worker_id: str) -> None:
        """Let a worker finish its jobs, and start another one in its place; do nothing if the place is gone.

        Raises WorkersFailed: the new one did not get ready (it is tried again).
        """

    def let_requests_wait(self, name: str, version: str, *, wait: bool) -> None:
        """Let requests for a version wait although it is to have no worker, since one will come; or no longer."""

    def hand_over(self, name: str, version: str, to: str) -> None:
        """Let version ``to`` run the requests that wait for another one and name none.

        Those that wait behind a step which runs stay.
        """

    async def move_sequences(self, name: str, version: str, to: str) -> None:
        """Let version ``to`` have the sequences in memory of another one, as far as it can; the others stay."""

    def check_weights(self, name: str, weights: Mapping[str, int], *, force: bool = False) -> None:
        """Check that `set_weights` can be done. Raises as that."""

    def set_weights(
        self, name: str, weights: Mapping[str, int], *, until: int | None = None, force: bool = False
    ) -> None:
        """Let versions share the requests that name none by these weights; without any, the default version gets all.

        ``until`` is when the weights end unless they are set again by then, see `lapsed`.

        Raises BadParameter: the versions have different contracts, or not all of them have sequences; VersionNotReady:
        a version gets more requests, and no worker of it is ready, unless ``force`` is set.
        """

    def check_default(self, name: str, version: str, *, force: bool = False) -> None:
        """Check that `set_default` can be done. Raises as that."""

    def set_default(self, name: str, version: str, *, chosen: bool = True, force: bool = False) -> None:
        """Let ``version`` serve requests that name no version; ``chosen`` tells whether an operator has chosen it.

        Raises DefaultVersionNotFound: no such version of it; VersionNotReady: as `set_weights`.
        """

    def check_unregister(self, name: str, version: str | None) -> str:
        """Return the version that `unregister` would end. Raises DefaultVersionInUse."""

    async def unregister(self, name: str, version: str | None = None) -> None:
        """Stop serving a version of a model (the default one when None), and remove its files.

        New requests no longer find it at once. While a worker is ready, accepted jobs may finish within
        ``unregister_model_timeout`` seconds. So may open sequences, and first, if another version stays.

        Raises DefaultVersionInUse: it is the default version, and there are others; UnregisterTimeout: a worker could
        not be stopped in time, and the model is unregistered all the same.
        """

    async def unload(self, name: str, version: str | None = None) -> None:
        """Stop serving a version of a model (all of them when None), and remove its files.

        New requests no longer find it at once. Accepted jobs may finish within ``unregister_model_timeout`` seconds.

        Raises UnregisterTimeout: a worker could not be stopped in time; the model is unloaded all the same.
        """

    def saved_models(self) -> Sequence[SavedModel]:
        """Return the served models, each so that `load` serves it again; nodes of workflows are left out."""
