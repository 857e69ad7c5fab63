"""A trace leads from the client's span over the server's to the handler's; without the setting nothing is imported."""

import json
from pathlib import Path
from typing import Any

import requests
from tests.e2e.running_server import DEADLINE, RunningServer, eventually, model_folder

HANDLER = """
import sys


def handle(data, context):
    if data is None:
        return None
    if data[0]["body"] == "fail":
        raise ValueError("wrong")
    traced = context.get_request_header(0, "traceparent") or ""
    return [f"{traced} {'opentelemetry' in sys.modules}"] * len(data)
"""
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


def spans_in(path: Path) -> dict[str, dict[str, Any]]:
    found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {span["name"]: span for span in found}


def test_a_request_is_traced_from_the_endpoint_to_the_handler(tmp_path: Path) -> None:
    traces = tmp_path / "spans.jsonl"
    with RunningServer({"m": model_folder(tmp_path, "m", HANDLER)}, {"traces": traces}) as server:
        server.wait_ready()
        answer = server.predict("m", "x", headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
        eventually(lambda: len(spans_in(traces)) == 2, "both spans are written")
        spans = spans_in(traces)
        job, handler = spans["inference m"], spans["handler"]
        assert {each["context"]["trace_id"] for each in (job, handler)} == {f"0x{TRACE}"}
        assert job["parent_id"] == f"0x{PARENT}"
        assert handler["parent_id"] == job["context"]["span_id"]
        assert answer.text == f"00-{TRACE}-{job['context']['span_id'].removeprefix('0x')}-01 True"
        ids = {each["attributes"]["request.id"] for each in (job, handler)}
        assert ids == {answer.headers["x-request-id"]}
        assert handler["attributes"]["batch.size"] == 1
        assert job["attributes"]["http.response.status_code"] == 200
        assert (job["attributes"]["http.request.method"], job["attributes"]["url.path"]) == ("POST", "/predictions/m")
        assert job["attributes"]["http.route"] == "/predictions/{model_name}"
        assert job["attributes"]["network.protocol.name"] == "http"
        traces.write_text("")
        not_sampled = f"00-{TRACE}-{PARENT}-00"
        assert server.predict("m", "x", headers={"traceparent": not_sampled}).text == f"{not_sampled} True"
        assert server.predict("m", "fail").status_code == 503
        eventually(lambda: len(spans_in(traces)) == 2, "the failure is traced")
        failed = spans_in(traces)
        assert failed["inference m"]["parent_id"] is None
        assert [each["status"]["status_code"] for each in failed.values()] == ["ERROR", "ERROR"]
        of_job = failed["inference m"]["attributes"]
        assert (of_job["http.response.status_code"], of_job["error.type"]) == (503, "503")
        (event,) = failed["handler"]["events"]
        about = event["attributes"]
        assert (event["name"], about["exception.type"], about["exception.message"]) == (
            "exception",
            "ValueError",
            "wrong",
        )
        assert failed["handler"]["attributes"]["error.type"] == "ValueError"


def test_a_request_of_openais_clients_has_the_attributes_of_generative_ai(tmp_path: Path) -> None:
    traces = tmp_path / "spans.jsonl"
    model = model_folder(tmp_path, "m", "def handle(data, context):\n    return data and ['{}']\n", "openai: true\n")
    with RunningServer({"m": model}, {"traces": traces}) as server:
        server.wait_ready()
        url = f"{server.inference}/v1/chat/completions"
        answer = requests.post(url, json={"model": "m", "messages": []}, timeout=DEADLINE)
        assert answer.status_code == 200, answer.text
        eventually(lambda: "chat m" in spans_in(traces), "the span is written")
        about = spans_in(traces)["chat m"]["attributes"]
        assert (about["gen_ai.operation.name"], about["gen_ai.request.model"]) == ("chat", "m")


def test_without_the_setting_the_clients_header_passes_and_nothing_is_imported(tmp_path: Path) -> None:
    with RunningServer({"m": model_folder(tmp_path, "m", HANDLER)}) as server:
        server.wait_ready()
        answer = server.predict("m", "x", headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
        assert answer.text == f"00-{TRACE}-{PARENT}-01 False"


MLSERVER_MODEL = """
from mlserver import MLModel
from mlserver.types import InferenceResponse, ResponseOutput
from opentelemetry import trace


class Traced(MLModel):
    async def predict(self, payload):
        if payload.id == "fail":
            raise ValueError("wrong")
        span = trace.get_current_span().get_span_context()
        output = ResponseOutput(name="span", shape=[1], datatype="BYTES", data=[f"{span.span_id:016x}"])
        return InferenceResponse(model_name=self.name, outputs=[output])
"""
TRUSS_MODEL = """
from opentelemetry import trace


class Model:
    def predict(self, model_input):
        if model_input.get("id") == "fail":
            raise ValueError("wrong")
        return f"{trace.get_current_span().get_span_context().span_id:016x}"
"""


def test_jobs_of_other_contracts_have_spans_of_their_own(tmp_path: Path) -> None:
    mlserver = tmp_path / "ml"
    mlserver.mkdir()
    (mlserver / "traced.py").write_text(MLSERVER_MODEL)
    (mlserver / "model-settings.json").write_text(json.dumps({"name": "ml", "implementation": "traced.Traced"}))
    truss = tmp_path / "truss" / "model"
    truss.mkdir(parents=True)
    (truss / "model.py").write_text(TRUSS_MODEL)
    (truss.parent / "config.yaml").write_text("model_name: truss\n")
    traces = tmp_path / "spans.jsonl"
    asked = {
        "ml": {"inputs": [{"name": "x", "shape": [1], "datatype": "INT32", "data": [1]}]},
        "truss": {"x": 1},
    }
    with RunningServer({"ml": mlserver, "truss": truss.parent}, {"traces": traces}) as server:
        server.wait_ready()
        for name, question in asked.items():
            traces.write_text("")
            kind = {"content-type": "application/json"}
            answer = server.predict(name, json.dumps(question), headers=kind)
            eventually(lambda: len(spans_in(traces)) == 2, "both spans are written")
            job, handler = spans_in(traces)[f"inference {name}"], spans_in(traces)["handler"]
            assert handler["parent_id"] == job["context"]["span_id"]
            assert handler["attributes"]["request.id"] == answer.headers["x-request-id"]
            assert handler["context"]["span_id"].removeprefix("0x") in answer.text
            assert (handler["events"], handler["status"]["status_code"]) == ([], "UNSET")
            traces.write_text("")
            assert server.predict(name, json.dumps(question | {"id": "fail"}), headers=kind).status_code == 500
            eventually(lambda: len(spans_in(traces)) == 2, "the failure is traced")
            failed = spans_in(traces)["handler"]
            assert (failed["attributes"]["error.type"], failed["status"]["status_code"]) == ("ValueError", "ERROR")
            (event,) = failed["events"]
            about = event["attributes"]
            assert (event["name"], about["exception.type"], about["exception.message"]) == (
                "exception",
                "ValueError",
                "wrong",
            )
            assert 'raise ValueError("wrong")' in about["exception.stacktrace"]
