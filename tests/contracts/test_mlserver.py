"""MLServer models in a running server: every way in, streams both ways, batches, custom paths, workers that die."""

import gzip
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
import requests
from tests.conformance.grpc_client import Client, target
from tests.e2e.gate import Gate
from tests.e2e.raw_client import RawClient
from tests.e2e.running_server import DEADLINE, HANDLERS, RunningServer, eventually

from torchserve_py.apis.grpc.protos import open_inference_pb2
from ts.apis.open_inference.protos import infer_pb2

SERVICE = "/inference.GRPCInferenceService/"

#: ``predict`` answers with what it was called for; ``predict_stream`` says each word, and holds on where it is told to.
MODEL = """
import asyncio
import os
from typing import List

from fastapi import Body, Request
from fastapi.responses import PlainTextResponse
from mlserver import MLModel, log, register
from mlserver.codecs import NumpyCodec, StringCodec
from mlserver.errors import MLServerError
from mlserver.handlers import custom_handler
from mlserver.types import InferenceResponse, Parameters, ResponseOutput


class Everything(MLModel):
    async def load(self):
        self.directory = self.settings.parameters.extra["directory"]
        register("row_count", "rows of a call")
        return True

    async def unload(self):
        open(f"{self.directory}/unloaded-{os.getpid()}", "w").close()
        return True

    async def wait_for(self, name):
        open(f"{self.directory}/{name}.reached", "w").close()
        try:
            while not os.path.exists(f"{self.directory}/{name}"):
                await asyncio.sleep(0.005)
        except asyncio.CancelledError:
            open(f"{self.directory}/{name}.cancelled", "w").close()
            raise

    async def predict(self, payload):
        array = self.decode(payload.inputs[0], default_codec=NumpyCodec)
        log(row_count=len(array))
        parameters = payload.parameters
        if getattr(parameters, "fail", None):
            raise MLServerError("as you wish", parameters.fail)
        if getattr(parameters, "bug", None):
            return 1 / 0
        if getattr(parameters, "gate", None):
            await self.wait_for(parameters.gate)
        rows = np.full((len(array), 1), len(array))
        return InferenceResponse(
            model_name=self.name,
            model_version=self.version,
            parameters=Parameters(headers={"x-saw": parameters.headers.get("x-tenant", "nobody")}),
            outputs=[
                NumpyCodec.encode_output("double", 2 * array),
                NumpyCodec.encode_output("rows", rows),
                StringCodec.encode_output("pid", [str(os.getpid())] * len(array)),
            ],
        )

    async def predict_stream(self, payloads):
        async for payload in payloads:
            for word in StringCodec.decode_input(payload.inputs[0])[0].split():
                if word.startswith("@"):
                    await self.wait_for(word[1:])
                if word == "!":
                    raise MLServerError("no such word", 409)
                output = StringCodec.encode_output("word", [word])
                yield InferenceResponse(model_name=self.name, outputs=[output])

    @custom_handler(rest_path="/everything/{factor}")
    async def multiply(self, factor: int, payload: List[float] = Body(...)):
        return [factor * value for value in payload]

    @custom_handler(rest_path="/everything", rest_method="GET")
    async def where(self, request: Request):
        return PlainTextResponse(f"{request.url.path}?{request.url.query}", headers={"x-mine": "1"})
"""


def mlserver_folder(directory: Path, name: str, **settings: Any) -> Path:
    """Write the model above into a folder."""
    folder = directory / name
    folder.mkdir(parents=True)
    (folder / "model.py").write_text("import numpy as np\n" + MODEL)
    parameters = {"version": "v1.0", "extra": {"directory": str(folder)}, **settings.pop("parameters", {})}
    values = {"implementation": "model.Everything", "name": name, "parameters": parameters, **settings}
    (folder / "model-settings.json").write_text(json.dumps(values))
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models")
    described = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 1]}], "platform": "mine"}
    mlserver_folder(directory, "single", **described)
    mlserver_folder(directory, "batched", max_batch_size=4, max_batch_time=30.0)
    folder = mlserver_folder(directory, "several")
    (folder / "settings.json").write_text('{"parallel_workers": 2, "server_name": "here", "http_port": 9}')
    folder = mlserver_folder(directory, "cached", cache_enabled=True)
    (folder / "settings.json").write_text('{"cache_enabled": true}')
    return directory


@pytest.fixture(scope="module")
def server(models: Path) -> Iterator[RunningServer]:
    folders = {name: models / name for name in ("single", "batched", "several", "cached")}
    folders["sentences"] = HANDLERS / "sentences"
    with RunningServer(folders, {"grpc_inference_port": 0}) as running:
        running.wait_ready()
        yield running


