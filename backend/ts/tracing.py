"""Where OpenTelemetry spans go, of the server as of its workers.

A destination is ``otlp`` (the variables ``OTEL_EXPORTER_OTLP_…`` say which collector) or the path of a file, one span
in JSON per line.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from ts.utils.optional_packages import missing_package

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider

OTLP: Final = "otlp"
#: The headers that a trace is passed on in (W3C).
HEADERS: Final = ("traceparent", "tracestate")


def provider_of(destination: str, service: str) -> TracerProvider:
    """Return what makes tracers whose spans go to a destination. What was not sent yet goes when the process exits.

    Raises:
        ModuleNotFoundError: OpenTelemetry's packages are not installed; the message says how to have them.
        OSError: The file cannot be written.
    """
    try:
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SimpleSpanProcessor

        provider = TracerProvider(resource=Resource.create({SERVICE_NAME: service}))
        if destination == OTLP:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        else:
            out = open(destination, "a", encoding="utf-8", buffering=1)  # noqa: SIM115 - it lives as long as the process
            provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=out, formatter=_line)))
    except ModuleNotFoundError as error:
        raise missing_package(error, "traces", "tracing") from None
    return provider


def _line(span: ReadableSpan) -> str:
    return json.dumps(json.loads(span.to_json())) + "\n"
