"""Traces of requests, where they are wanted."""

import json
from typing import Any

from tests.conformance.truss.serving import Serving, Truss
from tests.e2e.running_server import eventually

_VARIABLES = {"OTEL_TRACING_NDJSON_FILE": "{here}/spans"}
TRUSSES = {
    "traced": Truss("traced:Tracing", {"runtime": {"enable_tracing_data": True}, "environment_variables": _VARIABLES}),
    "untraced": Truss("traced:Tracing", {"environment_variables": _VARIABLES}),
}
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def spans(serving: Serving, name: str) -> list[dict[str, Any]]:
    file = serving.folders[name] / "spans"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_row_82_spans_are_in_the_client_s_trace_and_the_model_s_own_are_not(serving: Serving) -> None:
    headers = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
    for name in ("traced", "untraced"):
        assert serving.predict(name, 1, headers=headers).json() == [True, True]
    eventually(lambda: len(spans(serving, "traced")) == 2, "both spans are in the file")
    step, endpoint = spans(serving, "traced")
    assert (step["name"], endpoint["name"]) == ("call-predict", "predict-endpoint")
    assert (endpoint["context"]["trace_id"], endpoint["parent_id"]) == (f"0x{TRACE}", f"0x{SPAN}")
    assert step["parent_id"] == endpoint["context"]["span_id"]
    assert spans(serving, "untraced") == []
