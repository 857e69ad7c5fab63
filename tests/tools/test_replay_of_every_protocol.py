"""Requests over every protocol are recorded by one server, and replayed on the next version of each model."""

from pathlib import Path
from typing import Any

import grpc
import numpy as np
import openai
import requests
from openpi_client import websocket_client_policy
from tests.e2e.journals import model, replay, wait_for_records
from tests.e2e.running_server import DEADLINE, RunningServer
from tests.ports import free_ports

from torchserve_py.apis.grpc.protos.inference_pb2 import PredictionsRequest
from torchserve_py.apis.grpc.protos.inference_pb2_grpc import InferenceAPIsServiceStub
from torchserve_py.apis.workflows.torch_workflow_archiver import PackOptions, pack
from ts.apis.open_inference.protos.infer_pb2 import InferParameter, ModelInferRequest, ModelInferResponse

SEQUENCES = "minWorkers: 1\nsequenceBatching: true\nsequenceMaxIdleMSec: 600000\nmaxNumSequence: 3\n"
#: Adds up what a sequence, or a request without one, brings. The other version is wrong if one step brings 42.
TOTAL = """
import numpy as np


class Total:
    def initialize(self, context):
        self.wrong = context.manifest["model"]["modelVersion"] == "2.0"

    def handle(self, data, context):
        return [self.step(row, context, index) for index, row in enumerate(data)]

    def step(self, row, context, index):
        given = row["body"]
        number = float(np.asarray(given["number"] if isinstance(given, dict) else given).sum())
        total = context.state.get(index, 0.0) + number
        context.state[index] = total
        answer = np.full(3, total, np.float32)
        answer[2] += self.wrong and number == 42
        return {"actions": answer} if isinstance(row.get("body"), dict) else answer
"""
#: Answers a chat completion with all that it was told.
CHAT = """
import json


class Chat:
    def initialize(self, context):
        self.wrong = context.manifest["model"]["modelVersion"] == "2.0"

    def handle(self, data, context):
        return [self.answer(row["body"]) for row in data]

    def answer(self, asked):
        told = "|".join(message["content"] for message in asked["messages"])
        said = told + "!" * (self.wrong and told.endswith("42"))
        if asked.get("stream"):
            return "data: %s\\n\\n" % json.dumps({"choices": [{"index": 0, "delta": {"content": f"[{said}]"}}]})
        return {"choices": [{"message": {"role": "assistant", "content": f"[{said}]"}, "finish_reason": "stop"}]}
"""
LOUD = """
class Loud:
    def initialize(self, context):
        self.wrong = context.manifest["model"]["modelVersion"] == "2.0"

    def handle(self, data, context):
        texts = [bytes(row["body"]).decode("utf-8", "replace") for row in data]
        return [text.upper() + "!" * (self.wrong and "42" in text) for text in texts]
"""
FUNCTIONS = """
def clean(data, context):
    return data and [bytes(row["body"]).decode().strip() for row in data]
"""
#: Each model with its code and its configuration.
MODELS = {
    "policy": (TOTAL, f"{SEQUENCES}openpi: {{}}\n"),
    "chat": (CHAT, f"{SEQUENCES}openai: true\n".replace("maxNumSequence: 3", "maxNumSequence: 30")),
    "loud": (LOUD, "minWorkers: 1\n"),
}


Parameters = dict[str, InferParameter]


def call(channel: grpc.Channel, number: float, parameters: Parameters, method: str = "ModelInfer") -> list[float]:
    """Make a call of the Open Inference Protocol with one request; return its output."""
    request = ModelInferRequest(model_name="policy", model_version="1.0", id="r", parameters=parameters)
    request.inputs.add(name="number", datatype="FP64", shape=[1]).contents.fp64_contents.append(number)
    made: Any = channel.stream_stream(f"/inference.GRPCInferenceService/{method}")
    metadata = (("x-stream-envelope", "mlserver"),)
    (answer,) = made(iter((request.SerializeToString(),)), metadata=metadata, timeout=DEADLINE)
    response = ModelInferResponse.FromString(answer)
    return list(np.frombuffer(response.raw_output_contents[0], "<f4"))


