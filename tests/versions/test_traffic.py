"""Versions of a model share its requests, over every protocol; a canary is promoted or rolled back by itself."""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import requests
from tests.e2e.running_server import DEADLINE, RunningServer, eventually, model_folder

from torchserve_py.apis.grpc.protos.inference_pb2 import PredictionsRequest
from torchserve_py.apis.grpc.protos.inference_pb2_grpc import InferenceAPIsServiceStub

HANDLER = """
import os
import time

from ts.handler_utils.utils import send_intermediate_predict_response


class Handler:
    def initialize(self, context):
        self.version = context.manifest["model"]["modelVersion"]
        self.context = context
        self.count = 0

    def handle(self, data, context):
        if "stream" in data[0]:
            for part in ("a", "b"):
                send_intermediate_predict_response([part], context.request_ids, "ok", 200, context)
        if self.version == "bad":
            raise RuntimeError("bad")
        if self.version == "twin":
            return ["1"] * len(data)
        if self.version == "near":
            return [1.0004] * len(data)
        if self.version == "slow":
            time.sleep(0.05)
        if self.version == "dying":
            self.count += 1
            if self.count % 30 == 0:
                os._exit(1)
        if self.version != "1":
            context.metrics.add_metric("Score", 0.1 if self.version == "unsure" else 1.0, "count")
        else:
            context.metrics.add_metric("Score", 1.0, "count")
        return [self.version] * len(data)
"""


def version(folder: Path, name: str, more: str = "") -> Path:
    made = model_folder(folder / name, "said", HANDLER, f"minWorkers: 1\n{more}")
    (made / "MAR-INF").mkdir()
    manifest = {
        "model": {"modelName": "said", "modelVersion": name, "handler": "handler.py", "configFile": "model-config.yaml"}
    }
    (made / "MAR-INF" / "MANIFEST.json").write_text(json.dumps(manifest))
    return made


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer({"said": version(tmp_path, "1")}) as server:
        server.wait_ready()
        register(server, version(tmp_path, "2"))
        yield server


def register(server: RunningServer, folder: Path) -> None:
    query = f"url={folder}&model_name=said&initial_workers=1&synchronous=true"
    answer = requests.post(f"{server.management}/models?{query}", timeout=DEADLINE)
    assert answer.ok, answer.text


def traffic(server: RunningServer, method: str = "GET", body: Any = None) -> requests.Response:
    return requests.request(method, f"{server.management}/models/said/traffic", json=body, timeout=DEADLINE)


def said(server: RunningServer, count: int = 40, **headers: str) -> Counter[str]:
    return Counter(server.predict("said", headers=headers).text for _ in range(count))


def test_weights_share_what_names_no_version(server: RunningServer) -> None:
    assert said(server, 10) == {"1": 10}
    answer = traffic(server, "PUT", {"weights": {"1": 50, "2": 50}})
    assert (answer.status_code, answer.json()) == (200, {"default": "1", "weights": {"1": 50, "2": 50}})
    assert set(said(server)) == {"1", "2"}
    # A user, and a request that names its version, get the same each time.
    assert len(said(server, 10, **{"x-user-id": "ada"})) == 1
    for named in "12":
        assert said(server, 5, **{"x-model-version": named}) == {named: 5}
        answered = requests.post(f"{server.inference}/predictions/said/{named}", timeout=DEADLINE)
        assert answered.text == named
    missing = server.predict("said", headers={"x-model-version": "9"})
    assert (missing.status_code, missing.json()["message"]) == (404, "Model version: 9 does not exist for model: said")

    traffic(server, "PUT", {"weights": {"1": 0, "2": 100}})
    assert said(server, 10) == {"2": 10}
    body = {"inputs": [{"name": "x", "shape": [1], "datatype": "INT32", "data": [1]}]}
    answer = requests.post(f"{server.inference}/v2/models/said/infer", json=body, timeout=DEADLINE)
    assert answer.json()["outputs"][0]["data"] == ["2"]
    assert answer.json()["model_version"] == "2"

    assert traffic(server, "DELETE").json() == {"default": "1", "weights": {}}
    assert said(server, 10) == {"1": 10}


