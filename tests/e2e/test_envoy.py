"""Two servers behind Envoy with ``deploy/envoy.yaml``: who gets a sequence, over HTTP and gRPC at one port."""

import signal
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
import requests
from tests.e2e.running_server import DEADLINE, RunningServer, model_folder
from tests.ports import free_ports
from tests.proxies import Envoy

from torchserve_py.apis.grpc.protos.inference_pb2 import PredictionsRequest
from torchserve_py.apis.grpc.protos.inference_pb2_grpc import InferenceAPIsServiceStub

HANDLER = """
import os


class Steps:
    def initialize(self, context):
        self.steps = {}

    def handle(self, data, context):
        ids = [context.get_sequence_id(index) for index in range(len(data))]
        self.steps.update((each, self.steps.get(each, 0) + 1) for each in ids)
        return [f"{os.environ['SERVER_NAME']} {self.steps[each]}" for each in ids]
"""
CONFIG = "sequenceBatching: true\nsequenceMaxIdleMSec: 600000\nmaxNumSequence: 100\nminWorkers: 1\n"
Fleet = tuple[Envoy, dict[str, RunningServer]]
IDS = [f"caller-{number}" for number in range(12)]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    folder = model_folder(tmp_path, "steps", HANDLER, CONFIG)
    ports = free_ports(2)
    servers = {
        name: RunningServer({"steps": folder}, {"grpc_inference_port": port}, {"SERVER_NAME": name})
        for name, port in zip("ab", ports, strict=True)
    }
    with servers["a"], servers["b"], Envoy([each.inference for each in servers.values()], ports) as envoy:
        for server in servers.values():
            server.wait_ready()
        envoy.wait_for(2)
        yield envoy, servers


def step(envoy: Envoy, sequence_id: str) -> list[str]:
    headers = {"ts_request_sequence_id": sequence_id}
    answer = requests.post(f"{envoy.url}/predictions/steps", "x", headers=headers, timeout=DEADLINE)
    assert answer.status_code == 200, answer.text
    return answer.text.split()


def test_a_sequence_stays_at_its_server_and_goes_to_another_one_when_that_is_killed(fleet: Fleet) -> None:
    envoy, servers = fleet
    homes = {each: step(envoy, each)[0] for each in IDS}
    assert set(homes.values()) == {"a", "b"}
    assert {each: step(envoy, each) for each in IDS} == {each: [homes[each], "2"] for each in IDS}
    servers["a"].terminate(signal.SIGKILL)
    orphan = next(each for each in IDS if homes[each] == "a")
    assert step(envoy, orphan) == ["b", "1"]  # at once: Envoy still takes the dead server for well
    envoy.wait_for(1)
    assert all(step(envoy, each) == ["b", "3"] for each in IDS if homes[each] == "b")


def test_grpc_calls_of_a_sequence_stay_at_its_server(fleet: Fleet) -> None:
    envoy, _ = fleet
    with grpc.insecure_channel(envoy.url.removeprefix("http://")) as channel:
        stub = InferenceAPIsServiceStub(channel)

        def call(sequence_id: str) -> list[str]:
            request = PredictionsRequest(model_name="steps", sequence_id=sequence_id, input={"body": b"x"})
            metadata = [("ts_request_sequence_id", sequence_id)]
            answer = stub.Predictions(request, metadata=metadata, timeout=DEADLINE, wait_for_ready=True)
            return str(answer.prediction, "utf-8").split()

        homes = {each: call(each)[0] for each in IDS}
        assert set(homes.values()) == {"a", "b"}
        assert {each: call(each) for each in IDS} == {each: [homes[each], "2"] for each in IDS}
