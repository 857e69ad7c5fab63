"""OpenTelemetry traces of the frontend: a span for each job, from its admission to its last byte.

It is a child of the client's span, if the request has a ``traceparent`` header (W3C), and the parent of the worker's
(`ts.ops.tracing.handler_spans`), which gets the header with the span's own id. Without the setting nothing here is
imported.

Attributes follow OpenTelemetry's conventions for HTTP and errors, and at OpenAI's paths those for generative AI.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Self

from torchserve_py.base.causes import Cause
from torchserve_py.base.metrics.model_metrics import EndedJob
from torchserve_py.base.settings.schemas.plugin_keys import PluginKeys
from torchserve_py.core.jobs.call import Call
from torchserve_py.core.jobs.job_observer import ObservedJob
from torchserve_py.core.jobs.parts import Part
from torchserve_py.plugin_api import PluginUnavailable
from ts.ops.tracing.span_export import HEADERS, OTLP, drops_what_is_not_sampled, is_not_sampled, provider_of
from ts.protocol.request_names import name_among

_HTTP: Final = "http"
_GRPC: Final = "grpc"
_KEYS: Final = (HEADERS[0].encode(), HEADERS[0])
_LENGTH: Final = len(HEADERS[0])
#: OpenAI's paths, as handlers get them in ``url_path``, and what the conventions call each.
_OPERATIONS: Final = {
    "v1/chat/completions": "chat",
    "v1/responses": "chat",
    "v1/completions": "text_completion",
    "v1/embeddings": "embeddings",
}


class JobSpans:
    """Makes spans, which go where the setting says: to a collector (``otlp``), or to the file of that path.

    Raises PluginUnavailable: OpenTelemetry's packages are not installed, or the file cannot be written.
    """

    def __init__(self, traces: str) -> None:
        destination = traces if traces == OTLP else str(Path(traces).absolute())
        try:
            provider = provider_of(destination, "torchserve-py")
        except (ModuleNotFoundError, OSError) as error:
            raise PluginUnavailable(f"traces = {destination}: {error}") from error
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self.in_workers: tuple[str, str] | None = "ts.ops.tracing.handler_spans", destination
        self._tracer = provider.get_tracer("torchserve_py")
        self._is_dropped = drops_what_is_not_sampled(provider)
        self._propagator = TraceContextTextMapPropagator()

    def of_model(self, name: str, version: str, keys: PluginKeys) -> Self:
        """Return this: the jobs of all models have spans."""
        return self

    def begin(self, call: Call, model: str, version: str) -> ObservedJob | None:
        """Begin the span of a job, unless its client says that its trace is not sampled."""
        if self._is_dropped and is_not_sampled(_traceparent(call.headers)):
            return None
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context

        headers = tuple(call.headers)
        request_id = name_among(headers)
        context = self._propagator.extract(_carrier(headers), Context())
        attributes: dict[str, str] = {"model.name": model, "model.version": version}
        attributes |= {"rpc.system": _GRPC} if call.via == _GRPC else {"network.protocol.name": call.via}
        if call.request_line is not None:
            method, target, route = call.request_line
            attributes |= {"http.request.method": method, "url.path": target.partition("?")[0], "http.route": route}
        if call.sequence is not None:
            attributes["sequence.id"] = call.sequence.id
        operation = next((_OPERATIONS.get(_text(value)) for name, value in headers if name == "url_path"), None)
        if operation is not None:
            attributes |= {"gen_ai.operation.name": operation, "gen_ai.request.model": model}
            attributes["gen_ai.provider.name"] = "torchserve-py"
            if call.sequence is not None:
                attributes["gen_ai.conversation.id"] = call.sequence.id
        name = f"{operation or 'inference'} {model}"
        span = self._tracer.start_span(name, context, SpanKind.SERVER, attributes)
        own: dict[str, str] = {}
        via = call.via
        self._propagator.inject(own, set_span_in_context(span, context))

        def end(ended: EndedJob, last: Part | None) -> None:
            told = ended.told
            span.set_attribute("request.id", request_id or ended.id)
            if via == _HTTP and not isinstance(told, Cause):
                span.set_attribute("http.response.status_code", told)
            if not ended.succeeded:
                span.set_attribute("error.type", told.value if isinstance(told, Cause) else str(told))
                span.set_status(StatusCode.ERROR)
            span.end()

        sent = (*headers, *((name.encode(), value.encode()) for name, value in own.items()))
        return ObservedJob(sent, f"{span.get_span_context().trace_id:032x}", end)


def _traceparent(pairs: Iterable[tuple[Any, Any]]) -> str:
    """The header of that name as the client has sent it, empty if it has sent none."""
    for name, value in pairs:
        if len(name) == _LENGTH and name.lower() in _KEYS:
            return _text(value)
    return ""


def _carrier(pairs: Iterable[tuple[Any, Any]]) -> dict[str, str]:
    """The headers of a trace among those of a request."""
    carrier = {}
    for name, value in pairs:
        lowered = (name.decode("latin-1") if isinstance(name, bytes) else name).lower()
        if lowered in HEADERS:
            carrier[lowered] = _text(value)
    return carrier


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)