@contextmanager
def grpc_stub(server: RunningServer) -> Iterator[InferenceAPIsServiceStub]:
    line = next(line for line in server.log().splitlines() if "grpc_inference_port: listening" in line)
    with grpc.insecure_channel(line.rpartition(" ")[2].removeprefix("grpc://")) as channel:
        yield InferenceAPIsServiceStub(channel)


def test_a_header_names_the_version_of_a_model_without_weights(server: RunningServer, tmp_path: Path) -> None:
    for named in "12":
        assert said(server, 5, **{"x-model-version": named}) == {named: 5}
    missing = server.predict("said", headers={"X-Model-Version": "9"})
    assert (missing.status_code, missing.json()["message"]) == (404, "Model version: 9 does not exist for model: said")
    # A path that names one wins.
    headers = {"x-model-version": "1"}
    answer = requests.post(f"{server.inference}/predictions/said/2", headers=headers, timeout=DEADLINE)
    assert answer.text == "2"
    body = {"inputs": [{"name": "x", "shape": [1], "datatype": "INT32", "data": [1]}]}
    answer = requests.post(f"{server.inference}/v2/models/said/infer", json=body, headers=headers, timeout=DEADLINE)
    assert (answer.json()["outputs"][0]["data"], answer.json()["model_version"]) == (["1"], "1")

    with grpc_stub(server) as stub:
        request = PredictionsRequest(model_name="said", input={"data": b"x"})
        for named in "12":
            answered = stub.Predictions(request, metadata=(("x-model-version", named),), timeout=DEADLINE)
            assert answered.prediction == named.encode()
        with pytest.raises(grpc.RpcError) as caught:
            stub.Predictions(request, metadata=(("x-model-version", "9"),), timeout=DEADLINE)
        assert caught.value.code() is grpc.StatusCode.INTERNAL  # as in TorchServe

    register(
        server, version(tmp_path, "kept", "sequenceBatching: true\nsequenceMaxIdleMSec: 1000\nmaxNumSequence: 5\n")
    )
    other = server.predict("said", headers={"x-model-version": "kept"})
    assert (other.status_code, "name it in the path" in other.json()["message"]) == (400, True)


def test_a_server_starts_with_weights(tmp_path: Path) -> None:
    models = {"said": {"1": {"trafficWeight": 90}, "2": {"trafficWeight": 10}}}
    with RunningServer({"said": version(tmp_path, "1")}, {"models": json.dumps(models)}) as server:
        server.wait_ready()
        assert traffic(server).json()["weights"] == {"1": 100}
        register(server, version(tmp_path, "2"))
        assert traffic(server).json()["weights"] == {"1": 90, "2": 10}


def test_mistakes_are_told_and_change_nothing(server: RunningServer, tmp_path: Path) -> None:
    traffic(server, "PUT", {"weights": {"1": 50, "2": 50}})
    url, twice = f"{server.management}/models/said/traffic", '{"weights": {"1": 50, "2": 30, "2": 50}}'
    refused = requests.put(url, twice, headers={"content-type": "application/json"}, timeout=DEADLINE)
    assert (refused.status_code, "the name '2' is there 2 times" in refused.json()["message"]) == (400, True)
    register(
        server, version(tmp_path, "kept", "sequenceBatching: true\nsequenceMaxIdleMSec: 1000\nmaxNumSequence: 5\n")
    )
    for body, status, told in (
        ({"weights": {"1": 50, "9": 50}}, 404, "Model version: 9 does not exist"),
        ({"weights": {"1": 50, "kept": 50}}, 400, "take requests of different kinds"),
        ({"weights": {"1": 50, "2": 51}}, 400, "must add up to 100"),
        ({"canary": {"version": "1"}}, 400, "is the default version already"),
        ({"canary": {"version": "9"}}, 404, "Model version: 9 does not exist"),
    ):
        answer = traffic(server, "PUT", body)
        assert (answer.status_code, told in answer.json()["message"]) == (status, True), answer.text
        assert traffic(server).json()["weights"] == {"1": 50, "2": 50}
    url = f"{server.management}/models/other/traffic"
    assert requests.put(url, json={"weights": {"1": 100}}, timeout=DEADLINE).status_code == 404
    # Those that stay share the requests of one that goes.
    assert requests.delete(f"{server.management}/models/said/2", timeout=DEADLINE).ok
    assert traffic(server).json()["weights"] == {"1": 100}
    assert said(server, 10) == {"1": 10}


