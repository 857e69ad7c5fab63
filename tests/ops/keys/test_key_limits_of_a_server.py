"""Keys with limits: over HTTP, gRPC and in live sessions, and what becomes of the others."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
import requests
from tests.e2e.gate import WAITING, Gate
from tests.e2e.running_server import DEADLINE, RunningServer, eventually, model_folder
from tests.ports import free_ports

from torchserve_py.apis.grpc.protos.inference_pb2 import PredictionsRequest
from torchserve_py.apis.grpc.protos.inference_pb2_grpc import InferenceAPIsServiceStub
from torchserve_py.client import Client

HANDLER = """
def handle(data, context):
    for row in data or ():
        sent = row.get("body") or row.get("data")
        text = sent if isinstance(sent, str) else bytes(sent).decode()
        if text.startswith("wait "):
            wait_for(text.removeprefix("wait "))
    return data and ["done"] * len(data)
"""
COUNTER = """
def handle(data, context):
    for index in range(len(data or ())):
        context.state[index] = context.state.get(index, 0) + 1
    return data and [str(context.state[index]) for index in range(len(data))]
"""
STATEFUL = "sequenceBatching: true\nsequenceMaxIdleMSec: 60000\nmaxNumSequence: 100\n"


@pytest.fixture
def port() -> int:
    return free_ports(1)[0]


@pytest.fixture
def server(tmp_path: Path, port: int) -> RunningServer:
    keys = [
        {"key": "greedy", "limits": {"requests_at_once": 1}},
        {"key": "hasty", "limits": {"requests_at_once": 2}},
        {"key": "rare", "limits": {"requests_per_second": 0.001}},
        {"key": "talker", "limits": {"requests_per_second": 4}},
        {"key": "opener", "limits": {"open_sequences": 1}},
        {"key": "reader", "name": "reader", "limits": {"tokens_per_second": 0.01}},
        {"key": "free"},
        {"key": "boss", "scope": "management"},
    ]
    (tmp_path / "keys.json").write_text(json.dumps({"keys": keys}))
    models = {
        "m": model_folder(tmp_path, "m", WAITING + HANDLER),
        "counter": model_folder(tmp_path, "counter", COUNTER, STATEFUL),
    }
    variables = {"TS_KEYS_FILE": str(tmp_path / "keys.json")}
    settings = {"grpc_inference_port": port, "usage_folder": tmp_path / "usage"}
    return RunningServer(models, settings, environment=variables, flags=())


def ask(server: RunningServer, key: str, text: str = "x") -> requests.Response:
    return server.predict("m", text, headers={"Authorization": f"Bearer {key}"})


def refused(answer: requests.Response) -> tuple[int, str | None, str | None]:
    return answer.status_code, answer.headers.get("ts-error-cause"), answer.headers.get("Retry-After")


def test_a_key_gets_no_more_at_once_than_it_may_and_others_notice_nothing(
    server: RunningServer, tmp_path: Path
) -> None:
    gate = Gate(tmp_path)
    with server, ThreadPoolExecutor(4) as clients:
        server.wait_ready()
        running = clients.submit(ask, server, "greedy", f"wait {gate.path}")
        gate.wait_until_reached()
        assert refused(ask(server, "greedy")) == (429, "too_many_at_once", "1")
        other = clients.submit(ask, server, "free")
        gate.open()
        assert [each.result().status_code for each in (running, other)] == [200, 200]
        assert ask(server, "greedy").status_code == 200
        assert server.metric("ts_outcomes_total", cause="too_many_at_once") == 1


def test_who_leaves_makes_room(server: RunningServer, tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    with server, ThreadPoolExecutor(2) as clients:
        server.wait_ready()
        running = clients.submit(ask, server, "hasty", f"wait {gate.path}")
        gate.wait_until_reached()

        def leaves() -> bool:
            """Send a request and leave; whether it waited meanwhile."""
            url, headers = f"{server.inference}/predictions/m", {"Authorization": "Bearer hasty"}
            try:
                return requests.post(url, b"x", headers=headers, timeout=0.5).status_code != 429
            except requests.ReadTimeout:
                return True

        assert leaves()
        eventually(leaves, "the place of who has left is free")
        gate.open()
        assert running.result().status_code == 200


def test_a_key_gets_no_more_in_a_second_than_it_may(server: RunningServer, port: int) -> None:
    with server:
        server.wait_ready()
        assert ask(server, "rare").status_code == 200
        answer = ask(server, "rare")
        assert (answer.status_code, answer.headers["ts-error-cause"]) == (429, "rate_limited")
        assert 900 < int(answer.headers["Retry-After"]) <= 1000
        assert answer.json()["message"] == "This key may make at most 0.001 requests a second."
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = InferenceAPIsServiceStub(channel)
            request = PredictionsRequest(model_name="m", input={"data": b"x"})
            with pytest.raises(grpc.RpcError) as failed:
                stub.Predictions(request, metadata=(("authorization", "Bearer rare"),), timeout=DEADLINE)
        assert failed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert dict(failed.value.trailing_metadata())["ts-error-cause"] == "rate_limited"
        assert "This key may make at most 0.001 requests a second." in str(failed.value.details())
        assert ask(server, "free").status_code == 200


def test_a_session_sends_a_step_again_that_came_too_early(server: RunningServer) -> None:
    with server:
        server.wait_ready()
        with Client(server.inference, key="talker") as client, client.session("counter") as session:
            assert [session.step(b"").text for _ in range(10)] == [str(number) for number in range(1, 11)]
        assert server.metric("ts_outcomes_total", cause="rate_limited") >= 1


def step(server: RunningServer, sequence: str, **more: str) -> requests.Response:
    headers = {"Authorization": "Bearer opener", "ts_request_sequence_id": sequence, **more}
    return server.predict("counter", "x", headers=headers)


def test_a_key_has_no_more_sequences_open_than_it_may(server: RunningServer) -> None:
    with server:
        server.wait_ready()
        assert step(server, "a").status_code == 200
        answer = step(server, "b")
        assert refused(answer) == (429, "too_many_sequences", "1")
        assert "at most 1 sequences open" in answer.json()["message"]
        assert step(server, "a", ts_request_sequence_end="true").text == "2"
        assert step(server, "b").status_code == 200


def test_a_key_gets_no_more_tokens_than_it_may_and_its_usage_is_told(server: RunningServer, tmp_path: Path) -> None:
    with server:
        server.wait_ready()
        assert ask(server, "reader").status_code == 200
        answer = ask(server, "reader")
        assert (answer.status_code, answer.headers["ts-error-cause"]) == (429, "too_many_tokens")
        assert 90 <= int(answer.headers["Retry-After"]) <= 100
        labels = {"key": "reader", "model_name": "m"}
        url = f"{server.metrics}/metrics"
        eventually(lambda: 'key="reader"' in requests.get(url, timeout=DEADLINE).text, "the usage is counted")
        assert server.metric("ts_key_refusals_total", **labels) == 1
        assert server.metric("ts_key_requests_total", **labels) == 1
        assert server.metric("ts_key_tokens_total", **labels) == 1
    (file,) = (tmp_path / "usage").glob("*.jsonl")
    (line,) = map(json.loads, file.read_text().splitlines())
    assert (line["key"], line["model"], line["requests"], line["refused"], line["tokens"]) == ("reader", "m", 1, 1, 1)
    assert line["seconds"] > 0
