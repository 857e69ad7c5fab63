"""A fake of `serving.serving.Serving` without workers: each model answers as its test says."""

import asyncio
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

from torchserve_py.base.causes import Cause
from torchserve_py.base.metrics.server_metrics import ServerMetrics
from torchserve_py.base.settings.model_spec import ModelSpec
from torchserve_py.base.settings.schemas.versions import SavedModel
from torchserve_py.core.archive.contracts import known_contracts
from torchserve_py.core.jobs.call import Call
from torchserve_py.core.jobs.parts import Input, Inputs, Part
from torchserve_py.core.models.model import activity_of
from torchserve_py.core.serving.errors import (
    DefaultVersionInUse,
    DefaultVersionNotFound,
    ModelNotFound,
    ModelVersionNotFound,
)
from torchserve_py.core.serving.model_activity import Activity, SequenceOrder, SequencePage, SequenceStatus
from torchserve_py.core.serving.serving import (
    Awaited,
    AwaitedWorkflow,
    ModelStatus,
    RegisterRequest,
    RegisterResult,
    Restored,
    ServedConfig,
    ServedModel,
    StickyBy,
    Tell,
    Watcher,
    WorkerStatus,
)
from torchserve_py.core.serving.usage import Usage
from ts.protocol.messages import SequenceNews
from ts.sequences.steps.step import news_of

_ids = itertools.count()
_facts = attrgetter(*(each.name for each in fields(ServedModel)))

CONFIG = ServedConfig(
    batch_size=1,
    max_batch_delay_ms=100,
    response_timeout=120,
    startup_timeout=120,
    max_retry_timeout=300,
    client_timeout_ms=0,
    job_queue_size=100,
    use_job_ticket=False,
    continuous=False,
    async_communication=False,
    stateful=False,
    sequence_max_idle_ms=0,
    sequence_timeout_ms=0,
    max_num_sequence=0,
    max_sequence_job_queue_size=0,
    device_type="cpu",
    device_ids=None,
    parallel_type="",
    parallel_level=0,
    use_venv=False,
    runtime="python",
)


def worker_status(**changes: Any) -> WorkerStatus:
    """A ready worker on a CPU, with changes."""
    worker = WorkerStatus(
        id="9000",
        started_at=datetime(2024, 5, 30, 21, 41, 47, 98000, UTC),
        ready=True,
        memory=89247744,
        pid=19946,
        gpu=False,
        gpu_usage="N/A",
        gpu_memory=None,
        failure="",
        gave_up=False,
    )
    return replace(worker, **changes)


@dataclass
class Submitted:
    """One submitted request and its response."""

    headers: Sequence[tuple[Any, Any]]
    body: Any
    content_type: str | None
    sequence_id: str | None
    starts_sequence: bool
    ends_sequence: bool
    by_default: bool
    call: Call
    protocol: str | None = None
    more_input: bool = False
    expires_in: float | None = None
    answer_in: float | None = None
    priority: int = 0
    only_ask: bool = False
    step: int | None = None
    token: str | None = None

    def part(
        self,
        body: bytes = b"",
        *,
        more: bool = False,
        status: int = 200,
        reason: str = "",
        headers: Sequence[Sequence[str]] = (),
        error: str | None = None,
        token: str = "",
        last: int = 0,
    ) -> None:
        """Deliver a part of the response, as the worker of a handler that sets these headers does."""
        news = news_of([pair for pair in headers if len(pair) > 1], "ts_request_sequence_end")
        if token:
            news = (news or SequenceNews())._replace(token=token)
        if last:
            news = (news or SequenceNews())._replace(last=last)
        sent = [list(pair) for pair in headers]
        self.call.deliver(Part(self.call.id, more, status, reason, sent, body, error, news))

    def fail(self, cause: Cause) -> None:
        """End it without an answer."""
        self.call.fail(cause)

    @property
    def header_dict(self) -> dict[str, str]:
        """The headers as a handler sees them: names as sent, later ones win."""
        return {_text(name): _text(value) for name, value in self.headers}


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def echo(call: Submitted) -> None:
    call.part(call.body)