@contextmanager
def server_with_snapshots(folder: Path, **properties: str) -> Iterator[RunningServer]:
    """Run a server with both versions whose snapshots `restart_with_snapshot` reads."""
    flags = ("--disable-token-auth", "--enable-model-api")
    with RunningServer({"said": version(folder, "1")}, properties, flags=flags) as server:
        server.command = [each for each in server.command if each != "--ncs"]
        server.terminate()
        server.output.write_text("")
        server.start()
        server.wait_ready()
        register(server, version(folder, "2"))
        yield server


def restart_with_snapshot(server: RunningServer) -> None:
    server.terminate()
    snapshot = max((server.directory / "logs" / "config").glob("*-shutdown.cfg"))
    index = server.command.index("--ts-config")
    server.command = [*server.command[: index + 1], str(snapshot), "--model-store", str(server.model_store)]
    server.output.write_text("")
    server.start()
    server.wait_ready()


def test_weights_survive_a_restart_with_a_snapshot(tmp_path: Path) -> None:
    of_file = {"said": {"1": {"trafficWeight": 90}, "2": {"trafficWeight": 10}}}
    with server_with_snapshots(tmp_path, models=json.dumps(of_file)) as server:
        assert traffic(server).json()["weights"] == {"1": 90, "2": 10}
        traffic(server, "PUT", {"weights": {"2": 100}})
        restart_with_snapshot(server)
        assert traffic(server).json() == {"default": "1", "weights": {"2": 100}}


def test_canaries_and_shadows_survive_a_restart_with_a_snapshot(tmp_path: Path) -> None:
    with server_with_snapshots(tmp_path) as server:
        register(server, version(tmp_path, "twin"))
        rules = {"version": "2", "steps": [40, 50], "intervalSec": 1, "minRequests": 5, "maxLatencyRatio": 1000}
        assert traffic(server, "PUT", {"canary": {**rules, "maxQuantileRatio": 1000}}).ok
        shadow(server, "PUT", {"version": "twin", "percent": 50})
        restart_with_snapshot(server)

        def decisions() -> list[str]:
            return [each["decision"] for each in traffic(server).json().get("decisions", ())]

        eventually(lambda: decisions()[:2] == ["begun", "resumed"], "the canary goes on")
        shown = shadow(server).json()
        assert (shown["version"], shown["percent"]) == ("twin", 50)

        def is_promoted() -> bool:
            said(server, 10)
            return decisions()[-1] == "promoted"

        eventually(is_promoted, "the canary is promoted")
        # What has ended does not come back.
        shadow(server, "DELETE")
        restart_with_snapshot(server)
        assert traffic(server).json() == {"default": "2", "weights": {}}
        assert shadow(server).json() == {}


def test_a_canary_whose_weights_are_others_after_the_restart_is_called_off(tmp_path: Path) -> None:
    with server_with_snapshots(tmp_path) as server:
        traffic(server, "PUT", {"canary": {"version": "2", "steps": [40]}})
        kept = (server.directory / "logs" / "config" / "traffic.json").read_text()
        traffic(server, "PUT", {"weights": {"1": 70, "2": 30}})
        server.terminate()
        (server.directory / "logs" / "config" / "traffic.json").write_text(kept)
        restart_with_snapshot(server)
        eventually(lambda: "decisions" in traffic(server).json(), "the canary is looked at")
        shown = traffic(server).json()
        assert shown["weights"] == {"1": 70, "2": 30}
        assert [each["decision"] for each in shown["decisions"]] == ["begun", "called off"]
        assert "the traffic is not what the canary had made of it" in shown["decisions"][-1]["why"]
        # A damaged file ends nothing else.
        server.terminate()
        (server.directory / "logs" / "config" / "traffic.json").write_text(kept[:-5])
        restart_with_snapshot(server)
        assert traffic(server).json() == {"default": "1", "weights": {"1": 70, "2": 30}}
        eventually(lambda: "Canaries and shadows end: " in server.log(), "the log tells of the damage")


