"""The runtime of Truss models: runs each job as a call or a WebSocket session, and passes on that a client left."""

import asyncio
import contextlib
import inspect
import logging
import sys
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, Final

from ts.connection.frontend_connection import FrontendConnection
from ts.contracts.async_calls.async_runtime import AsyncRuntime, FurtherInputs, Outbox
from ts.contracts.served_functions.json_examples import example_of
from ts.contracts.truss.model_call import TrussCall
from ts.contracts.truss.model_methods import PREDICT, WEBSOCKET
from ts.contracts.truss.model_request import TrussClient
from ts.contracts.truss.reply import Reply
from ts.contracts.truss.request_forms import Form, PredictionsForm, TrussForm
from ts.contracts.truss.request_logs import enter_request
from ts.contracts.truss.served_model import ServedTruss
from ts.contracts.truss.websocket_session import TrussSession
from ts.handler_utils.asgi_scope import pseudo_header
from ts.protocol.messages import DECLARES, NO_HISTORIES, TRUSS, Histories, InferRow

logger = logging.getLogger(__name__)

#: The pseudo endpoint with which a client requests that the worker reloads the model's code.
HOT_RELOAD = "hot_reload"
#: The time limit for collecting the model's metrics (seconds): longer than any requester waits for them.
_COLLECTING_LIMIT = 30.0


class TrussRuntime(AsyncRuntime):
    """Runs the jobs of one loaded Truss."""

    def __init__(self, model: ServedTruss, connection: FrontendConnection) -> None:
        super().__init__(_declarations(model))
        self._model = model
        self._connection = connection
        self._outbox = Outbox(connection, model.max_response_size)
        self._clients: dict[str, TrussClient] = {}
        self._collecting: asyncio.Task[bytes] | None = None

    async def run_job(self, wire_row: InferRow, inputs: FurtherInputs, histories: Histories = NO_HISTORIES) -> None:
        job_id = wire_row.job_id
        client = self._clients[job_id] = TrussClient()
        if job_id in self._connection.cancelled:  # the client left before the job began
            client.leave()
        enter_request(wire_row)
        try:
            endpoint = pseudo_header(wire_row, ":endpoint") if wire_row.protocol == TRUSS else PREDICT
            if endpoint == WEBSOCKET:
                with self._model.trace_of(wire_row).span("websocket"):
                    reply = self._reply_to(wire_row)
                    await TrussSession(self._model, wire_row, inputs, client, self._connection, reply).run()
            elif endpoint == HOT_RELOAD and self._model.hot_reload is not None:
                answer, description = self._model.hot_reload.reload()
                if description is not None:
                    self._model.description = description
                    self.declares = _declarations(self._model)
                    self._connection.send([DECLARES, self.declares])
                self._reply_to(wire_row).whole(answer)
            else:
                form = _form_of(wire_row, self._model)
                await TrussCall(self._model, wire_row, client, form, self._outbox).run(endpoint or PREDICT)
        finally:
            client.leave()  # model code that still watches the client learns that the call is over
            del self._clients[job_id]

    def _reply_to(self, row: InferRow) -> Reply:
        return Reply(self._outbox, row.job_id, TrussForm(row).problem_row)

    def cancel_job(self, job_id: str, task: asyncio.Task[None]) -> None:
        """Mark the client as gone, which notifies all watchers of the client; the job ends itself."""
        client = self._clients.get(job_id)
        if client is not None:
            client.leave()

    async def is_healthy(self) -> bool:
        """Return what the model's ``is_healthy`` says, where None means healthy; a plain function runs in a thread."""
        method = self._model.description.is_healthy
        if method is None:
            return True
        try:
            if method.is_function:
                answer = await self._model.probe_threads.run(method.function)
            else:
                answer = method.function()
            if inspect.isawaitable(answer):
                answer = await answer
        except Exception:
            logger.exception("The model's is_healthy has failed; the model counts as unhealthy.")
            return False
        if answer is None or answer:
            return True
        logger.warning("The model's health check says that it is not healthy: is_healthy returned %r.", answer)
        return False

    async def expose_metrics(self) -> bytes:
        """Collect the metrics in a thread, once for all that ask meanwhile. Raises Exception: a collector failed."""
        if self._collecting is None or self._collecting.done():
            self._collecting = asyncio.create_task(self._model.metrics_thread.run(own_metrics))
        async with asyncio.timeout(_COLLECTING_LIMIT):
            return await asyncio.shield(self._collecting)

    async def close(self) -> None:
        self._model.close()


def _declarations(model: ServedTruss) -> dict[str, Any]:
    description = model.description
    predict = description.endpoints.get(PREDICT)
    return {
        "platform": "truss",
        "decoupled": predict is not None and predict.streams,
        "endpoints": description.names,
        "schema": description.schema,
        **_example((description.schema or {}).get("input_schema")),
        "hot_reload": model.hot_reload is not None,
        "has_health_check": description.is_healthy is not None,
        "websocket": {key: model.transport[key] for key in ("ping_interval_seconds", "ping_timeout_seconds")},
    }


def _example(schema: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what is declared of a request that fits the type of ``predict``: nothing if it has none."""
    if schema:
        # A type may write its own schema, which need not be one; the model works nevertheless.
        with contextlib.suppress(AttributeError, KeyError, TypeError):
            return {"example": example_of(schema)}
    return {}


def _form_of(row: InferRow, model: ServedTruss) -> Form:
    if row.protocol == TRUSS:
        return TrussForm(row)
    if row.protocol is None:
        return PredictionsForm(row)
    from ts.contracts.truss.tensor_form import TensorForm

    return TensorForm(row, model.name, model.version)


#: What the package itself puts into the registry.
_READY_MADE: Final = ("PROCESS_COLLECTOR", "PLATFORM_COLLECTOR", "GC_COLLECTOR")


def own_metrics() -> bytes:
    """Return the model's own metrics, without those of the process. Raises Exception: a collector has failed."""
    # The model has metrics only if it has imported the package.
    prometheus: Any = sys.modules.get("prometheus_client")
    if prometheus is None:
        return b""

    def collect() -> Iterator[Any]:
        ready_made = [getattr(prometheus, name) for name in _READY_MADE]
        names = {family.name for collector in ready_made for family in collector.collect()}
        for family in prometheus.REGISTRY.collect():
            if family.name not in names:
                family.samples = [sample for sample in family.samples if sample.name != f"{family.name}_created"]
                yield family

    text: bytes = prometheus.generate_latest(SimpleNamespace(collect=collect))
    return text
