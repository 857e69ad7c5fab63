"""No request, over any API, leaves a cycle of references that holds its body: memory would wait for the collector."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import msgpack
import pytest
import requests
from tests.attacks.hooks.sitecustomize import MARK
from tests.attacks.uncollected import UncollectedServer
from tests.conformance.grpc_client import target
from tests.e2e.raw_client import RawClient
from tests.e2e.running_server import DEADLINE, RunningServer, eventually, model_folder
from websockets.sync.client import connect

from torchserve_py.apis.grpc.protos.inference_pb2 import PredictionsRequest
from torchserve_py.apis.workflows.torch_workflow_archiver import PackOptions, pack
from ts.apis.open_inference.protos.infer_pb2 import ModelInferRequest

#: The client leaves before this long a handler ends (seconds).
LONG = 1.0

#: Does what the request's id of the tensor or its first word says.
HANDLER = f"""
import time


def handle(data, context):
    return data and [answer(bytes(row.get("body") or row.get("data") or b""), context) for row in data]


def answer(body, context):
    if b"slowly" in body[:4096]:
        time.sleep({LONG})
    if b"badly" in body[:4096]:
        raise ValueError("as asked")
    return "done"
"""
STREAMING = f"""
import time

from ts.handler_utils.utils import send_intermediate_predict_response


def handle(data, context):
    if data is None:
        return None
    bodies = [bytes(row.get("body") or row.get("data") or b"") for row in data]
    for _ in range(3):
        send_intermediate_predict_response(["part"] * len(data), context.request_ids, "Intermediate", 200, context)
    if any(b"slowly" in body[:4096] for body in bodies):
        time.sleep({LONG})
    if any(b"badly" in body[:4096] for body in bodies):
        raise ValueError("as asked")
    return ["last"] * len(data)
"""
TRUSS = f"""
import time


class Model:
    def predict(self, inputs):
        if inputs.get("how") == "slowly":
            time.sleep({LONG})
        if inputs.get("how") == "badly":
            raise ValueError("as asked")
        return "done"
"""
TRUSS_SOCKET = """
from fastapi import WebSocket


class Model:
    async def websocket(self, websocket: WebSocket):
        while True:
            await websocket.receive_text()
            await websocket.send_text("done")
"""
SEQUENCES = "sequenceBatching: true\nsequenceMaxIdleMSec: 60000\n"
POLICY = """
def handle(data, context):
    return data and [{"actions": [len(str(row["body"]["image"]))]} for row in data]