def test_a_canary_is_promoted(server: RunningServer) -> None:
    rules = {"version": "2", "steps": [50], "intervalSec": 1, "minRequests": 5, "maxLatencyRatio": 1000}
    rules["maxQuantileRatio"] = 1000
    answer = traffic(server, "PUT", {"canary": rules})
    assert answer.json()["weights"] == {"1": 50, "2": 50}

    def is_promoted() -> bool:
        said(server, 10)
        return bool(traffic(server).json()["default"] == "2")

    eventually(is_promoted, "the canary is promoted")
    shown = traffic(server).json()
    assert shown["weights"] == {}
    assert [each["decision"] for each in shown["decisions"]] == ["begun", "promoted"]
    assert said(server, 10) == {"2": 10}
    assert 'decision="promoted"' in requests.get(f"{server.metrics}/metrics", timeout=DEADLINE).text


@pytest.mark.parametrize(
    ("name", "more", "why"),
    [
        ("bad", {}, "requests failed"),
        ("slow", {"maxLatencyRatio": 3}, "half of the answers take up to"),
        ("dying", {"maxDeathRatio": 0.01, "maxFailureIncrease": 0.5}, "workers of it died"),
        ("2", {"shadow": {}}, "answers differ from those of the old version"),
        (
            "unsure",
            {"metrics": [{"name": "Score", "minRatio": 0.9}]},
            "Score is 0.1 on average, and 1 of the old version",
        ),
    ],
)
def test_a_canary_that_is_worse_is_rolled_back(
    server: RunningServer, tmp_path: Path, name: str, more: dict[str, Any], why: str
) -> None:
    if name != "2":
        register(server, version(tmp_path, name))
    lenient = {"maxLatencyRatio": 1000, "maxQuantileRatio": 1000}
    rules = {"version": name, "steps": [50, 99], "intervalSec": 1, "minRequests": 1000, **lenient, **more}
    answer = traffic(server, "PUT", {"canary": rules})
    assert answer.ok, answer.text

    def is_over() -> bool:
        said(server, 10)
        return "canary" not in traffic(server).json()

    eventually(is_over, "the canary is over")
    *_, last = traffic(server).json()["decisions"]
    assert last["decision"] == "rolled back"
    assert why in last["why"]
    assert said(server, 10) == {"1": 10}
    assert shadow(server).json() == {}


def test_a_refused_change_leaves_the_canary_as_it_is(server: RunningServer) -> None:
    assert traffic(server, "PUT", {"canary": {"version": "2", "steps": [10], "intervalSec": 60}}).ok
    for body, told in (
        ({"canary": {"version": "1"}}, "is the default version already"),
        ({"canary": {"version": "9"}}, "does not exist"),
        ({"canary": {"version": "2", "windowSec": 60}}, "windowSec is not used any more"),
        ({"canary": {"version": "2", "steps": [100]}}, "leave 100 out"),
        ({"weights": {"9": 100}}, "does not exist"),
    ):
        answer = traffic(server, "PUT", body)
        assert (answer.ok, told in answer.json()["message"]) == (False, True), answer.text
    shown = traffic(server).json()
    assert (shown["weights"], shown["canary"]["version"]) == ({"1": 90, "2": 10}, "2")
    assert [each["decision"] for each in shown["decisions"]] == ["begun"]


def test_an_operator_calls_a_canary_off(server: RunningServer) -> None:
    traffic(server, "PUT", {"canary": {"version": "2", "steps": [10], "intervalSec": 60}})
    assert traffic(server, "DELETE").json()["weights"] == {}
    assert [each["decision"] for each in traffic(server).json()["decisions"]] == ["begun", "called off"]