def add_up(grpc_port: int) -> int:
    """Send sequences over gRPC, one of them with the number that the next version gets wrong."""
    true = InferParameter(bool_param=True)
    a, seven = InferParameter(string_param="a"), InferParameter(int64_param=7)
    with grpc.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
        call(channel, 1, {"sequence_id": a, "sequence_start": true})
        for number in (2, 42, 3):
            total = call(channel, number, {"sequence_id": a})
        assert total == [48.0] * 3
        for text in (b"one", b"\xff" * 3, b"of 42"):
            stub = InferenceAPIsServiceStub(channel)
            stub.Predictions(PredictionsRequest(model_name="line__loud", input={"body": text}), timeout=DEADLINE)
        call(channel, 5, {"sequence_id": seven, "sequence_start": true, "sequence_end": true}, "ModelStreamInfer")
    return 8


def move(server: RunningServer) -> int:
    """Have episodes with robots, more than there may be sequences at a time."""
    for number in range(5):
        robot = websocket_client_policy.WebsocketClientPolicy(f"{server.inference.replace('http', 'ws')}/openpi/policy")
        for each in (number, 42 if number == 3 else 1):
            actions = robot.infer({"number": np.array([each])})["actions"]
        assert actions[0] == number + each
        robot._ws.close()
    return 10


def chat(server: RunningServer) -> int:
    """Continue and fork responses, and have a conversation."""
    client = openai.OpenAI(base_url=f"{server.inference}/v1", api_key="none", timeout=DEADLINE)
    first = client.responses.create(model="chat", input="a", instructions="be")
    second = client.responses.create(model="chat", input="b", previous_response_id=first.id)
    client.responses.create(model="chat", input="42", previous_response_id=first.id)
    assert client.responses.retrieve(second.id) == second
    conversation = client.conversations.create(extra_body={"model": "chat"}, metadata={"k": "v"})
    told = [{"type": "message", "role": "user", "content": "c"}]
    (item,) = client.conversations.items.create(conversation.id, items=told).data  # type: ignore[arg-type]
    with client.responses.stream(model="chat", input="d", conversation=conversation.id) as stream:
        assert stream.get_final_response().output_text == "[c|d]"
    assert item.id is not None
    client.conversations.items.delete(item.id, conversation_id=conversation.id)
    assert len(client.conversations.items.list(conversation.id).data) == 2
    client.conversations.delete(conversation.id)
    return 10


def shout(server: RunningServer) -> int:
    """Send requests through a workflow."""
    for text in ("hello", "the 42", "bye"):
        answer = requests.post(f"{server.inference}/wfpredict/line", data=f" {text} ", timeout=DEADLINE)
        assert answer.text == text.upper()
    return 3


def serve_workflow(server: RunningServer, folder: Path) -> None:
    (folder / "spec.yaml").write_text(f"models: {{loud: {{url: {folder / 'loud-1.0'}}}}}\ndag: {{clean: [loud]}}\n")
    (folder / "functions.py").write_text(FUNCTIONS)
    archive = pack(
        PackOptions(
            "line", str(folder / "spec.yaml"), str(folder / "functions.py"), export_path=str(server.model_store)
        )
    )
    answer = requests.post(f"{server.management}/workflows", params={"url": archive.name}, timeout=DEADLINE)
    assert answer.status_code == 200, answer.text


def test_of_each_protocol_the_planted_difference_is_found_and_no_other(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    for name, (handler, config) in MODELS.items():
        model(tmp_path, name, "1.0", handler, f"{config}journal: on\n")
        model(tmp_path, name, "2.0", handler, config)
    journal, first = tmp_path / "journal", {name: tmp_path / f"{name}-1.0" for name in ("policy", "chat")}
    with RunningServer(first, {"journal_folder": journal, "grpc_inference_port": port}) as server:
        serve_workflow(server, tmp_path)
        server.wait_ready()
        sent = add_up(port) + move(server) + chat(server) + shout(server)
        wait_for_records(journal, sent + 1)  # a fork has two
        served = {"policy": "policy", "chat": "chat", "loud": "line__loud"}
        for name, as_ in served.items():
            assert server.register(tmp_path / f"{name}-2.0", model_name=as_).status_code == 200
        given = [each for name in served.values() for each in ("--model", f"{name}=2.0")]
        status, report = replay(server, str(journal), "--grpc", f"grpc://127.0.0.1:{port}", *given)
    found = [each["what"] for each in report["differences"]]
    assert (status, report["replayed"], report["not_replayed"], report["not_compared"]) == (1, sent, {}, {})
    assert found == [
        ["outputs[0].data[2]: 45.0 became 46.0"],
        ["OF 42 became OF 42!"],
        ["actions.data[2]: 45.0 became 46.0"],
        ['output[0].content[0].text: "[a|[be|a]|42]" became "[a|[be|a]|42!]"'],
        ["THE 42 became THE 42!"],
    ]
