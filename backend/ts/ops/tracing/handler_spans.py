"""A span around each call of a handler, for each of its rows; or around each job of another contract's model.

With the setting ``traces`` the server names this module to workers, and where spans go (`span_export`). The span of a
row is a child of the server's, whose id comes with the row's headers (``traceparent``).
"""

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ts.context import Context, RequestProcessor
from ts.ops.tracing.model_errors import note_on
from ts.ops.tracing.span_export import HEADERS, drops_what_is_not_sampled, is_not_sampled, provider_of
from ts.protocol.messages import InferRow
from ts.protocol.request_names import REQUEST_NAME, name_among, usable_name
from ts.service import EntryPoint

if TYPE_CHECKING:
    import asyncio

    Task = asyncio.Task[None]


class HandlerSpans:
    """Spans around the calls or jobs of a model; see `ts.runtime.worker_observer`."""

    def __init__(self, destination: str, model_name: str) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        provider = provider_of(destination, "torchserve-py-worker")
        self._tracer = provider.get_tracer("ts")
        self._is_dropped = drops_what_is_not_sampled(provider)
        self._propagator = TraceContextTextMapPropagator()
        self._model_name = model_name

    def around(self, entry_point: EntryPoint) -> EntryPoint:
        """Return the entry point of a handler with a span around each row of each call."""
        if inspect.iscoroutinefunction(inspect.unwrap(entry_point)):

            @functools.wraps(entry_point)
            async def call_async(data: Any, context: Context) -> Any:
                with self._call(context):
                    return await entry_point(data, context)

            return call_async

        @functools.wraps(entry_point)
        def call(data: Any, context: Context) -> Any:
            with self._call(context):
                return entry_point(data, context)

        return call

    def start_task(self, wire_row: InferRow, start: "Callable[[], Task]") -> "Task":
        """Start the task of a job; its span is the current one there, and ends with it."""
        from opentelemetry.trace import use_span

        span = self._of(RequestProcessor(None, wire_row.headers))
        if span is None:
            return start()
        request_id = name_among(wire_row.headers) or wire_row.job_id
        span.set_attributes({"request.id": request_id, "model.name": self._model_name, "batch.size": 1})
        with use_span(span):
            task = start()
        task.add_done_callback(lambda task: span.end())
        return task

    @contextmanager
    def _call(self, context: Context) -> Iterator[None]:
        """One call of the handler. The span of the first row is the current one, for what the handler traces itself."""
        from opentelemetry.trace import use_span

        spans = list(self._begin(context))
        try:
            if spans:
                with use_span(spans[0], record_exception=False, set_status_on_exception=False):
                    yield
            else:
                yield
        except BaseException as error:
            for span in spans:
                note_on(span, error)
            raise
        finally:
            for span in spans:
                span.end()

    def _begin(self, context: Context) -> Iterator[Any]:
        processors = context.request_processor or []
        for index, processor in enumerate(processors):
            span = self._of(processor)
            if span is not None:
                named = usable_name(processor.get_request_property(REQUEST_NAME))
                request_id = named or (context.request_ids or {}).get(index, "")
                about = {"request.id": request_id, "model.name": self._model_name, "batch.size": len(processors)}
                span.set_attributes(about)
                yield span

    def _of(self, processor: RequestProcessor) -> Any:
        traceparent = processor.get_request_property(HEADERS[0])
        if not traceparent or (self._is_dropped and is_not_sampled(traceparent)):
            return None
        from opentelemetry.context import Context as TraceContext

        carrier = {name: value for name in HEADERS if (value := processor.get_request_property(name))}
        return self._tracer.start_span("handler", self._propagator.extract(carrier, TraceContext()))


def observer(destination: str, model_name: str) -> HandlerSpans:
    """Return what makes the spans of a model, see `ts.runtime.worker_observer`."""
    return HandlerSpans(destination, model_name)