class FakeModel:
    """A model that hands every request to `behave`, once, when it is submitted."""

    def __init__(self, name: str = "noop", version: str = "1.0", *, stateful: bool = False) -> None:
        self.id = next(_ids)
        self._served: ServedModel | None = None
        self.name = name
        self.version = version
        self.url = f"{name}.mar"
        self.config = CONFIG
        self.is_stateful = stateful
        if stateful:
            self.config = replace(
                CONFIG, stateful=True, sequence_max_idle_ms=60000, max_num_sequence=4, max_sequence_job_queue_size=1
            )
        self.is_durable = False
        self.lacks_memory = False
        self._tells_memory = lambda: self.lacks_memory
        self.starts_at: float | None = None
        self._tells_start = lambda: self.starts_at
        self.load_failure = ""
        self._tells_load_failure = lambda: self.load_failure
        self._counts_sequences = lambda: len(self.known_sequences)
        self.loaded_at_startup = False
        self.contract = "torchserve"
        self.workers = [worker_status()]
        self.max_workers = 1
        self.behave: Callable[[Submitted], None] = echo
        self.calls: list[Submitted] = []
        self.submitted = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.metadata: Any = None
        self.metadata_error: str | None = None
        self.metrics = ServerMetrics().model(name, version)
        self.is_well = True
        self.exposed: Mapping[str, str] | None = {}
        self.declared: dict[str, Any] = {}
        self.inputs: list[Input] = []
        self.known_sequences: set[str] = set()
        self.released: list[str] = []

    @property
    def served(self) -> ServedModel:
        """What endpoints see: the same value until the test changes the model."""
        value = ServedModel(
            id=self.id,
            name=self.name,
            version=self.version,
            url=self.url,
            contract=known_contracts()[self.contract],
            config=self.config,
            is_stateful=self.is_stateful,
            is_durable=self.is_durable,
            loaded_at_startup=self.loaded_at_startup,
            lacks_memory=self._tells_memory,
            starts_at=self._tells_start,
            load_failure=self._tells_load_failure,
            open_sequences=self._counts_sequences,
        )
        if self._served is None or _facts(self._served) != _facts(value):
            self._served = value
        return self._served

    def submit(self, call: Call) -> None:
        call.owner = self
        if call.unbatched:
            call.deliver(Part(call.id, False, 200, "", [], json.dumps(self.metadata).encode(), self.metadata_error))
            return
        call.id = f"job-{len(self.calls)}"
        sequence = call.sequence if self.is_stateful else None
        if sequence is not None:
            call.sequence_id = sequence.id
            self.known_sequences.add(sequence.id)
        if call.open_ended:
            call.inputs = Inputs(lambda given: self.inputs.append(given) is None)
        submitted = Submitted(
            tuple(call.headers),
            call.body,
            call.content_type,
            call.sequence_id,
            sequence is not None and sequence.starts,
            sequence is not None and sequence.ends,
            call.by_default,
            call,
            call.protocol,
            call.open_ended,
            call.expires_in,
            call.answer_in,
            call.priority,
            call.only_ask,
            None if sequence is None else sequence.step,
            None if sequence is None else sequence.token,
        )
        self.calls.append(submitted)
        self.submitted.set()
        self.behave(submitted)

    def was_read(self, call: Call) -> None:
        """Nothing to do: there is no worker to resume."""

    def gave_up(self, call: Call) -> None:
        self.cancelled.set()