def shadow(server: RunningServer, method: str = "GET", body: Any = None) -> requests.Response:
    return requests.request(method, f"{server.management}/models/said/traffic/shadow", json=body, timeout=DEADLINE)


@pytest.mark.parametrize(("name", "outcome"), [("twin", "same"), ("2", "different"), ("bad", "failed")])
def test_a_shadow_is_compared_and_never_answers(server: RunningServer, tmp_path: Path, name: str, outcome: str) -> None:
    if name != "2":
        register(server, version(tmp_path, name))
    answer = shadow(server, "PUT", {"version": name})
    assert (answer.status_code, answer.json()[outcome]) == (200, 0), answer.text

    def are_compared() -> bool:
        assert said(server, 5) == {"1": 5}
        return bool(shadow(server).json()[outcome] >= 3)

    eventually(are_compared, "answers are compared")
    shown = shadow(server).json()
    assert {each: shown[each] for each in ("same", "different", "failed") if shown[each]} == {outcome: shown[outcome]}
    assert bool(shown["differences"]) == (outcome != "same")
    if outcome == "different":
        assert shown["differences"][-1]["live"] == {"status": 200, "begins": "1"}
        assert shown["differences"][-1]["shadow"] == {"status": 200, "begins": "2"}
    metrics = requests.get(f"{server.metrics}/metrics", timeout=DEADLINE).text
    assert f'model_version="{name}",outcome="{outcome}"' in metrics
    assert shadow(server, "DELETE").json() == {}
    assert shadow(server).json() == {}


@pytest.mark.parametrize(("name", "outcome"), [("twin", "same"), ("2", "different"), ("bad", "failed")])
def test_a_shadow_runs_requests_of_grpc_and_streams(
    server: RunningServer, tmp_path: Path, name: str, outcome: str
) -> None:
    if name != "2":
        register(server, version(tmp_path, name))
    with grpc_stub(server) as stub:

        def over_grpc() -> None:
            answer = stub.Predictions(PredictionsRequest(model_name="said", input={"data": b"x"}), timeout=DEADLINE)
            assert answer.prediction == b"1"

        def stream_over_grpc() -> None:
            request = PredictionsRequest(model_name="said", input={"stream": b"x"})
            parts = [part.prediction for part in stub.StreamPredictions(request, timeout=DEADLINE)]
            assert parts == [b"a", b"b", b"1"]

        def stream() -> None:
            answer = requests.post(f"{server.inference}/predictions/said", data={"stream": "x"}, timeout=DEADLINE)
            assert answer.text == "ab1"

        for ask in (over_grpc, stream_over_grpc, stream):
            assert shadow(server, "PUT", {"version": name}).ok

            def is_compared(ask: Callable[[], None] = ask) -> bool:
                ask()
                shown = shadow(server).json()
                return bool(sum(shown[each] for each in ("same", "different", "failed")))

            eventually(is_compared, "an answer is compared")
            shown = shadow(server).json()
            assert {each for each in ("same", "different", "failed") if shown[each]} == {outcome}
            if outcome == "different" and ask is not over_grpc:
                assert shown["differences"][0]["shadow"]["begins"] == "ab2"


def until_compared(server: RunningServer) -> dict[str, Any]:
    """Send requests until some are compared, and return what is shown of the shadow."""

    def are_compared() -> bool:
        said(server, 2)
        shown = shadow(server).json()
        return bool(sum(shown[each] for each in ("same", "different", "failed")) >= 2)

    eventually(are_compared, "answers are compared")
    shown: dict[str, Any] = shadow(server).json()
    return shown


def test_a_tolerance_says_how_much_numbers_may_differ(server: RunningServer, tmp_path: Path) -> None:
    register(server, version(tmp_path, "near"))
    for tolerance, outcome in ((1e-3, "same"), (1e-5, "different")):
        assert shadow(server, "PUT", {"version": "near", "tolerance": tolerance}).ok
        shown = until_compared(server)
        assert {each for each in ("same", "different", "failed") if shown[each]} == {outcome}
    assert shown["differences"][0]["why"] == ["1 became 1.0004"]


