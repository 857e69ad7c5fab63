"""A request is found by the id that its client gave it: in the answer, the access log and the model's log."""

import json
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
import requests
from tests.e2e.raw_client import RawClient
from tests.e2e.running_server import DEADLINE, RunningServer, eventually, model_folder
from tests.ports import free_ports

from torchserve_py.apis.grpc.protos.inference_pb2 import PredictionsRequest
from torchserve_py.apis.grpc.protos.inference_pb2_grpc import InferenceAPIsServiceStub

HANDLER = """
import logging
import time


def handle(data, context):
    if data is None:
        return None
    text = bytes(data[0].get("body") or data[0].get("data")).decode()
    logging.getLogger("mine").warning("asked %s", text)
    if text == "fail":
        raise ValueError("wrong")
    if text == "wait":
        time.sleep(1)
    return [context.get_request_id(0)] * len(data)
"""
TRACE = "0af7651916cd43dd8448eb211c80319c"
HEADERS = {"content-type": "application/octet-stream", "traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, str]]:
    folder = model_folder(tmp_path_factory.mktemp("models"), "m", HANDLER)
    (port,) = free_ports(1)
    with RunningServer({"m": folder}, {"log_format": "json", "grpc_inference_port": port}) as running:
        running.wait_ready()
        yield running, f"127.0.0.1:{port}"


def lines_about(server: RunningServer, name: str, request_id: str) -> list[dict[str, Any]]:
    path = server.directory / "logs" / name
    records = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [each for each in records if each.get("request_id") == request_id]


def line_about(server: RunningServer, request_id: str) -> dict[str, Any]:
    (line,) = eventually(lambda: lines_about(server, "access_log.log", request_id), "the access log has the line")
    return line


def test_http_answers_and_logs_have_the_clients_id(server: tuple[RunningServer, str]) -> None:
    running, _ = server
    answer = running.predict("m", b"hello", headers={**HEADERS, "x-request-id": "order-17/a"})
    assert answer.headers["x-request-id"] == "order-17/a"
    line = line_about(running, "order-17/a")
    named = {key: line[key] for key in ("model", "model_version", "trace_id", "route", "status")}
    assert (named["model"], named["trace_id"], named["status"]) == ("m", TRACE, 200)
    assert named["route"] == "/predictions/{model_name}"
    assert "cause" not in line
    (record,) = eventually(lambda: lines_about(running, "model_log.log", "order-17/a"), "the model's log has it")
    assert record["message"] == "asked hello"


def test_a_failure_names_its_cause(server: tuple[RunningServer, str]) -> None:
    running, _ = server
    answer = running.predict("m", b"fail", headers={**HEADERS, "x-request-id": "failing-1"})
    assert (answer.status_code, answer.headers["x-request-id"]) == (503, "failing-1")
    assert line_about(running, "failing-1")["cause"] == "handler_error"
    refused = requests.get(f"{running.inference}/nowhere", headers={"x-request-id": "lost-1"}, timeout=DEADLINE)
    assert (refused.status_code, refused.headers["x-request-id"]) == (404, "lost-1")
    assert line_about(running, "lost-1")["status"] == 404


@pytest.mark.parametrize("unusable", ["", "x" * 129, "two words", "h\xe4user"])
def test_an_unusable_id_is_replaced_by_the_servers(server: tuple[RunningServer, str], unusable: str) -> None:
    running, _ = server
    answer = running.predict("m", b"hello", headers={**HEADERS, "x-request-id": unusable.encode("latin-1")})
    assert answer.headers["x-request-id"] == answer.text
    line_about(running, answer.text)


def test_a_client_that_leaves_has_a_line(server: tuple[RunningServer, str]) -> None:
    running, _ = server
    with RawClient(running.inference) as client:
        client.post("/predictions/m", b"wait", "Content-Type: application/octet-stream", "x-request-id: gone-1")
        eventually(lambda: lines_about(running, "model_log.log", "gone-1"), "the handler runs")
    line = line_about(running, "gone-1")
    assert (line["status"], line["cause"], line["model"]) == (499, "cancelled", "m")
    route = {"route": "/predictions/{model_name}", "status": "499"}
    eventually(lambda: running.metric("ts_http_requests_total", **route) == 1, "it is counted")


def test_grpc_calls_have_ids_too(server: tuple[RunningServer, str]) -> None:
    running, address = server
    with grpc.insecure_channel(address) as channel:
        predict = InferenceAPIsServiceStub(channel).Predictions
        metadata = (("x-request-id", "rpc-1"), ("traceparent", HEADERS["traceparent"]))
        request = PredictionsRequest(model_name="m", input={"data": b"hello"})
        _, call = predict.with_call(request, metadata=metadata, timeout=DEADLINE)
        assert dict(call.trailing_metadata())["x-request-id"] == "rpc-1"
        line = line_about(running, "rpc-1")
        assert (line["model"], line["trace_id"], line["status"]) == ("m", TRACE, 0)
        own = predict(request, timeout=DEADLINE).prediction.decode()
        assert line_about(running, own)["model"] == "m"
        with pytest.raises(grpc.RpcError) as caught:
            predict(PredictionsRequest(model_name="m", input={"data": b"fail"}), timeout=DEADLINE)
        told = dict(caught.value.trailing_metadata())["x-request-id"]
        assert line_about(running, told)["cause"] == "handler_error"
