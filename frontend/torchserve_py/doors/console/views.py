"""What the page shows: values for JSON, and streams of events."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import asdict, fields
from typing import Any, Final

import orjson

from torchserve_py.core.errors import ModelError
from torchserve_py.core.serving import ServedConfig, ServedModel, WorkerStatus
from torchserve_py.doors.console.history import COLUMNS
from torchserve_py.doors.console.sampler import Sampler, about
from torchserve_py.doors.failures import DoorError
from torchserve_py.doors.responses import EVENTS_TYPE, Answer, Sent
from torchserve_py.doors.routing import DoorContext
from torchserve_py.doors.server_doors import SHUTTING_DOWN, not_loaded
from torchserve_py.doors.token_authorization import TokenType
from torchserve_py.logs.worker_tails import WorkerTails
from torchserve_py.metrics.catalog import BATCH_BOUNDS
from torchserve_py.transport.http1.errors import ReaderStalled
from torchserve_py.transport.http1.request import Request
from torchserve_py.version import __version__

#: Seconds between two looks for new lines, and looks without a line before the connection is kept alive.
_LOOK: Final = 0.25
_QUIET_LOOKS: Final = 60
_EVENT_HEADERS: Final = (EVENTS_TYPE, ("x-accel-buffering", "no"))

#: The name of an event, and its data; None keeps the connection alive.
Event = tuple[str, Any] | None


class Views:
    """Makes what the page shows."""

    def __init__(self, context: DoorContext, sampler: Sampler, tails: WorkerTails) -> None:
        self._context = context
        self._serving = context.serving
        self._sampler = sampler
        self._tails = tails

    def server(self) -> dict[str, Any]:
        """Return what does not change while the server runs."""
        settings = self._context.settings
        return {
            "version": __version__,
            "inference": str(settings.inference_address),
            "needs_key": self._context.tokens is not None,
            "model_api": settings.enable_model_api,
            "max_request_size": settings.max_request_size,
            "sequence_header": settings.ts_header_key_sequence_id,
            "columns": COLUMNS,
            "batch_bounds": BATCH_BOUNDS,
        }

    async def overview(self) -> AsyncGenerator[Event, None]:
        """Yield all models with the history of their sums, and each second what has changed."""
        sampler = self._sampler
        sent, tick = sampler.ids(), sampler.tick
        whole = {"models": sampler.rows(), "sparks": sampler.sparks(), "history": sampler.totals.as_json()}
        yield "overview", {**self._second(), **whole}
        while await sampler.next():
            now = sampler.ids()
            yield "second", {**self._second(), "models": sampler.rows(tick), "gone": list(sent - now)}
            sent, tick = now, sampler.tick

    def _second(self) -> dict[str, Any]:
        problems = [*not_loaded(self._serving), *([SHUTTING_DOWN] if self._context.is_draining else [])]
        return {**self._sampler.totals.second(self._sampler.tick), "problems": problems}

    async def model(self, model: ServedModel) -> AsyncGenerator[Event, None]:
        """Yield a model version with its history, and each second what it does; end once it is unregistered."""
        history = self._sampler.histories.get(model.id)
        values = {each.name: getattr(model.config, each.name) for each in fields(ServedConfig)}
        config = {name: value for name, value in values.items() if value not in (None, "")}
        whole: dict[str, Any] = {
            **about(model),
            "url": model.url,
            "config": config,
            "history": None if history is None else history.as_json(),
        }
        try:
            yield "model", {**whole, **self._second_of(model)}
            while await self._sampler.next():
                yield "second", self._second_of(model)
        except ModelError:
            yield "gone", None

    def _second_of(self, model: ServedModel) -> dict[str, Any]:
        history, status = self._sampler.histories.get(model.id), self._serving.status(model)
        activity = self._serving.activity(model)
        return {
            **({"point": None} if history is None else history.second(self._sampler.tick)),
            "versions": [each.version for each in self._serving.versions(model.name)],
            "default": self._serving.get(model.name).version,
            "workers": [_worker(each) for each in status.workers],
            "min_workers": status.min_workers,
            "max_workers": status.max_workers,
            "queued": status.queue_pending,
            "free": status.queue_remaining,
            "running": activity.running,
            "sequences": activity.sequences,
            "succeeded": activity.succeeded,
            "failed": activity.failed,
            "failures": activity.failures if history is None else history.failures,
            "batches": activity.batches if history is None else history.batches,
        }

    async def log(self, worker_id: str) -> AsyncGenerator[Event, None]:
        """Yield the last lines of a worker, and further ones as they come."""
        number, quiet = -1, 0
        while self._sampler.is_open:
            lines = self._tails.since(worker_id, number)
            if lines or number < 0:
                number, quiet = lines[-1].number if lines else 0, 0
                yield "lines", [each._asdict() for each in lines]
            elif (quiet := quiet + 1) % _QUIET_LOOKS == 0:
                yield None
            await asyncio.sleep(_LOOK)


def _worker(worker: WorkerStatus) -> dict[str, Any]:
    return {**asdict(worker), "launched_at": (worker.launched_at or worker.started_at).timestamp()}


async def send_events(context: DoorContext, request: Request, events: AsyncGenerator[Event, None]) -> Sent:
    """Answer with events, until the page leaves, its key expires, or the server closes its doors."""
    sent = context.responses.start_stream(request, Answer(200, b"", _EVENT_HEADERS))
    async with contextlib.aclosing(events):
        with contextlib.suppress(ReaderStalled):
            async for event in events:
                if not _may_go_on(context, request):
                    request.send([_encoded(("expired", None))], last=True)
                    return sent
                request.send([_encoded(event)])
                await request.connection.pace.drained()
            request.send((), last=True)
    return sent


def _may_go_on(context: DoorContext, request: Request) -> bool:
    if context.tokens is None:
        return True
    try:
        context.tokens.check(TokenType.management, request.headers.get("Authorization"))
    except DoorError:
        return False
    return True


def _encoded(event: Event) -> tuple[bytes, ...]:
    if event is None:
        return (b":\n\n",)
    name, data = event
    return (b"event: ", name.encode(), b"\ndata: ", orjson.dumps(data, default=str), b"\n\n")