@pytest.mark.parametrize(
    ("code", "outcome", "why"),
    [
        ("return abs(live - shadow) < 0.01", "same", ""),
        ("return f'{shadow} is no {live}'", "different", "1.0004 is no 1"),
        ("return False", "different", "the model's comparison says so"),
        ("return live / 0", "different", "the comparison failed: ZeroDivisionError: division by zero"),
    ],
)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_model_compares_answers_itself(
    server: RunningServer, tmp_path: Path, code: str, outcome: str, why: str, *, asynchronous: bool
) -> None:
    more = "compareAnswers: comparison.py:are_same\n"
    folder = version(tmp_path, "near", more + ("asyncCommunication: true\n" if asynchronous else ""))
    (folder / "comparison.py").write_text(f"def are_same(live, shadow):\n    {code}\n")
    if asynchronous:
        handler = folder / "handler.py"
        handler.write_text(handler.read_text().replace("    def handle", "    async def handle"))
    register(server, folder)
    refused = shadow(server, "PUT", {"version": "near", "tolerance": 0.1})
    assert (refused.status_code, "leave tolerance out" in refused.json()["message"]) == (400, True)
    assert shadow(server, "PUT", {"version": "near"}).ok
    shown = until_compared(server)
    assert {each for each in ("same", "different", "failed") if shown[each]} == {outcome}
    assert [each["why"] for each in shown["differences"]][:1] == ([[why]] if why else [])


def test_a_comparison_that_is_not_there_is_told_at_the_registration(server: RunningServer, tmp_path: Path) -> None:
    for named, told in (
        ("comparison.py:are_same", "compareAnswers names 'comparison.py:are_same', which cannot be imported"),
        ("handler.py:are_same", "handler.py has no function 'are_same'"),
        ("are_same", "a function in a file of the model's folder"),
    ):
        folder = version(tmp_path, "near", f"compareAnswers: {named}\n")
        query = f"url={folder}&model_name=said&initial_workers=1&synchronous=true"
        answer = requests.post(f"{server.management}/models?{query}", timeout=DEADLINE)
        assert (answer.ok, told in answer.json()["message"]) == (False, True), answer.text
        shutil.rmtree(folder)


def test_a_shadow_ends_once_it_answers_itself_or_goes(server: RunningServer) -> None:
    assert shadow(server, "PUT", {"version": "2"}).ok
    traffic(server, "PUT", {"weights": {"1": 50, "2": 50}})
    assert shadow(server).json() == {}
    traffic(server, "DELETE")
    assert shadow(server, "PUT", {"version": "2"}).ok
    assert requests.delete(f"{server.management}/models/said/2", timeout=DEADLINE).ok
    assert said(server, 5) == {"1": 5}
    assert shadow(server).json() == {}


def test_mistakes_about_shadows_are_told(server: RunningServer, tmp_path: Path) -> None:
    kept = "sequenceBatching: true\nsequenceMaxIdleMSec: 1000\nmaxNumSequence: 5\n"
    register(server, version(tmp_path, "kept", kept))
    for body, status, told in (
        ({"version": "9"}, 404, "Model version: 9 does not exist"),
        ({"version": "1"}, 400, "must not be the default version"),
        ({"version": "kept"}, 400, "its steps cannot run twice"),
        ({"version": "2", "percent": 0}, 400, "percent: Input should be greater than 0, given 0"),
        ({"percent": 5}, 400, "version: Field required"),
    ):
        answer = shadow(server, "PUT", body)
        assert (answer.status_code, told in answer.json()["message"]) == (status, True), answer.text
    assert shadow(server).json() == {}


def test_a_shadow_that_hangs_delays_nobody_and_is_not_flooded(server: RunningServer, tmp_path: Path) -> None:
    register(server, version(tmp_path, "slow"))
    assert shadow(server, "PUT", {"version": "slow"}).ok

    def are_dropped() -> bool:
        assert said(server, 20) == {"1": 20}
        return bool(shadow(server).json()["dropped"])

    eventually(are_dropped, "what is too much for the shadow is dropped")
