"""OpenTelemetry traces of the frontend: a span for each job, from its admission to its last byte.

It is a child of the client's span, if the request has a ``traceparent`` header (W3C), and the parent of the worker's
(`ts.span_export`), which gets the header with the span's own id. Without the setting nothing here is imported.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ts.span_export import HEADERS, OTLP, provider_of

Pairs = tuple[tuple[Any, Any], ...]


class TracingError(OSError):
    """Traces cannot be written as the settings say."""


def destination_of(traces: str) -> str:
    """What the setting means for every process: ``otlp``, or the absolute path of a file."""
    return traces if traces == OTLP else str(Path(traces).absolute())


class Tracing:
    """Makes spans, which go where `destination_of` says.

    Raises TracingError: OpenTelemetry's packages are not installed, or the file cannot be written.
    """

    def __init__(self, destination: str) -> None:
        try:
            provider = provider_of(destination, "torchserve-py")
        except (ModuleNotFoundError, OSError) as error:
            raise TracingError(f"traces = {destination}: {error}") from error
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._tracer = provider.get_tracer("torchserve_py")
        self._propagator = TraceContextTextMapPropagator()

    def begin(
        self, headers: Iterable[tuple[Any, Any]], model: str, version: str, sequence_id: str | None
    ) -> tuple[Callable[[str, bool], None], Pairs]:
        """Begin the span of a job; return what ends it, and the headers that the worker gets.

        The span is ended with the id of the job, and whether the job has failed.
        """
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context

        pairs = tuple(headers)
        context = self._propagator.extract(_carrier(pairs), Context())
        attributes = {"model.name": model, "model.version": version}
        if sequence_id is not None:
            attributes["sequence.id"] = sequence_id
        span = self._tracer.start_span(f"inference {model}", context, SpanKind.SERVER, attributes)
        own: dict[str, str] = {}
        self._propagator.inject(own, set_span_in_context(span, context))

        def end(job_id: str, failed: bool) -> None:
            span.set_attribute("request.id", job_id)
            if failed:
                span.set_status(StatusCode.ERROR)
            span.end()

        return end, (*pairs, *((name.encode(), value.encode()) for name, value in own.items()))


def _carrier(pairs: Pairs) -> dict[str, str]:
    """The headers of a trace among those of a request."""
    carrier = {}
    for name, value in pairs:
        lowered = (name.decode("latin-1") if isinstance(name, bytes) else name).lower()
        if lowered in HEADERS:
            carrier[lowered] = value.decode("latin-1") if isinstance(value, bytes) else value
    return carrier