@dataclass
class FakeServing:
    """Models by name and version; the first version of a name is its default, the last one its latest.

    Changes are recorded, not made.
    """

    registered: list[FakeModel] = field(default_factory=lambda: [FakeModel()])
    register_result: RegisterResult = field(default_factory=lambda: RegisterResult("noop", "1.0", 1, 1, pending=False))
    scale_result: int | None = 1
    failure: Exception | None = None
    is_healthy: bool = True
    is_startup_ready: bool = True
    not_loaded: list[ModelSpec] = field(default_factory=list)
    restored: Restored | None = None
    awaited: Mapping[tuple[str, str], Awaited] = field(default_factory=dict)
    awaited_workflows: Sequence[AwaitedWorkflow] = ()
    on_change: list[Callable[[], None]] = field(default_factory=list)
    sticky_by: StickyBy = lambda _: None
    usage: Usage = field(default_factory=Usage)
    requests: list[Any] = field(default_factory=list)
    saved: list[SavedModel] = field(default_factory=list)
    hold: asyncio.Event | None = None
    finished: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def model(self) -> FakeModel:
        """The first model."""
        return self.registered[0]

    def of(self, model: ServedModel) -> FakeModel:
        for each in self.registered:
            if each.id == model.id:
                return each
        raise ModelVersionNotFound(model.name, model.version)

    def find(self, name: str) -> list[FakeModel]:
        found = [model for model in self.registered if model.name == name]
        if not found:
            raise ModelNotFound(name)
        return found

    def get(self, name: str, version: str | None = None) -> ServedModel:
        for model in self.find(name):
            if version in (None, model.version):
                return model.served
        raise ModelVersionNotFound(name, version or "")

    def get_latest(self, name: str, version: str | None = None) -> ServedModel:
        return self.find(name)[-1].served if version is None else self.get(name, version)

    def versions(self, name: str) -> list[ServedModel]:
        return [model.served for model in self.find(name)]

    def models(self) -> list[ServedModel]:
        return [self.get(name) for name in sorted({model.name for model in self.registered})]

    def submit(self, model: ServedModel, call: Call) -> None:
        self.of(model).submit(call)

    def knows_sequence(self, model: ServedModel, sequence_id: str) -> bool:
        return sequence_id in self.of(model).known_sequences

    def release_sequence(self, model: ServedModel, sequence_id: str) -> None:
        self.of(model).released.append(sequence_id)

    def declared(self, model: ServedModel) -> Mapping[str, Any]:
        return self.of(model).declared

    def is_loaded(self, model: ServedModel) -> bool:
        return any(worker.ready for worker in self.of(model).workers)

    def fails_to_load(self, model: ServedModel) -> bool:
        workers = self.of(model).workers
        return bool(workers) and all(worker.failure for worker in workers)

    def status(self, model: ServedModel) -> ModelStatus:
        fake = self.of(model)
        return ModelStatus(
            min_workers=1,
            max_workers=fake.max_workers,
            workers=fake.workers,
            queue_remaining=100,
            queue_pending=0,
        )

    def activity(self, model: ServedModel) -> Activity:
        fake = self.of(model)
        memory = sum(worker.memory for worker in fake.workers)
        return activity_of(fake.metrics, running=0, workers=len(fake.workers), workers_wanted=1, memory=memory)

    async def sequences(self, model: ServedModel, text: str, order: SequenceOrder, limit: int) -> SequencePage:
        known = sorted(each for each in self.of(model).known_sequences if text in each)
        first = [SequenceStatus(each, "idle", 2.0, 1.0, "9000", 0, 0) for each in known[:limit]]
        return SequencePage(len(self.of(model).known_sequences), len(known), first)

    def end_sequence(self, model: ServedModel, sequence_id: str) -> None:
        self.of(model).known_sequences.discard(sequence_id)

    async def check_health(self, model: ServedModel, limit: float) -> bool:
        return self.of(model).is_well

    async def expose_metrics(self, model: ServedModel, limit: float) -> Mapping[str, str] | None:
        return self.of(model).exposed

    def worker_pids(self) -> list[int]:
        return []

    def record_gpu_memory(self) -> None:
        pass

    def healthy(self) -> bool:
        return self.is_healthy

    def startup_ready(self) -> bool:
        return self.is_startup_ready

    def forget_not_loaded(self) -> None:
        self.not_loaded = []

    async def register(self, request: RegisterRequest, tell: Tell | None = None) -> RegisterResult:
        await self._change(request)
        if tell is not None:
            result = self.register_result
            await tell(SavedModel(name=result.model_name, version=result.model_version, location=request.url))
        return self.register_result

    async def load(self, model: RegisterRequest | SavedModel, tell: Tell | None = None) -> ServedModel:
        if isinstance(model, SavedModel):
            name: str | None = model.name
            await self._change((model.location, name, model.default, model.chosen))
        else:
            name = model.model_name
            await self._change((model.url, name, False, False))
        return FakeModel(name or "loaded").served

    def saved_models(self) -> list[SavedModel]:
        return self.saved

    def check_scale(self, name: str, version: str | None, min_workers: int, max_workers: int) -> None:
        self.get(name, version)

    async def scale(
        self, name: str, version: str | None, min_workers: int, max_workers: int, *, synchronous: bool
    ) -> int | None:
        self.get(name, version)
        await self._change((name, version, min_workers, max_workers, synchronous))
        return self.scale_result

    def check_unregister(self, name: str, version: str | None) -> str:
        model = self.get(name, version)
        if version is None and len(self.versions(name)) > 1:
            raise DefaultVersionInUse(name)
        return model.version

    async def unregister(self, name: str, version: str | None = None) -> None:
        self.check_unregister(name, version)
        await self._change((name, version))

    async def unload(self, name: str, version: str | None = None) -> None:
        gone = [model.id for model in (self.versions(name) if version is None else [self.get(name, version)])]
        await self._change(("unload", name, version))
        self.registered = [model for model in self.registered if model.id not in gone]

    def watch(self, name: str, watcher: Watcher | None) -> None:
        """Nothing is watched."""

    def weights(self, name: str) -> Mapping[str, int]:
        self.find(name)
        return {}

    def weights_until(self, name: str) -> int | None:
        self.find(name)
        return None

    def lapsed(self, now: float) -> Sequence[str]:
        return []

    def takes_over(self, name: str, version: str, other: str) -> bool:
        return False

    def continues(self, name: str, version: str, other: str) -> bool:
        return False

    async def renew(self, name: str, version: str, worker_id: str) -> None:
        await self._change(("renew", name, version, worker_id))

    def let_requests_wait(self, name: str, version: str, *, wait: bool) -> None:
        self.requests.append((name, version, wait))

    async def move_sequences(self, name: str, version: str, to: str) -> None:
        """It has none."""

    def hand_over(self, name: str, version: str, to: str) -> None:
        self.requests.append((name, version, to))

    def check_weights(self, name: str, weights: Mapping[str, int], *, force: bool = False) -> None:
        self.find(name)

    def set_weights(
        self, name: str, weights: Mapping[str, int], *, until: int | None = None, force: bool = False
    ) -> None:
        self.requests.append((name, weights))

    def check_default(self, name: str, version: str, *, force: bool = False) -> None:
        if version not in [model.version for model in self.versions(name)]:
            raise DefaultVersionNotFound(name, version)

    def set_default(self, name: str, version: str, *, chosen: bool = True, force: bool = False) -> None:
        self.check_default(name, version)
        self.requests.append((name, version))

    async def _change(self, request: Any) -> None:
        self.requests.append(request)
        if self.hold is not None:
            await self.hold.wait()
        self.finished.set()
        if self.failure is not None:
            raise self.failure
