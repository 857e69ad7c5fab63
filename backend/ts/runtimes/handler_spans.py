"""A span around each call of a handler, for each of its rows.

``TS_TRACES`` in the worker's environment says where spans go (`ts.tracing`); without it this is not imported. The span
of a row is a child of the server's, whose id comes with the row's headers (``traceparent``).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ts.context import Context
from ts.service import EntryPoint
from ts.tracing import HEADERS, provider_of


def traced(entry_point: EntryPoint, destination: str) -> EntryPoint:
    """Return the entry point of a handler with a span around each row of each call."""
    spans_of = _Spans(destination)
    if inspect.iscoroutinefunction(inspect.unwrap(entry_point)):

        @functools.wraps(entry_point)
        async def call_async(data: Any, context: Context) -> Any:
            with spans_of.call(context):
                return await entry_point(data, context)

        return call_async

    @functools.wraps(entry_point)
    def call(data: Any, context: Context) -> Any:
        with spans_of.call(context):
            return entry_point(data, context)

    return call


class _Spans:
    def __init__(self, destination: str) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._tracer = provider_of(destination, "torchserve-py-worker").get_tracer("ts")
        self._propagator = TraceContextTextMapPropagator()

    @contextmanager
    def call(self, context: Context) -> Iterator[None]:
        """One call of the handler. The span of the first row is the current one, for what the handler traces itself."""
        from opentelemetry.trace import StatusCode, use_span

        spans = list(self._begin(context))
        try:
            if spans:
                with use_span(spans[0], record_exception=False, set_status_on_exception=False):
                    yield
            else:
                yield
        except BaseException as error:
            for span in spans:
                span.set_status(StatusCode.ERROR, type(error).__name__)
            raise
        finally:
            for span in spans:
                span.end()

    def _begin(self, context: Context) -> Iterator[Any]:
        from opentelemetry.context import Context as TraceContext

        processors = context.request_processor or []
        for index, processor in enumerate(processors):
            carrier = {name: value for name in HEADERS if (value := processor.get_request_property(name))}
            if HEADERS[0] in carrier:
                parent = self._propagator.extract(carrier, TraceContext())
                yield self._tracer.start_span(
                    "handler", parent, attributes=_attributes(context, index, len(processors))
                )


def _attributes(context: Context, index: int, batch_size: int) -> Mapping[str, str | int]:
    request_id = (context.request_ids or {}).get(index, "")
    return {"request.id": request_id, "model.name": context.model_name or "", "batch.size": batch_size}
