"""One registered model version: its files, its configuration, its jobs and its workers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from torchserve_py.base.causes import Cause
from torchserve_py.base.metrics.instruments import Histogram
from torchserve_py.base.metrics.model_metrics import EndedJob, ModelMetrics
from torchserve_py.core.archive.contracts import known_contracts
from torchserve_py.core.dispatch.dispatcher import Dispatcher
from torchserve_py.core.jobs.call import Call
from torchserve_py.core.jobs.job_observer import Account, JobObserver, ObservedJob
from torchserve_py.core.jobs.parts import Exceeded, Part
from torchserve_py.core.plans.plan import Plan
from torchserve_py.core.serving.model_activity import Activity, Timing
from torchserve_py.core.serving.serving import ModelStatus, ServedModel, WorkerStatus
from torchserve_py.core.serving.usage import Usage
from torchserve_py.core.workers.pool import WorkerPool
from torchserve_py.core.workers.supervisor import Supervisor
from torchserve_py.core.workers.worker import Worker
from ts.protocol.messages import EXPOSE, HEALTH, MIGRATED, NOT_MIGRATED

_ids = itertools.count()
_NO_GPU_USAGE = "failed to obtained gpu usage"  # TorchServe's words


class Autoscaler(Protocol):
    """Lets the number of workers follow the load."""

    def start(self) -> None:
        """Look at the load from now on."""

    def close(self) -> None:
        """Change nothing any more."""


class WorkerRoom(Protocol):
    """Decides when workers may start."""

    def add(self, model: Model) -> None:
        """Take a model into account that has no workers yet: set `take_room` of its pool."""

    def remove(self, model: Model) -> None:
        """Forget a model whose workers are gone."""


class Model:
    """A registered model version; `ModelRegistry` starts and ends it."""

    def __init__(
        self,
        plan: Plan,
        dispatcher: Dispatcher,
        pool: WorkerPool,
        usage: Usage,
        observers: Sequence[JobObserver],
        autoscaler: Autoscaler | None,
        room: WorkerRoom | None = None,
    ) -> None:
        self.name = plan.name
        self.version = plan.version
        self.files = plan.files
        self.handler = plan.handler
        self.config = config = plan.config
        self.in_workflow = plan.in_workflow
        #: Its share of the requests that name no version, beside those of the other versions; see `Traffic`.
        self.weight = plan.weight
        #: When its weight ends unless that is moved on, in seconds since 1970.
        self.weight_until = plan.weight_until
        self.pool = pool
        self.dispatcher = dispatcher
        #: What endpoints know of the model.
        self.served = ServedModel(
            id=next(_ids),
            name=plan.name,
            version=plan.version,
            url=plan.url,
            contract=known_contracts()[plan.files.contract],
            config=config,
            is_stateful=config.stateful,
            is_durable=config.stateful and config.states.durable,
            loaded_at_startup=plan.at_startup,
            lacks_memory=lambda: any(supervisor.lacks_memory for supervisor in pool.supervisors),
            load_failure=lambda: pool.load_failure,
            starts_at=lambda: pool.starts_at,
            open_sequences=lambda: dispatcher.scheduler.open_sequences,
            function=plan.files.function,
            is_function=plan.is_function,
        )
        self._usage = usage
        self._autoscaler = autoscaler
        self._room = room
        if room is not None:
            room.add(self)
        #: Admits one call, or refuses it for a cause; a refusal is raised by the first `Call.next`.
        self.submit: Callable[[Call, Cause | None], None] = dispatcher.submit
        self._observers = observers
        if observers:
            self.submit = self._submit_observed

    def submit_for(self, account: Account, call: Call, refusal: Cause | None = None) -> None:
        """Admit a call of a client with an account, unless that does not allow it, or refuse it for a cause."""
        begun = account.begin(call, self.name, self._has_open)
        if isinstance(begun, Exceeded):
            call.exceeded = begun
            self._submit_observed(call, begun.cause)
        else:
            self._submit_observed(call, refusal, begun)

    def _has_open(self, sequence_id: str) -> bool:
        return self.dispatcher.scheduler.sequence(sequence_id) is not None

    def _submit_observed(self, call: Call, refusal: Cause | None, by_account: ObservedJob | None = None) -> None:
        """Admit a call, or refuse it, and tell observers of its begin and end."""
        observed = [] if by_account is None else [by_account]
        for observer in self._observers:
            if (begun := observer.begin(call, self.name, self.version)) is not None:
                observed.append(begun)
                call.headers = begun.headers
                call.trace_id = call.trace_id or begun.trace_id
        if observed:
            self._let_follow(call, observed)
        self.dispatcher.submit(call, refusal)

    def _let_follow(self, call: Call, observed: Sequence[ObservedJob]) -> None:
        def end(ended: EndedJob, last: Part | None) -> None:
            for each in observed:
                each.end(ended, last)

        def part(arrived: Part) -> None:
            for tell in tell_part:
                tell(arrived)

        call.on_end = end
        if tell_part := [each.part for each in observed if each.part is not None]:
            call.on_part = part

    def continues(self, other: Model) -> bool:
        """Whether this version continues another one's stored sequences: it migrates them, or see `stateVersion`."""
        migrates = bool(self.declared.get("sequence_states", {}).get("migrates"))
        return self.config.states.continues(other.config.states, migrates=migrates)

    def takes_over(self, other: Model) -> bool:
        """Whether this version can have another one's sequences, which both keep in memory: it migrates them."""
        mine, others = (each.declared.get("sequence_states", {}) for each in (self, other))
        return bool(mine.get("handsOver") and mine.get("migrates") and others.get("handsOver"))

    @property
    def _ready_workers(self) -> list[Worker]:
        """The workers that take jobs, oldest first."""
        return [each.worker for each in self.pool.supervisors if each.worker is not None and each.ready]

    @property
    def declared(self) -> Mapping[str, Any]:
        """What the model declares, see `ts.protocol.messages.Loaded`; empty while no worker is ready."""
        return next((worker.declares for worker in reversed(self._ready_workers)), {})

    @property
    def is_loaded(self) -> bool:
        """Whether a worker has loaded it, or will as soon as there is a request."""
        return self.pool.ready_count > 0 or self.pool.loads_on_demand

    async def start_workers(self, count: int) -> None:
        """Start so many workers, which are the minimum unless they follow the load, and wait for them.

        Raises WorkerFailed: a worker failed to get ready.
        """
        least = self.config.min_workers if self.config.follows_load and count else count
        await self.scale(least, max(self.config.max_workers, count), count)

    async def scale(self, min_workers: int, max_workers: int, count: int | None = None) -> None:
        """See `WorkerPool.scale`. Between the two numbers the workers follow the load, if they are to."""
        if self._autoscaler is not None:
            self._autoscaler.start()
        await self.pool.scale(min_workers, max_workers, count)

    async def check_health(self, limit: float) -> bool:
        """Return whether the model in every worker says within ``limit`` seconds that it is healthy."""
        workers = self._ready_workers
        if not self.served.contract.own_health or not workers:
            return self.is_loaded
        return all(await asyncio.gather(*(worker.ask(HEALTH, limit) for worker in workers)))

    async def expose_metrics(self, limit: float) -> Mapping[str, str] | None:
        """Return the metrics of the model's own code, see `Serving.expose_metrics`."""
        workers = self._ready_workers
        texts = await asyncio.gather(*(worker.ask(EXPOSE, limit) for worker in workers))
        told = {}
        for worker, text in zip(workers, texts, strict=True):
            if text is not None:
                told[worker.id] = text.decode()
            elif worker.ready:  # otherwise the worker has ended meanwhile
                return None
        return told

    def status(self) -> ModelStatus:
        """Return the workers and the queue as they are now."""
        return ModelStatus(
            min_workers=self.pool.min_workers,
            max_workers=self.pool.max_workers,
            workers=[self._status_of(supervisor) for supervisor in self.pool.supervisors],
            queue_remaining=self.dispatcher.scheduler.remaining_capacity,
            queue_pending=self.dispatcher.scheduler.queued,
            loads_on_demand=self.pool.loads_on_demand,
            latest_change=self.pool.latest_change,
            open_sequences=self.dispatcher.scheduler.open_sequences,
            migrated=int(self.dispatcher.metrics.migrations[MIGRATED].value),
            not_migrated=int(self.dispatcher.metrics.migrations[NOT_MIGRATED].value),
            is_leaving=self.dispatcher.scheduler.runs_out,
        )

    def _status_of(self, supervisor: Supervisor) -> WorkerStatus:
        gpu, pid, usage = supervisor.gpu_index, supervisor.pid, self._usage
        return WorkerStatus(
            id=supervisor.id,
            started_at=supervisor.started_at,
            ready=supervisor.ready,
            memory=usage.worker_memory.get(pid, 0),
            pid=pid,
            gpu=supervisor.has_gpu,
            gpu_usage="N/A" if gpu is None else str(usage.gpus.get(gpu, _NO_GPU_USAGE)),
            gpu_memory=usage.worker_gpu_memory.get(pid),
            failure=supervisor.failure,
            gave_up=supervisor.gave_up,
            waits=supervisor.waits,
            state=supervisor.condition,
            device=f"gpu {gpu}" if gpu is not None else "gpu of its node" if supervisor.has_gpu else "cpu",
            restarts=supervisor.restarts,
            deaths=supervisor.deaths,
            last_end=supervisor.last_end,
            running=0 if supervisor.worker is None else len(supervisor.worker.in_flight),
            launched_at=None if supervisor.worker is None else supervisor.worker.started_at,
            starts_at=supervisor.starts_at,
        )

    def activity(self) -> Activity:
        """Return what the jobs did so far, and their state now."""
        metrics, pool = self.dispatcher.metrics, self.pool
        return activity_of(
            metrics,
            running=self.dispatcher.scheduler.in_flight,
            workers=pool.ready_count,
            workers_wanted=pool.counts.wanted,
            memory=sum(self._usage.worker_memory.get(supervisor.pid, 0) for supervisor in pool.supervisors),
        )

    def record_gpu_memory(self) -> None:
        """Show in the metrics what the workers have on GPUs."""
        for worker in [each.worker for each in self.pool.supervisors if each.worker is not None]:
            if (size := self._usage.worker_gpu_memory.get(worker.pid)) is not None:
                self.dispatcher.metrics.worker_gpu_memory(worker.label, size)

    async def end(self, cause: Cause, limit: float) -> bool:
        """Answer every job with ``cause``, end every sequence, and stop the workers within ``limit`` seconds.

        Return whether all workers are gone; False if one survives even SIGKILL.
        """
        if self._autoscaler is not None:
            self._autoscaler.close()
        await self.dispatcher.close(cause)
        surviving = await self.pool.stop(limit)
        if self._room is not None:
            self._room.remove(self)
        return not surviving


def activity_of(metrics: ModelMetrics, *, running: int, workers: int, workers_wanted: int, memory: int) -> Activity:
    """Return what a model's metrics have counted, and the state that is given."""
    metrics.fold()
    batches, outcomes = metrics.batch_size, metrics.outcomes
    return Activity(
        succeeded=outcomes.succeeded,
        succeeded_seconds=outcomes.succeeded_seconds,
        running_seconds=outcomes.running_seconds,
        failures=dict(outcomes.failures),
        failed_seconds=outcomes.failed_seconds,
        last_at=outcomes.last_at,
        executions=dict(outcomes.executions),
        batches=tuple(batches.counts),
        batched=int(batches.sum),
        waiting=_timing(metrics.queue_seconds),
        handler=_timing(metrics.handler_seconds),
        first_part=_timing(metrics.first_part_seconds),
        next_part=_timing(metrics.next_part_seconds),
        queued=int(metrics.queue_depth.read()),
        running=running,
        workers=workers,
        workers_wanted=workers_wanted,
        sequences=int(metrics.open_sequences.read()),
        memory=memory,
        deadlines=metrics.deadline_counts,
    )


def _timing(histogram: Histogram) -> Timing:
    return Timing(tuple(histogram.counts), histogram.sum)