"""
WORKFLOW = "models: {one: {url: plain}, two: {url: plain}}\ndag: {one: [two]}\n"
MEMORY = WORKFLOW.replace("url: plain", "url: remembering")

#: How a use of the server ends: the client gets an answer, or an error, or has left before.
HOWS = ("well", "badly", "slowly")


def body(how: str) -> bytes:
    return MARK + how.encode() + bytes(200_000)


def text(how: str) -> str:
    return MARK.decode() + how + "x" * 200_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UncollectedServer]:
    folder = tmp_path_factory.mktemp("models")
    models = {
        "plain": model_folder(folder, "plain", HANDLER, "batchSize: 2\nmaxBatchDelay: 1\n"),
        "streaming": model_folder(folder, "streaming", STREAMING),
        "stateful": model_folder(folder, "stateful", HANDLER, SEQUENCES),
        "policy": model_folder(folder, "policy", POLICY, f"{SEQUENCES}openpi: {{}}\n"),
    }
    for name, model in (("truss", TRUSS), ("socket", TRUSS_SOCKET)):
        models[name] = folder / name
        (models[name] / "model").mkdir(parents=True)
        (models[name] / "config.yaml").write_text(f"model_name: {name}\n")
        (models[name] / "model" / "model.py").write_text(model)
    with UncollectedServer(models, {"drain_timeout": 1}) as running:
        running.wait_ready()
        model_folder(running.model_store, "plain", HANDLER)
        model_folder(running.model_store, "remembering", HANDLER, SEQUENCES)
        for name, spec in (("flow", WORKFLOW), ("memory", MEMORY)):
            (folder / f"{name}.yaml").write_text(spec)
            pack(PackOptions(name, str(folder / f"{name}.yaml"), None, export_path=str(running.model_store)))
            answer = requests.post(f"{running.management}/workflows", params={"url": f"{name}.war"}, timeout=DEADLINE)
            assert answer.status_code == 200, answer.text
        yield running


def predict(server: RunningServer, how: str, model: str = "plain", **more: Any) -> None:
    with contextlib.suppress(requests.ReadTimeout):
        server.predict(model, body(how), timeout=LONG / 4 if how == "slowly" else DEADLINE, **more)


def predict_in_chunks(server: RunningServer, how: str) -> None:
    def chunks() -> Iterator[bytes]:
        yield body(how)[:100_000]
        yield body(how)[100_000:]

    with contextlib.suppress(requests.ReadTimeout):
        url = f"{server.inference}/predictions/plain"
        requests.post(url, data=chunks(), timeout=LONG / 4 if how == "slowly" else DEADLINE)


def leave_amid_the_body(server: RunningServer, how: str) -> None:
    with RawClient(server.inference) as client:
        client.send(
            b"POST /predictions/plain HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900000\r\n\r\n" + body(how)
        )


def name_no_model(server: RunningServer, how: str) -> None:
    assert server.predict("nobody", body(how)).status_code == 404


def infer(server: RunningServer, how: str) -> None:
    tensor = {"name": "body", "datatype": "BYTES", "shape": [1], "data": [text(how)]}
    with contextlib.suppress(requests.ReadTimeout):
        url = f"{server.inference}/v2/models/plain/infer"
        requests.post(url, json={"inputs": [tensor]}, timeout=LONG / 4 if how == "slowly" else DEADLINE)


def call_truss(server: RunningServer, how: str) -> None:
    with contextlib.suppress(requests.ReadTimeout):
        url = f"{server.inference}/v1/models/truss:predict"
        asked = {"mark": text(how), "how": how}
        requests.post(url, json=asked, timeout=LONG / 4 if how == "slowly" else DEADLINE)


def talk_to_truss(server: RunningServer, how: str) -> None:
    with connect(f"{server.inference.replace('http', 'ws')}/v1/models/socket/websocket", max_size=None) as socket:
        socket.send(text(how))
        if how != "slowly":
            socket.recv(DEADLINE)


def live_session(server: RunningServer, how: str) -> None:
    url = f"{server.inference.replace('http', 'ws')}/sequences/stateful?content_type=text/plain"
    with connect(url, max_size=None) as socket:
        socket.recv(DEADLINE)
        for _ in range(2):
            socket.send(json.dumps({"body": text(how)}))
            if how == "slowly":
                break
            socket.recv(DEADLINE)


def two_way_stream(server: RunningServer, how: str) -> None:
    url = f"{server.inference.replace('http', 'ws')}/invocations-bidirectional-stream?model_name=stateful"
    with connect(url, max_size=None) as socket:
        socket.send(body(how))
        if how != "slowly":
            socket.recv(DEADLINE)


def robot(server: RunningServer, how: str) -> None:
    with connect(f"{server.inference.replace('http', 'ws')}/openpi/policy", max_size=None) as socket:
        socket.recv(DEADLINE)
        socket.send(msgpack.packb({"image": text(how)} if how != "badly" else [text(how)]))
        if how != "slowly":
            socket.recv(DEADLINE)


def invoke(server: RunningServer, method: str, requests_: list[Any], how: str, *, many: bool, **more: Any) -> None:
    """Call a method of gRPC, and with ``slowly`` close the channel before the answer."""
    with grpc.insecure_channel(target(server), [("grpc.max_receive_message_length", -1)]) as channel:
        kind = channel.stream_stream if many else channel.unary_stream
        call: Any = kind(method, request_serializer=lambda each: each.SerializeToString())
        given = iter(requests_) if many else requests_[0]
        answers = call(given, timeout=DEADLINE, **more)
        if how == "slowly":
            time.sleep(LONG / 4)
            return
        with contextlib.suppress(grpc.RpcError):
            list(answers)


API = "/org.pytorch.serve.grpc.inference.InferenceAPIsService/"


def grpc_predictions(server: RunningServer, how: str) -> None:
    asked = PredictionsRequest(model_name="plain", input={"body": body(how)})
    invoke(server, f"{API}Predictions", [asked], how, many=False)


def grpc_predictions_compressed(server: RunningServer, how: str) -> None:
    asked = PredictionsRequest(model_name="plain", input={"body": body(how)})
    invoke(server, f"{API}Predictions", [asked], how, many=False, compression=grpc.Compression.Gzip)


def grpc_no_model(server: RunningServer, how: str) -> None:
    asked = PredictionsRequest(model_name="nobody", input={"body": body(how)})
    invoke(server, f"{API}Predictions", [asked], how, many=False)


def grpc_stream_predictions(server: RunningServer, how: str) -> None:
    asked = PredictionsRequest(model_name="streaming", input={"body": body(how)})
    invoke(server, f"{API}StreamPredictions", [asked], how, many=False)


def grpc_two_way(server: RunningServer, how: str) -> None:
    asked = [
        PredictionsRequest(model_name="stateful", sequence_id="s", input={"body": body(how)}),
        PredictionsRequest(model_name="stateful", sequence_id="t", input={"body": body(how)}),
        PredictionsRequest(model_name="nobody", sequence_id="u", input={"body": body(how)}),
    ]
    invoke(server, f"{API}StreamPredictions2", asked, how, many=True)


def _infer_request(how: str, model: str = "plain") -> ModelInferRequest:
    asked = ModelInferRequest(model_name=model)
    asked.inputs.add(name="body", datatype="BYTES", shape=[1]).contents.bytes_contents.append(body(how))
    return asked


INFERENCE = "/inference.GRPCInferenceService/"


def grpc_infer(server: RunningServer, how: str) -> None:
    invoke(server, f"{INFERENCE}ModelInfer", [_infer_request(how)], how, many=False)


def grpc_infer_stream(server: RunningServer, how: str) -> None:
    asked = [_infer_request(how), _infer_request("well"), _infer_request(how, "nobody")]
    invoke(server, f"{INFERENCE}ModelStreamInfer", asked, how, many=True, metadata=[("x-stream-envelope", "triton")])


def grpc_infer_stream_of_mlserver(server: RunningServer, how: str) -> None:
    asked = [_infer_request(how), _infer_request(how, "nobody")]
    invoke(server, f"{INFERENCE}ModelStreamInfer", asked, how, many=True)


def workflow(server: RunningServer, how: str, name: str = "flow", **headers: str) -> None:
    with contextlib.suppress(requests.ReadTimeout):
        url = f"{server.inference}/wfpredict/{name}"
        requests.post(url, data=body(how), headers=headers, timeout=LONG / 4 if how == "slowly" else DEADLINE)


def workflow_with_memory(server: RunningServer, how: str) -> None:
    workflow(server, how, "memory", ts_request_sequence_id=how, ts_request_sequence_end="true")


def predict_a_stream(server: RunningServer, how: str) -> None:
    predict(server, how, "streaming")


USES: tuple[Callable[[RunningServer, str], None], ...] = (
    predict,
    predict_a_stream,
    predict_in_chunks,
    leave_amid_the_body,
    name_no_model,
    infer,
    call_truss,
    talk_to_truss,
    live_session,
    two_way_stream,
    robot,
    workflow,
    workflow_with_memory,
    grpc_predictions,
    grpc_predictions_compressed,
    grpc_no_model,
    grpc_stream_predictions,
    grpc_two_way,
    grpc_infer,
    grpc_infer_stream,
    grpc_infer_stream_of_mlserver,
)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_a_body_goes_with_its_request(
    server: UncollectedServer, use: Callable[[RunningServer, str], None], how: str
) -> None:
    server.bodies()
    use(server, how)
    told: list[dict[str, Any]] = []

    def nothing_alive() -> bool:
        told.append(server.bodies())
        return not told[-1]["alive"]

    try:
        eventually(nothing_alive, "nothing holds a body", 120)
    except AssertionError as error:
        raise AssertionError(f"{error}; at last: {told[-1]}") from None
    assert not [holder for each in told for holder in each["in cycles"]]
    # The connection, the request, the job and the session must not wait for the collector either.
    assert not [each["garbage"] for each in told if each["garbage"]]