def body(*values: float, name: str = "x", **members: Any) -> dict[str, Any]:
    inputs = [{"name": name, "shape": [len(values), 1], "datatype": "FP32", "data": list(values)}]
    return {"inputs": inputs, **members}


def text(words: str, **members: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": [words]}], **members}


def infer(server: RunningServer, model: str, request: dict[str, Any], **more: Any) -> requests.Response:
    return requests.post(f"{server.inference}/v2/models/{model}/infer", json=request, timeout=DEADLINE, **more)


def outputs(response: requests.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    return {output["name"]: output["data"] for output in response.json()["outputs"]}


def state_of(server: RunningServer, model: str) -> tuple[str, str]:
    """What the repository's index says of a model: state and reason."""
    index = requests.post(f"{server.inference}/v2/repository/index", timeout=DEADLINE).json()
    return next((each["state"], each["reason"]) for each in index if each["name"] == model)


def test_infer(server: RunningServer) -> None:
    response = infer(server, "single", body(1, 2.5, id="7"), headers={"X-Tenant": "me"})
    assert outputs(response) | {"pid": None} == {"double": [2.0, 5.0], "rows": [2, 2], "pid": None}
    said = response.json()
    assert (said["model_name"], said["model_version"], said["id"]) == ("single", "v1.0", "7")
    assert said["outputs"][0]["parameters"] == {"content_type": "np"}
    assert response.headers["x-saw"] == "me"
    assert response.headers["ce-id"] == "7"
    assert response.headers["ce-source"] == "io.seldon.serving.deployment.mlserver"
    assert infer(server, "several", body(1)).headers["ce-inferenceservicename"] == "here"


def test_predictions_take_and_give_the_same(server: RunningServer) -> None:
    response = server.predict("single", json.dumps(body(3)), headers={"content-type": "application/json"})
    assert outputs(response)["double"] == [6.0]


def test_predictions_over_grpc_take_and_give_the_same(server: RunningServer) -> None:
    with Client(server) as client:
        answer = json.loads(client.predict("single", data=json.dumps(body(3)).encode()))
    assert answer["outputs"][0]["data"] == [6.0]


def test_generate_from_text(server: RunningServer) -> None:
    url = f"{server.inference}/v2/models/sentences"
    response = requests.post(f"{url}/generate", json=text("to be", id="g"), timeout=DEADLINE)
    assert outputs(response) == {"counts": [2, 4]}
    response = requests.post(f"{url}/generate", json={"text_input": "to be"}, timeout=DEADLINE)
    assert response.json()["counts"] == [2, 4]
    response = requests.post(f"{url}/generate_stream", json={"text_input": "to be"}, stream=True, timeout=DEADLINE)
    assert [event["text_output"] for event in events(response)] == ["to", "be"]


def test_binary_tensors_and_compressed_requests(server: RunningServer) -> None:
    array = np.arange(1000, dtype=np.float32).reshape(1000, 1)
    head = {"inputs": [{"name": "x", "shape": [1000, 1], "datatype": "FP32", "parameters": {"binary_data_size": 4000}}]}
    sent = json.dumps({**head, "outputs": [{"name": "double", "parameters": {"binary_data": True}}]}).encode()
    response = requests.post(
        f"{server.inference}/v2/models/single/infer",
        data=gzip.compress(sent + array.tobytes()),
        headers={"Inference-Header-Content-Length": str(len(sent)), "Content-Encoding": "gzip"},
        timeout=DEADLINE,
    )
    assert response.status_code == 200, response.text
    size = int(response.headers["Inference-Header-Content-Length"])
    assert [output["name"] for output in json.loads(response.content[:size])["outputs"]] == ["double"]
    np.testing.assert_array_equal(np.frombuffer(response.content[size:], np.float32), 2 * array.ravel())


def test_metadata_and_health(server: RunningServer) -> None:
    base = f"{server.inference}/v2/models/single"
    said = requests.get(base, timeout=DEADLINE).json()
    assert (said["name"], said["versions"], said["platform"]) == ("single", ["v1.0"], "mine")
    assert said["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 1]}]
    assert requests.get(f"{base}/ready", timeout=DEADLINE).status_code == 200
    config = requests.get(f"{base}/config", timeout=DEADLINE).json()
    assert config["model_transaction_policy"] == {"decoupled": True}


@pytest.mark.parametrize(
    ("request_", "status", "message", "cause"),
    [
        (body(1, parameters={"fail": 418}), 418, "as you wish", "invalid_request"),
        (body(1, parameters={"bug": True}), 500, "builtins.ZeroDivisionError: division by zero", "handler_error"),
        (
            {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": ["a"]}]},
            *(400, "'x' holds a text", "invalid_request"),
        ),
        ({"input": []}, 422, "inputs", "invalid_request"),
    ],
)
def test_errors(request_: Any, status: int, message: str, cause: str, server: RunningServer) -> None:
    response = infer(server, "single", request_)
    assert response.status_code == status, response.text
    assert message in response.json()["error"]
    assert response.headers["ts-error-cause"] == cause


def events(response: requests.Response) -> Iterator[dict[str, Any]]:
    for line in response.iter_lines():
        if line:
            assert line.startswith(b"data: ")
            yield json.loads(line[6:])


def stream(server: RunningServer, words: str, model: str = "single", kind: str = "infer_stream") -> requests.Response:
    url = f"{server.inference}/v2/models/{model}/{kind}"
    return requests.post(url, json=text(words, id="s"), stream=True, timeout=DEADLINE)


@pytest.mark.parametrize("kind", ["infer_stream", "generate_stream"])
@pytest.mark.parametrize("model", ["single", "batched", "several"])
def test_a_stream_of_responses(kind: str, model: str, server: RunningServer) -> None:
    response = stream(server, "how do you do", model, kind)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    said = list(events(response))
    assert [event["outputs"][0]["data"] for event in said] == [["how"], ["do"], ["you"], ["do"]]
    assert {event["id"] for event in said} == {"s"}
    assert "headers" not in said[0].get("parameters", {})


def test_every_response_comes_as_soon_as_it_is_there(server: RunningServer, models: Path) -> None:
    gate = Gate(models / "single", "early")
    response = stream(server, "first @early last")
    said = events(response)
    assert next(said)["outputs"][0]["data"] == ["first"]
    gate.wait_until_reached()
    gate.open()
    assert [event["outputs"][0]["data"][0] for event in said] == ["@early", "last"]


def test_errors_of_a_stream(server: RunningServer) -> None:
    response = stream(server, "!")
    assert (response.status_code, response.json()) == (409, {"error": "no such word"})
    assert list(events(stream(server, "a !")))[1:] == [{"error": "no such word"}]
    assert stream(server, "a", "nobody").status_code == 404


def test_a_client_that_leaves_ends_the_stream(server: RunningServer, models: Path) -> None:
    gate = Gate(models / "single", "left")
    response = stream(server, "a @left")
    gate.wait_until_reached()
    response.close()
    eventually((models / "single" / "left.cancelled").exists, "the model's generator is cancelled")
    assert infer(server, "single", body(1)).status_code == 200


def text_message(words: str, model: str = "single", request_id: str = "") -> infer_pb2.ModelInferRequest:
    message = infer_pb2.ModelInferRequest(model_name=model, id=request_id)
    message.inputs.add(name="text", datatype="BYTES", shape=[1]).contents.bytes_contents.append(words.encode())
    return message


def words_of(responses: Any) -> Iterator[str]:
    for response in responses:
        yield response.outputs[0].contents.bytes_contents[0].decode()


@pytest.fixture(scope="module")
def calls(server: RunningServer) -> Iterator[Any]:
    with grpc.insecure_channel(target(server)) as channel:
        yield channel.stream_stream(
            f"{SERVICE}ModelStreamInfer",
            request_serializer=infer_pb2.ModelInferRequest.SerializeToString,
            response_deserializer=infer_pb2.ModelInferResponse.FromString,
        )


def test_a_stream_of_requests_is_one_call_of_the_model(calls: Any) -> None:
    requests_ = [text_message("how do", request_id="a"), text_message("you", request_id="b"), text_message("do")]
    responses = list(calls(iter(requests_), timeout=DEADLINE))
    assert list(words_of(responses)) == ["how", "do", "you", "do"]
    assert {response.id for response in responses} == {"a"}


def test_responses_come_while_requests_go_on(calls: Any) -> None:
    said: list[str] = []

    def conversation() -> Iterator[infer_pb2.ModelInferRequest]:
        for number in range(40):  # more than the server holds untaken
            yield text_message(f"word{number}")
            eventually(lambda: len(said) > number, "the answer to the request before")  # noqa: B023

    said.extend(words_of(calls(conversation(), timeout=DEADLINE)))
    assert said == [f"word{number}" for number in range(40)]


def test_many_requests_may_wait_for_the_model(calls: Any, models: Path) -> None:
    gate = Gate(models / "single", "many")
    responses = calls(iter([text_message("@many"), *(text_message(str(n)) for n in range(100))]), timeout=DEADLINE)
    gate.wait_until_reached()
    gate.open()
    assert list(words_of(responses)) == ["@many", *(str(number) for number in range(100))]


def test_a_request_over_grpc(server: RunningServer) -> None:
    message = infer_pb2.ModelInferRequest(model_name="single", id="7", raw_input_contents=[np.float32([4]).tobytes()])
    message.inputs.add(name="x", datatype="FP32", shape=[1, 1])
    with grpc.insecure_channel(target(server)) as channel:
        method = channel.unary_unary(
            f"{SERVICE}ModelInfer",
            request_serializer=infer_pb2.ModelInferRequest.SerializeToString,
            response_deserializer=infer_pb2.ModelInferResponse.FromString,
        )
        response, call = method.with_call(message, timeout=DEADLINE, metadata=(("x-tenant", "me"),))
    assert response.id == "7"
    np.testing.assert_array_equal(np.frombuffer(response.raw_output_contents[0], np.float32), [8])
    trailing = dict(call.trailing_metadata())
    assert (trailing["x-saw"], trailing["ce-id"]) == ("me", "7")


def test_tritons_clients_get_the_responses_of_each_request(server: RunningServer) -> None:
    requests_ = [text_message(words, request_id=words) for words in ("how do", "!", "you do")]
    with grpc.insecure_channel(target(server)) as channel:
        method = channel.stream_stream(
            f"{SERVICE}ModelStreamInfer",
            request_serializer=infer_pb2.ModelInferRequest.SerializeToString,
            response_deserializer=open_inference_pb2.ModelStreamInferResponse.FromString,
        )
        envelopes = list(method(iter(requests_), timeout=DEADLINE, metadata=(("x-stream-envelope", "triton"),)))
    said: dict[str, list[str]] = {}
    for envelope in envelopes:
        if envelope.error_message:
            assert (envelope.infer_response.id, "no such word" in envelope.error_message) == ("!", True)
        elif envelope.infer_response.outputs:
            words = said.setdefault(envelope.infer_response.id, [])
            words += words_of([envelope.infer_response])
    assert said == {"how do": ["how", "do"], "you do": ["you", "do"]}


def test_an_error_ends_the_stream_with_a_status(calls: Any) -> None:
    responses = calls(iter([text_message("a"), text_message("!")]), timeout=DEADLINE)
    assert next(responses).outputs[0].contents.bytes_contents == [b"a"]
    with pytest.raises(grpc.RpcError) as caught:
        next(responses)
    assert caught.value.code() is grpc.StatusCode.ABORTED
    assert "no such word" in caught.value.details()


def test_a_cancelled_call_ends_the_models_generator(calls: Any, models: Path) -> None:
    gate = Gate(models / "single", "called")
    responses = calls(iter([text_message("@called")]), timeout=DEADLINE)
    gate.wait_until_reached()
    responses.cancel()
    eventually((models / "single" / "called.cancelled").exists, "the model's generator is cancelled")


def test_requests_that_arrive_together_are_one_call(server: RunningServer) -> None:
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda number: infer(server, "batched", body(number, -number)), range(4)))
    for number, answer in enumerate(answers):
        assert outputs(answer)["double"] == [2.0 * number, -2.0 * number]
        assert outputs(answer)["rows"] == [8, 8]
    assert server.metric("row_count_sum", model_name="batched", model_version="v1.0") == 8


def test_a_cancelled_request_does_not_harm_its_batch(server: RunningServer, models: Path) -> None:
    gate = Gate(models / "batched", "held")
    gated = {"parameters": {"gate": "held"}}
    with ThreadPoolExecutor(3) as pool, RawClient(server.inference) as client:
        client.post("/v2/models/batched/infer", json.dumps(body(9, **gated)).encode())
        others = [pool.submit(infer, server, "batched", body(number, **gated)) for number in range(3)]
        gate.wait_until_reached()
        client.close()
        gate.open()
        assert [outputs(other.result())["rows"] for other in others] == [[4]] * 3


def test_cached_responses(server: RunningServer) -> None:
    for _ in range(3):
        assert outputs(infer(server, "cached", body(5)))["double"] == [10.0]
    assert server.metric("row_count_count", model_name="cached") == 1
    config = requests.get(f"{server.inference}/v2/models/cached/config", timeout=DEADLINE).json()
    assert config["response_cache"] == {"enable": True}


def test_custom_paths(server: RunningServer) -> None:
    # Several models of this server have them, so each request says whose it means.
    everything = f"{server.inference}/everything"
    response = requests.post(f"{everything}/3?model_name=cached", json=[1, 2], timeout=DEADLINE)
    assert (response.status_code, response.json()) == (200, [3.0, 6.0])
    response = requests.get(f"{everything}?a=b&model_name=cached", timeout=DEADLINE)
    assert (response.text, response.headers["x-mine"]) == ("/everything?a=b&model_name=cached", "1")
    assert requests.post(f"{everything}/x?model_name=cached", json=[1], timeout=DEADLINE).status_code == 422
    response = requests.post(f"{everything}/3", json=[1, 2], timeout=DEADLINE)
    assert response.status_code == 400
    assert "Several models have this path" in response.json()["error"]
    assert requests.put(f"{server.inference}/everything/3", json=[1], timeout=DEADLINE).status_code == 405
    assert requests.post(f"{server.inference}/nothing/3", json=[1], timeout=DEADLINE).status_code == 404


def test_workers_share_the_requests(server: RunningServer) -> None:
    with ThreadPoolExecutor(4) as pool:
        answers = pool.map(lambda number: infer(server, "several", body(number)), range(40))
        pids = {outputs(answer)["pid"][0] for answer in answers}
    assert len(pids) == 2
    assert "settings.json: http_port has no effect" in server.log()


def test_the_requests_of_a_killed_worker_are_run_by_the_next_one(server: RunningServer, models: Path) -> None:
    gate = Gate(models / "single", "killed")
    pid = int(outputs(infer(server, "single", body(1)))["pid"][0])
    with ThreadPoolExecutor(1) as pool:
        lost = pool.submit(infer, server, "single", body(1, parameters={"gate": "killed"}))
        gate.wait_until_reached()
        psutil.Process(pid).kill()
        gate.open()
        assert lost.result().status_code == 200
    assert int(outputs(infer(server, "single", body(1)))["pid"][0]) != pid


def test_an_archive_and_another_name(server: RunningServer, tmp_path: Path) -> None:
    from torchserve_py.archives.archiver.torch_model_archiver import main

    folder = mlserver_folder(tmp_path, "packed")
    options = ["--model-name", "packed", "--version", "1", "--extra-files", str(folder)]
    assert main([*options, "--export-path", str(server.model_store)]) == 0
    response = server.register("packed.mar", model_name="renamed", synchronous="true")
    assert response.status_code == 200, response.text
    assert infer(server, "renamed", body(1)).json()["model_name"] == "renamed"
    worker = int(outputs(infer(server, "renamed", body(1)))["pid"][0])
    assert server.unregister("renamed").status_code == 200
    eventually((folder / f"unloaded-{worker}").exists, "the model has unloaded itself")


def test_wrong_settings_are_refused_by_name(server: RunningServer, tmp_path: Path) -> None:
    folder = mlserver_folder(tmp_path, "wrong", max_batch_size="many")
    response = server.register(folder)
    assert response.status_code == 400
    assert "model-settings.json: max_batch_size is 'many' (str), it must be an integer" in response.json()["message"]


def test_a_model_that_cannot_be_imported_says_why(server: RunningServer, tmp_path: Path) -> None:
    folder = mlserver_folder(tmp_path, "absent", implementation="model.Nothing")
    response = server.register(folder, synchronous="true")
    assert response.status_code == 500
    assert "model.Nothing" in response.text


def test_a_model_that_is_not_ready(server: RunningServer, tmp_path: Path) -> None:
    folder = mlserver_folder(tmp_path, "lazy")
    model = folder / "model.py"
    model.write_text(model.read_text().replace("return True", "return False", 1))
    assert server.register(folder, synchronous="true").status_code == 200
    assert requests.get(f"{server.inference}/v2/models/lazy/ready", timeout=DEADLINE).status_code == 400
    response = infer(server, "lazy", body(1))
    assert (response.status_code, response.json()) == (503, {"error": "Model lazy is not ready yet."})
    assert state_of(server, "lazy") == ("UNAVAILABLE", "it says that it is not ready")
    server.unregister("lazy")


def test_a_model_whose_load_fails_keeps_nobody_waiting(server: RunningServer, tmp_path: Path) -> None:
    folder = mlserver_folder(tmp_path, "broken")
    model = folder / "model.py"
    model.write_text(model.read_text().replace("return True", 'raise RuntimeError("no weights")', 1))
    server.register(folder, synchronous="false")
    eventually(lambda: "no weights" in state_of(server, "broken")[1], "the index says why it does not load")
    response = infer(server, "broken", body(1))
    assert (response.status_code, response.headers["ts-error-cause"]) == (503, "no_worker")
    server.unregister("broken")
