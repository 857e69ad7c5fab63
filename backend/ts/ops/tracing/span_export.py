"""Where OpenTelemetry spans go, those of the server and those of its workers.

A destination is ``otlp`` (the variables ``OTEL_EXPORTER_OTLP_…`` say which collector) or the path of a file, one span
in JSON per line.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from ts.utils.optional_packages import missing_package

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

OTLP: Final = "otlp"
#: The request headers that carry a trace (W3C).
HEADERS: Final = ("traceparent", "tracestate")
_HEXADECIMAL: Final = frozenset("0123456789abcdef")


#: Where the flags of a ``traceparent`` of the present version are, and the flag of a trace that is sampled.
_FLAGS: Final = slice(53, 55)
_SAMPLED: Final = 1
#: What OpenTelemetry calls a sampler that follows a client that does not sample.
_FOLLOWS: Final = "remoteParentNotSampled:AlwaysOffSampler"
#: How long a span may wait for others before it is written to a file (milliseconds).
_DELAY: Final = 200


def is_not_sampled(traceparent: str) -> bool:
    """Whether this is the header of a trace of which nobody keeps spans; an invalid header is not."""
    flags = traceparent[_FLAGS]
    if traceparent[:3] != "00-" or len(traceparent) != _FLAGS.stop or not set(flags) <= _HEXADECIMAL:
        return False
    return not int(flags, 16) & _SAMPLED


def drops_what_is_not_sampled(provider: "TracerProvider") -> bool:
    """Whether the sampler, which a variable of OpenTelemetry's may choose, makes no spans where the client has none."""
    return _FOLLOWS in provider.sampler.get_description()


def provider_of(destination: str, service: str) -> "TracerProvider":
    """Return the tracer provider of a destination. Raises ModuleNotFoundError, OSError: it cannot be used."""
    try:
        return provider_with([to_collector() if destination == OTLP else to_file(destination)], service)
    except ModuleNotFoundError as error:
        raise missing_package(error, "traces", "tracing") from None


def provider_with(processors: "Iterable[SpanProcessor]", service: str) -> "TracerProvider":
    """Return the tracer provider of a service, whose spans go to ``processors``."""
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider

    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: service}))
    for processor in processors:
        provider.add_span_processor(processor)
    return provider


def to_collector(**options: Any) -> "SpanProcessor":
    """Return the processor that sends spans to a collector by OTLP; ``options`` are those of the exporter."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    return BatchSpanProcessor(OTLPSpanExporter(**options))


def to_file(path: str) -> "SpanProcessor":
    """Return the processor that appends each span to a file, as a line of JSON, from a thread."""
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

    out = open(path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115 - it lives as long as the process
    exporter = ConsoleSpanExporter(out=out, formatter=lambda span: span.to_json(indent=None) + "\n")
    return BatchSpanProcessor(exporter, schedule_delay_millis=_DELAY)
