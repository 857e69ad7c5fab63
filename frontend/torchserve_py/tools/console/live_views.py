"""What the page shows live: streams of events about all models, about one model, and of a worker's log."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import asdict, fields
from functools import partial
from typing import Any, Final

import orjson

from torchserve_py.apis.openai.openai_keys import answers_openai
from torchserve_py.apis.probes.probes_endpoints import SHUTTING_DOWN, not_loaded
from torchserve_py.base.metrics.catalog import BATCH_BOUNDS
from torchserve_py.base.settings.schemas.schema import as_shown
from torchserve_py.base.url_secrets import without_secrets
from torchserve_py.contracts.served_functions.request_examples import declared_example, declared_request
from torchserve_py.core.serving.errors import ModelError
from torchserve_py.core.serving.serving import ServedConfig, ServedModel, WorkerStatus
from torchserve_py.core.serving.weights import shared_out
from torchserve_py.endpoints.failures import EndpointError
from torchserve_py.endpoints.responses import ALREADY_SENT, EVENTS_TYPE, AlreadySent, Answer, json_answer
from torchserve_py.endpoints.routing import EndpointContext, Endpoints, PathValues, Route
from torchserve_py.endpoints.token_authorization import TokenType
from torchserve_py.net.http1.errors import ReaderStalled
from torchserve_py.net.http1.request import Request
from torchserve_py.tools.console.finished_jobs import FinishedJobs
from torchserve_py.tools.console.history import COLUMNS
from torchserve_py.tools.console.sampler import Sampler, about
from torchserve_py.tools.console.server_state import Machine, settings_shown
from torchserve_py.tools.console.tracebacks import Tracebacks
from torchserve_py.tools.console.worker_tails import WorkerTails
from torchserve_py.tools.journal.journal_thread import open_journals
from torchserve_py.version import __version__
from torchserve_py.versions.traffic.traffic_care import TrafficCare

API: Final = "/console/api"
#: Seconds between two looks for new lines, and looks without a line before the page hears that the server is there.
_LOOK: Final = 0.25
_QUIET_LOOKS: Final = 4
_EVENT_HEADERS: Final = (EVENTS_TYPE,)

#: The name of an event, and its data; None keeps the connection alive.
Event = tuple[str, Any] | None


class LiveViews(Endpoints):
    """Sends the page what it shows."""

    def __init__(
        self,
        context: EndpointContext,
        sampler: Sampler,
        tails: WorkerTails,
        tracebacks: Tracebacks,
        finished: FinishedJobs,
    ) -> None:
        super().__init__(context)
        self._finished = finished
        self._traffic = context.shared(TrafficCare.of)
        self._sampler = sampler
        self._tails = tails
        self._tracebacks = tracebacks

    def routes(self) -> Iterator[Route]:
        yield Route(f"{API}/server", self._server, ("GET",), TokenType.management)
        for path, events in (
            (f"{API}/overview", self._overview),
            (f"{API}/events", self._events),
            (f"{API}/machine", self._machine),
            (f"{API}/models/{{model_name}}/{{model_version}}", self._model),
            (f"{API}/logs/{{worker_id}}", self._log),
        ):
            yield Route(path, partial(self._send, events), ("GET",), TokenType.management, is_quiet=True)

    def _server(self, request: Request, values: PathValues) -> Answer:
        """Show what does not change while the server runs."""
        settings = self.settings
        return json_answer(
            {
                "version": __version__,
                "inference": str(settings.inference_address),
                "needs_key": self.context.tokens is not None,
                "model_api": settings.enable_model_api,
                "max_request_size": settings.max_request_size,
                "sequence_header": settings.ts_header_key_sequence_id,
                "columns": COLUMNS,
                "batch_bounds": BATCH_BOUNDS,
            }
        )

    async def _send(
        self, show: Callable[[PathValues], AsyncGenerator[Event, None]], request: Request, values: PathValues
    ) -> AlreadySent:
        """Answer with events, until the page leaves, its key expires, or the server closes its endpoints."""
        events = show(values)
        self.context.responses.start_stream(request, Answer(200, b"", _EVENT_HEADERS))
        async with contextlib.aclosing(events):
            with contextlib.suppress(ReaderStalled):
                async for event in events:
                    if not self._may_go_on(request):
                        request.send([_encoded(("expired", None))], last=True)
                        return ALREADY_SENT
                    request.send([_encoded(event)])
                    await request.connection.pace.drained()
                request.send((), last=True)
        return ALREADY_SENT

    def _may_go_on(self, request: Request) -> bool:
        try:
            if request.credential is not None:
                request.credential.check()
        except EndpointError:
            return False
        return True

    async def _overview(self, values: PathValues) -> AsyncGenerator[Event, None]:
        """Yield all models with the history of their sums, and each second what has changed."""
        sampler = self._sampler
        sent, tick, number = sampler.ids(), sampler.tick, self._tracebacks.number
        whole = {
            "tracebacks": self._tracebacks.latest(),
            "models": sampler.rows(),
            "sparks": sampler.sparks(),
            "history": sampler.totals.as_json(),
        }
        yield "overview", {**self._second(), **whole}
        while await sampler.next():
            now = sampler.ids()
            more = {} if number == self._tracebacks.number else {"tracebacks": self._tracebacks.latest()}
            yield "second", {**self._second(), **more, "models": sampler.rows(tick), "gone": list(sent - now)}
            sent, tick, number = now, sampler.tick, self._tracebacks.number

    async def _events(self, values: PathValues) -> AsyncGenerator[Event, None]:
        """Yield what happened to the models lately, and what happens."""
        number = -1
        while True:
            events = self._sampler.timeline.since(number)
            if events or number < 0:
                number = events[-1].number if events else 0
                yield "events", [each._asdict() for each in events]
            else:
                yield None
            if not await self._sampler.next():
                return

    async def _machine(self, values: PathValues) -> AsyncGenerator[Event, None]:
        """Yield the settings, and each second the use of the machine."""
        machine = await asyncio.to_thread(Machine, self.serving)
        yield "settings", settings_shown(self.settings)
        while await self._sampler.next():
            yield "second", await asyncio.to_thread(machine.measure)

    def _second(self) -> dict[str, Any]:
        problems = [*not_loaded(self.serving), *([SHUTTING_DOWN] if self.context.is_leaving else [])]
        budgets = {resource: each._asdict() for resource, each in self.serving.usage.budgets.items()}
        keys = {name: each._asdict() for name, each in self.serving.usage.keys.items()}
        seconds = self._sampler.totals.second(self._sampler.tick)
        return {**seconds, "problems": problems, "budgets": budgets, "keys": keys}

    def _model(self, values: PathValues) -> AsyncGenerator[Event, None]:
        return self._events_of(self.serving.get(values["model_name"], values["model_version"]))

    async def _events_of(self, model: ServedModel) -> AsyncGenerator[Event, None]:
        """Yield a model version with its history, and each second what it does; end once it is unregistered."""
        history = self._sampler.histories.get(model.id)
        values = {each.name: getattr(model.config, each.name) for each in fields(ServedConfig)}
        values |= {name: value for keys in values.pop("plugin_keys").values for name, value in as_shown(keys).items()}
        declared = self.serving.declared(model)
        config = {name: value for name, value in values.items() if value not in (None, "")}
        whole: dict[str, Any] = {
            **about(model),
            "url": without_secrets(model.url),
            "config": config,
            "function": declared.get("function"),
            "request": declared_request(declared),
            "example": declared_example(declared),
            "answers_openai": answers_openai(model),
            "history": None if history is None else history.as_json(),
        }
        try:
            yield "model", {**whole, **self._second_of(model)}
            while await self._sampler.next():
                yield "second", self._second_of(model)
        except ModelError:
            yield "gone", None

    def _second_of(self, model: ServedModel) -> dict[str, Any]:
        history, status = self._sampler.histories.get(model.id), self.serving.status(model)
        activity = self.serving.activity(model)
        return {
            **({"point": None} if history is None else history.second(self._sampler.tick)),
            "versions": [each.version for each in self.serving.versions(model.name)],
            "default": self.serving.get(model.name).version,
            "workers": [_worker(each, self.serving.usage.rests.get(each.pid)) for each in status.workers],
            "min_workers": status.min_workers,
            "max_workers": status.max_workers,
            "queued": status.queue_pending,
            "free": status.queue_remaining,
            "running": activity.running,
            "sequences": activity.sequences,
            "succeeded": activity.succeeded,
            "failed": activity.failed,
            "failures": activity.failures if history is None else history.failures,
            "slowest": self._finished.slowest(model.name, model.version),
            "metrics": [each._asdict() for each in self.context.metrics.handlers.shown(model.name)],
            "batches": activity.batches if history is None else history.batches,
            "deadlines": None if activity.deadlines is None else activity.deadlines._asdict(),
            "minute": self._sampler.minutes.get(model.id),
            "journal": _journal_of(model),
            "traffic": {"weights": shared_out(self.serving.weights(model.name)), **self._traffic.about(model.name)},
        }

    async def _log(self, values: PathValues) -> AsyncGenerator[Event, None]:
        """Yield the last lines of a worker, and further ones as they come."""
        number, quiet = -1, 0
        while self._sampler.is_open:
            lines = self._tails.since(values["worker_id"], number)
            if lines or number < 0:
                number, quiet = lines[-1].number if lines else 0, 0
                yield "lines", [each._asdict() for each in lines]
            elif (quiet := quiet + 1) % _QUIET_LOOKS == 0:
                yield None
            await asyncio.sleep(_LOOK)


def _journal_of(model: ServedModel) -> dict[str, int] | None:
    """Return how many records the journal of a model has written and dropped, None if it has none."""
    found = [each for each in open_journals() if (each.model, each.version) == (model.name, model.version)]
    return {"records": found[0].records, "dropped": found[0].dropped} if found else None


def _worker(worker: WorkerStatus, rest: tuple[str, float] | None) -> dict[str, Any]:
    launched_at = (worker.launched_at or worker.started_at).timestamp()
    return {**asdict(worker), "launched_at": launched_at, "rest": rest and {"state": rest[0], "since": rest[1]}}


def _encoded(event: Event) -> tuple[bytes, ...]:
    if event is None:
        return (b":\n\n",)
    name, data = event
    return (b"event: ", name.encode(), b"\ndata: ", orjson.dumps(data, default=str), b"\n\n")
