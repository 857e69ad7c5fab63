"""Spans of requests: what there is of each, whose children they are, and when there are none."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.contracts.truss.worker.frontend import Frontend, config_with

from ts.contracts.truss.request_spans import Tracing, tracing_of
from ts.protocol.messages import InferRow

Serve = Callable[..., Frontend]

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HEADERS = ((b"Traceparent", f"00-{TRACE}-{PARENT}-01".encode()),)


class Steps:
    def preprocess(self, inputs: Any) -> Any:
        return inputs

    async def predict(self, inputs: Any) -> Any:
        self.current = trace.get_current_span().get_span_context().is_valid
        if inputs == "fail":
            raise ValueError
        return inputs

    def postprocess(self, result: Any) -> Any:
        return result

    def messages(self, inputs: Any) -> Iterator[str]:
        yield inputs


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def traced(serve: Serve, exporter: InMemorySpanExporter) -> Frontend:
    return serve(Steps(), tracing=Tracing([SimpleSpanProcessor(exporter)]))


async def test_a_request_continues_its_client_s_trace(traced: Frontend, exporter: InMemorySpanExporter) -> None:
    await traced.infer("x", headers=HEADERS).answer()
    spans = exporter.get_finished_spans()
    assert [span.name for span in spans] == ["call-pre", "call-predict", "call-post", "predict-endpoint"]
    *steps, endpoint = spans
    assert endpoint.parent is not None
    assert (f"{endpoint.context.trace_id:032x}", f"{endpoint.parent.span_id:016x}") == (TRACE, PARENT)
    assert {step.parent.span_id for step in steps if step.parent} == {endpoint.context.span_id}
    assert endpoint.resource.attributes["service.name"] == "truss-server"
    events = [event.name for event in endpoint.events]
    assert events == [
        "start: json-deserialize",
        "done: json-deserialize",
        "start: json-serialize",
        "done: json-serialize",
    ]
    last = steps[1].events[-1]
    assert (last.name, "duration_sec" in (last.attributes or {})) == ("done: predict", True)
    assert traced.model.current is False


async def test_streams_and_failures(traced: Frontend, exporter: InMemorySpanExporter) -> None:
    await traced.infer("x", endpoint="messages").answer()
    names = [span.name for span in exporter.get_finished_spans()]
    assert names == ["call-messages", "buffered-response-generator", "messages-endpoint"]
    exporter.clear()
    await traced.infer("fail").answer()
    statuses = {span.name: span.status.is_ok for span in exporter.get_finished_spans()}
    assert statuses == {"call-pre": True, "call-predict": False, "predict-endpoint": False}


def test_traces_go_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "spans"
    enabled = config_with(enable_tracing_data=True)
    assert tracing_of(enabled, {}) is None
    monkeypatch.setenv("OTEL_TRACING_NDJSON_FILE", str(file))
    assert tracing_of(config_with(), {}) is None
    tracing = tracing_of(enabled, {})
    assert tracing is not None
    with tracing.trace_of(InferRow("1", (), None, b"", None, False)).span("one", "a section"):
        pass
    tracing.close()
    (line,) = file.read_text().splitlines()
    assert json.loads(line)["name"] == "one"


def test_without_opentelemetry_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACING_NDJSON_FILE", "spans")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace.export", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'torchserve-py\[tracing\]'"):
        tracing_of(config_with(enable_tracing_data=True), {})
