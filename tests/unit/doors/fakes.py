"""A model registry without workers: each model answers as its test says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torchserve_py.core.effective import EffectiveConfig
from torchserve_py.core.errors import DefaultVersionInUse, DefaultVersionNotFound, ModelNotFound, ModelVersionNotFound
from torchserve_py.core.plan import RegisterRequest
from torchserve_py.core.registry import RegisterResult, ScaleResult
from torchserve_py.jobs.inference_request import InferenceRequest
from torchserve_py.jobs.inputs import Input, Inputs
from torchserve_py.jobs.parts import Part, Parts
from torchserve_py.metrics.server_metrics import ServerMetrics
from torchserve_py.scheduling.job import Job
from torchserve_py.settings.addresses import Address
from torchserve_py.settings.model_spec import ModelSpec
from torchserve_py.settings.schemas.cache import CacheConfig
from torchserve_py.settings.schemas.versions import SavedModel
from torchserve_py.settings.table import Settings

ANY_PORT = Address("http", "127.0.0.1", 0)

CONFIG = EffectiveConfig(
    batch_size=1,
    max_batch_delay_ms=100,
    response_timeout=120,
    startup_timeout=120,
    max_retry_timeout=300,
    client_timeout_ms=0,
    min_workers=1,
    max_workers=1,
    job_queue_size=100,
    use_job_ticket=False,
    continuous=False,
    async_communication=False,
    concurrency_target=1024,
    stateful=False,
    sequence_max_idle_ms=0,
    sequence_timeout_ms=0,
    max_num_sequence=0,
    max_sequence_job_queue_size=0,
    restart_expired_sequences=False,
    device_type="cpu",
    device_ids=None,
    parallel_type="",
    parallel_level=0,
    torchrun=None,
    use_venv=False,
    runtime="python",
    cache=CacheConfig(),
)


def make_settings(folder: Path, **changes: Any) -> Settings:
    values: dict[str, Any] = {
        "model_store": folder,
        "inference_address": ANY_PORT,
        "management_address": ANY_PORT,
        "metrics_address": ANY_PORT,
        "disable_token_authorization": True,
        "enable_model_api": True,
        "access_log": False,
    }
    return Settings.model_construct(**{**values, **changes})


@dataclass
class WorkerInfo:
    id: str = "9000"
    started_at: datetime = datetime(2024, 5, 30, 21, 41, 47, 98000, UTC)
    status: str = "READY"
    memory: int = 89247744
    pid: int = 19946
    gpu: bool = False
    gpu_usage: str = "N/A"


@dataclass
class Call:
    """One submitted request and its response."""

    headers: Sequence[tuple[Any, Any]]
    body: Any
    content_type: str | None
    sequence_id: str | None
    starts_sequence: bool
    ends_sequence: bool
    by_default: bool
    parts: Parts
    protocol: str | None = None
    more_input: bool = False
    expires_in: float | None = None
    priority: int = 0

    def part(
        self,
        body: bytes = b"",
        *,
        more: bool = False,
        status: int = 200,
        reason: str = "",
        headers: Sequence[Sequence[str]] = (),
        error: str | None = None,
    ) -> None:
        """Deliver a part of the response."""
        self.parts.deliver(Part(self.parts.job.id, more, status, reason, [list(pair) for pair in headers], body, error))

    @property
    def header_dict(self) -> dict[str, str]:
        """The headers as a handler sees them: names as sent, later ones win."""
        return {_text(name): _text(value) for name, value in self.headers}


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def echo(call: Call) -> None:
    call.part(call.body)


@dataclass
class FakeSupervisor:
    ready: bool = True
    gave_up: bool = False
    failure: str = ""


@dataclass
class FakePool:
    supervisors: list[FakeSupervisor] = field(default_factory=lambda: [FakeSupervisor()])

    @property
    def ready_count(self) -> int:
        return sum(supervisor.ready for supervisor in self.supervisors)


class FakeModel:
    """A model that hands every request to `behave`, once, when it is submitted."""

    def __init__(self, name: str = "noop", version: str = "1.0", *, stateful: bool = False) -> None:
        self.name = name
        self.version = version
        self.url = f"{name}.mar"
        self.config = CONFIG
        self.is_stateful = stateful
        if stateful:
            self.config = replace(
                CONFIG, stateful=True, sequence_max_idle_ms=60000, max_num_sequence=4, max_sequence_job_queue_size=1
            )
        self.loaded_at_startup = False
        self.min_workers = 1
        self.max_workers = 1
        self.workers = [WorkerInfo()]
        self.pool = FakePool()
        self.queue_remaining = 100
        self.queue_pending = 0
        self.behave: Callable[[Call], None] = echo
        self.calls: list[Call] = []
        self.submitted = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.metadata: Any = None
        self.metrics = ServerMetrics().model(name, version)
        self.contract = "torchserve"
        self.is_loaded = True
        self.is_ready = True
        self.is_well = True
        self.exposed: str | None = ""
        self.declared: dict[str, Any] = {}
        self.inputs: list[Input] = []
        self.known_sequences: set[str] = set()

    def submit(self, request: InferenceRequest) -> Parts:
        assert not request.unbatched
        sequence = request.sequence if self.is_stateful else None
        sequence_id = None if sequence is None else sequence.id
        parts = Parts(Job(f"job-{len(self.calls)}", sequence_id=sequence_id), self)
        if request.more_input:
            parts.inputs = Inputs(lambda given: self.inputs.append(given) is None)
        call = Call(
            tuple(request.headers),
            request.body,
            request.content_type,
            sequence_id,
            sequence is not None and sequence.starts,
            sequence is not None and sequence.ends,
            request.by_default,
            parts,
            request.protocol,
            request.more_input,
            request.expires_in,
            request.priority,
        )
        self.calls.append(call)
        if sequence_id is not None:
            self.known_sequences.add(sequence_id)
        self.submitted.set()
        self.behave(call)
        return parts

    def was_read(self, parts: Parts) -> None:
        """Nothing to do: there is no worker to resume."""

    def gave_up(self, parts: Parts) -> None:
        self.cancelled.set()

    def knows_sequence(self, sequence_id: str) -> bool:
        return sequence_id in self.known_sequences

    async def check_health(self, limit: float) -> bool:
        return self.is_well

    async def expose_metrics(self, limit: float) -> str | None:
        return self.exposed

    async def describe_custom(self) -> Any:
        return self.metadata


@dataclass
class FakeRegistry:
    """Models by name and version; the first version of a name is its default, the last one its latest.

    Changes are recorded, not made.
    """

    registered: list[FakeModel] = field(default_factory=lambda: [FakeModel()])
    register_result: RegisterResult = field(default_factory=lambda: RegisterResult("noop", "1.0", 1, 1, pending=False))
    scale_result: ScaleResult = field(default_factory=lambda: ScaleResult(pending=False, workers=1, wanted=1))
    failure: Exception | None = None
    is_healthy: bool = True
    is_startup_ready: bool = True
    not_loaded: list[ModelSpec] = field(default_factory=list)
    requests: list[Any] = field(default_factory=list)
    saved: list[SavedModel] = field(default_factory=list)
    hold: asyncio.Event | None = None
    finished: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def model(self) -> FakeModel:
        """The first model."""
        return self.registered[0]

    def get(self, name: str, version: str | None = None) -> FakeModel:
        versions = self.versions(name)
        for model in versions:
            if version in (None, model.version):
                return model
        raise ModelVersionNotFound(name, version or "")

    def get_latest(self, name: str, version: str | None = None) -> FakeModel:
        return self.versions(name)[-1] if version is None else self.get(name, version)

    def versions(self, name: str) -> list[FakeModel]:
        found = [model for model in self.registered if model.name == name]
        if not found:
            raise ModelNotFound(name)
        return found

    def models(self) -> list[tuple[str, FakeModel]]:
        names = sorted({model.name for model in self.registered})
        return [(name, self.get(name)) for name in names]

    def healthy(self) -> bool:
        return self.is_healthy

    def startup_ready(self) -> bool:
        return self.is_startup_ready

    async def register(self, request: RegisterRequest) -> RegisterResult:
        await self._change(request)
        return self.register_result

    async def load(self, request: RegisterRequest, *, is_default: bool, is_chosen: bool) -> FakeModel:
        await self._change((request.url, request.model_name, is_default, is_chosen))
        return FakeModel(request.model_name or "loaded")

    def saved_models(self) -> list[SavedModel]:
        return self.saved

    async def scale(
        self, name: str, version: str | None, min_workers: int, max_workers: int, *, synchronous: bool
    ) -> ScaleResult:
        self.get(name, version)
        await self._change((name, version, min_workers, max_workers, synchronous))
        return self.scale_result

    async def unregister(self, name: str, version: str | None = None) -> None:
        self.get(name, version)
        if version is None and len(self.versions(name)) > 1:
            raise DefaultVersionInUse(name)
        await self._change((name, version))

    async def unload(self, name: str, version: str | None = None) -> None:
        models = self.versions(name) if version is None else [self.get(name, version)]
        await self._change(("unload", name, version))
        self.registered = [model for model in self.registered if model not in models]

    def set_default(self, name: str, version: str) -> None:
        if version not in [model.version for model in self.versions(name)]:
            raise DefaultVersionNotFound(name, version)
        self.requests.append((name, version))

    async def _change(self, request: Any) -> None:
        self.requests.append(request)
        if self.hold is not None:
            await self.hold.wait()
        self.finished.set()
        if self.failure is not None:
            raise self.failure


class Count:
    def __init__(self) -> None:
        self.value = 0

    def inc(self, n: int = 1) -> None:
        self.value += n


class FakeMetrics:
    def __init__(self) -> None:
        self.requests_2xx = Count()
        self.requests_4xx = Count()
        self.requests_5xx = Count()
        self.asked_for: set[str] | None = None

    @property
    def counts(self) -> tuple[int, int, int]:
        return self.requests_2xx.value, self.requests_4xx.value, self.requests_5xx.value

    def expose(self, names: set[str] | None) -> bytes:
        self.asked_for = names
        return b"# HELP\n"


class RawConnection:
    """A connection whose bytes a test sees."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def head(self) -> str:
        """The next response's head, lower-cased."""
        async with asyncio.timeout(20):
            return (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()

    async def rest(self) -> bytes:
        """Everything until the server closes the connection."""
        async with asyncio.timeout(20):
            return await self.reader.read()

    async def close(self) -> None:
        self.writer.close()
        await asyncio.wait([asyncio.ensure_future(self.writer.wait_closed())], timeout=20)
