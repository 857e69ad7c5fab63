"""OpenTelemetry spans of requests, for models whose configuration has ``runtime.enable_tracing_data``.

The spans are the server's: they are never the current ones, so spans that a model makes itself have other parents.
A request that comes with the headers of W3C Trace Context continues the trace of its client.
"""

import contextlib
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final

from ts.ops.tracing.span_export import provider_with, to_collector, to_file
from ts.protocol.messages import InferRow
from ts.utils.optional_packages import missing_package

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import SpanProcessor

logger = logging.getLogger(__name__)

_HONEYCOMB_SECRET: Final = "HONEYCOMB_API_KEY"  # noqa: S105 - the name of one
_HONEYCOMB_URL: Final = "https://api.honeycomb.io/v1/traces"


class Trace:
    """The spans of one request; this class makes none, for requests that are not traced."""

    _nothing = contextlib.nullcontext()

    def span(self, name: str, section: str | None = None) -> AbstractContextManager[None]:
        """Make a span of a block, as a child of the span around it; with a ``section`` of that name in the span."""
        return self._nothing

    def section(self, name: str) -> AbstractContextManager[None]:
        """Record in the span around a block when the block begins and ends, and how long it takes."""
        return self._nothing


NO_TRACE: Final = Trace()


def tracing_of(config: Mapping[str, Any], secrets: Mapping[str, str]) -> "Tracing | None":
    """Return the tracing of a model's requests, or None. Raises ModuleNotFoundError: OpenTelemetry is not installed."""
    if not config["runtime"]["enable_tracing_data"]:
        return None
    try:
        processors = list(_processors(secrets))
        if not processors:
            logger.info("There are no traces: none of the variables that name an exporter is set.")
            return None
        return Tracing(processors)
    except ModuleNotFoundError as error:
        raise missing_package(error, "Traces of Truss models", "tracing") from None


class Tracing:
    """Traces requests; the spans go to ``processors``."""

    def __init__(self, processors: "Sequence[SpanProcessor]") -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider_with(processors, "truss-server")
        self._tracer = self._provider.get_tracer("ts.contracts.truss")
        self._propagator = TraceContextTextMapPropagator()

    def trace_of(self, row: InferRow) -> Trace:
        from opentelemetry.context import Context

        headers = {
            name.lower().decode(): value.decode("latin-1") for name, value in row.headers if isinstance(name, bytes)
        }
        return _RequestTrace(self._tracer, self._propagator.extract(headers, Context()))

    def close(self) -> None:
        """Send the remaining spans."""
        self._provider.shutdown()


class _RequestTrace(Trace):
    def __init__(self, tracer: Any, context: "Context") -> None:
        self._tracer = tracer
        self._context = context
        self._span: Any = None

    @contextlib.contextmanager
    def span(self, name: str, section: str | None = None) -> Iterator[None]:
        from opentelemetry.trace import StatusCode, set_span_in_context

        outside, context = self._span, self._context
        span = self._span = self._tracer.start_span(name, context=context)
        self._context = set_span_in_context(span, context)
        try:
            with self.section(section) if section else contextlib.nullcontext():
                yield
        except BaseException as error:
            span.set_status(StatusCode.ERROR, type(error).__name__)
            raise
        finally:
            span.end()
            self._span, self._context = outside, context

    @contextlib.contextmanager
    def section(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        self._span.add_event(f"start: {name}")
        try:
            yield
        finally:
            self._span.add_event(f"done: {name}", {"duration_sec": time.perf_counter() - started})


def _processors(secrets: Mapping[str, str]) -> "Iterator[SpanProcessor]":
    if url := os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
        yield to_collector(endpoint=url, headers={})
    if path := os.environ.get("OTEL_TRACING_NDJSON_FILE"):
        yield to_file(path)
    dataset = os.environ.get("HONEYCOMB_DATASET")
    if dataset and _HONEYCOMB_SECRET in secrets:
        headers = {"x-honeycomb-team": secrets[_HONEYCOMB_SECRET], "x-honeycomb-dataset": dataset}
        yield to_collector(endpoint=_HONEYCOMB_URL, headers=headers)
