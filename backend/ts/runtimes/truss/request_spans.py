"""OpenTelemetry spans of requests, for models whose configuration has ``runtime.enable_tracing_data``.

The spans are the server's: they are never the current ones, so spans that a model makes itself have other parents.
A request that comes with the headers of W3C Trace Context continues the trace of its client.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from ts.protocol.messages import InferRow
from ts.runtimes.truss.truss_config import TrussConfig
from ts.utils.optional_packages import missing_package

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider

logger = logging.getLogger(__name__)

_OTLP_VARIABLE: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
_FILE_VARIABLE: Final = "OTEL_TRACING_NDJSON_FILE"
_HONEYCOMB_VARIABLE: Final = "HONEYCOMB_DATASET"
_HONEYCOMB_SECRET: Final = "HONEYCOMB_API_KEY"  # noqa: S105 - the name of one
_HONEYCOMB_URL: Final = "https://api.honeycomb.io/v1/traces"
_SERVICE: Final = "truss-server"


class Trace(Protocol):
    """The spans of one request."""

    def span(self, name: str, section: str | None = None) -> AbstractContextManager[None]:
        """Make a span of a block, within the one around it; with a ``section`` of that name in it."""

    def section(self, name: str) -> AbstractContextManager[None]:
        """Tell in the span around a block when it begins and ends, and how long it takes."""


class _NoTrace:
    """What there is of a request that is not traced."""

    def __init__(self) -> None:
        self._nothing = contextlib.nullcontext()

    def span(self, name: str, section: str | None = None) -> AbstractContextManager[None]:
        return self._nothing

    def section(self, name: str) -> AbstractContextManager[None]:
        return self._nothing


NO_TRACE: Final = _NoTrace()


def tracing_of(config: TrussConfig, secrets: Mapping[str, str]) -> Tracing | None:
    """Return what traces the requests of a model; None where that is not configured.

    Raises:
        ModuleNotFoundError: It is, and OpenTelemetry's packages are not installed.
    """
    if not config.values["runtime"]["enable_tracing_data"]:
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
    """Traces requests."""

    def __init__(self, processors: Sequence[SpanProcessor]) -> None:
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider: TracerProvider = TracerProvider(resource=Resource.create({SERVICE_NAME: _SERVICE}))
        for processor in processors:
            self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("ts.runtimes.truss")
        self._propagator = TraceContextTextMapPropagator()

    def trace_of(self, row: InferRow) -> Trace:
        """Return the trace of one request."""
        from opentelemetry.context import Context

        headers = {name.lower().decode(): value.decode("latin-1") for name, value in row[1] if isinstance(name, bytes)}
        return _RequestTrace(self._tracer, self._propagator.extract(headers, Context()))

    def close(self) -> None:
        """Send what was not sent yet."""
        self._provider.shutdown()


class _RequestTrace:
    def __init__(self, tracer: Any, context: Context) -> None:
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


def _processors(secrets: Mapping[str, str]) -> Iterator[SpanProcessor]:
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor

    if url := os.environ.get(_OTLP_VARIABLE):
        yield BatchSpanProcessor(_otlp_exporter(url, {}))
    if file := os.environ.get(_FILE_VARIABLE):
        yield SimpleSpanProcessor(_file_exporter(Path(file)))
    dataset = os.environ.get(_HONEYCOMB_VARIABLE)
    if dataset and _HONEYCOMB_SECRET in secrets:
        headers = {"x-honeycomb-team": secrets[_HONEYCOMB_SECRET], "x-honeycomb-dataset": dataset}
        yield BatchSpanProcessor(_otlp_exporter(_HONEYCOMB_URL, headers))


def _otlp_exporter(url: str, headers: dict[str, str]) -> Any:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint=url, headers=headers)


def _file_exporter(path: Path) -> Any:
    """Return what writes each span as a line of JSON."""
    from opentelemetry.sdk.trace.export import ConsoleSpanExporter

    def line(span: ReadableSpan) -> str:
        return json.dumps(json.loads(span.to_json())) + "\n"

    return ConsoleSpanExporter(out=path.open("a", encoding="utf-8"), formatter=line)
