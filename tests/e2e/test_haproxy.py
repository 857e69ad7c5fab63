"""Two servers behind HAProxy with ``deploy/haproxy.cfg``, each of its listeners, and a server that leaves."""

import signal
from collections.abc import Iterator

import grpc
import pytest
import requests
from tests.e2e.running_server import DEADLINE, RunningServer, eventually, model_folder
from tests.e2e.test_envoy import CONFIG, HANDLER, IDS
from tests.ports import free_ports
from tests.proxies import HAProxy

from torchserve_py.apis.grpc.protos.inference_pb2 import PredictionsRequest
from torchserve_py.apis.grpc.protos.inference_pb2_grpc import InferenceAPIsServiceStub

Fleet = tuple[HAProxy, dict[str, RunningServer]]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = model_folder(tmp_path_factory.mktemp("models"), "steps", HANDLER, CONFIG)
    ports = free_ports(2)
    servers = {
        name: RunningServer({"steps": folder}, {"grpc_inference_port": port, "drain_delay": 600}, {"SERVER_NAME": name})
        for name, port in zip("ab", ports, strict=True)
    }
    with servers["a"], servers["b"], HAProxy([each.inference for each in servers.values()], ports) as proxy:
        for server in servers.values():
            server.wait_ready()
        proxy.wait_for(2)
        yield proxy, servers


def over_http(proxy: HAProxy, sequence_id: str) -> str:
    headers = {"ts_request_sequence_id": sequence_id}
    answer = requests.post(f"{proxy.url}/predictions/steps", "x", headers=headers, timeout=DEADLINE)
    assert answer.status_code == 200, answer.text
    return answer.text.split()[0]


def test_each_listener_takes_requests(fleet: Fleet) -> None:
    proxy, _ = fleet
    homes = {each: over_http(proxy, f"http-{each}") for each in IDS}
    assert set(homes.values()) == {"a", "b"}
    assert {each: over_http(proxy, f"http-{each}") for each in IDS} == homes
    with grpc.insecure_channel(proxy.grpc) as channel:
        stub = InferenceAPIsServiceStub(channel)

        def over_grpc(sequence_id: str) -> str:
            request = PredictionsRequest(model_name="steps", sequence_id=sequence_id, input={"body": b"x"})
            metadata = [("ts_request_sequence_id", sequence_id)]
            return str(stub.Predictions(request, metadata=metadata, timeout=DEADLINE).prediction, "utf-8").split()[0]

        homes = {each: over_grpc(f"grpc-{each}") for each in IDS}
        assert set(homes.values()) == {"a", "b"}
        assert {each: over_grpc(f"grpc-{each}") for each in IDS} == homes


def test_the_runtime_socket_takes_words(fleet: Fleet) -> None:
    proxy, _ = fleet
    assert "servers/server0" in proxy.say("show servers conn servers")


def test_an_idle_server_that_is_asked_to_leave_serves_until_the_proxy_has_noticed(fleet: Fleet) -> None:
    proxy, servers = fleet
    server = servers["a"]
    asked = requests.post(f"{server.management}/drain", timeout=DEADLINE)
    assert asked.status_code == 202, asked.text
    for path in ("/ready", "/v2/health/ready"):
        assert requests.get(f"{server.inference}{path}", timeout=DEADLINE).status_code != 200
    assert requests.get(f"{server.inference}/live", timeout=DEADLINE).status_code == 200
    assert server.predict("steps", "x", sequence="late").status_code == 200

    def has_noticed() -> bool:  # no request is refused meanwhile
        return {over_http(proxy, f"late-{each}") for each in IDS} == {"b"}

    eventually(has_noticed, "the proxy sends all sequences to the other server")
    assert server.process is not None
    assert server.process.poll() is None
    server.process.send_signal(signal.SIGTERM)
    eventually(lambda: "SIGTERM received" in server.log(), "the server is to stop")
    assert server.predict("steps", "x", sequence="later").status_code == 200
    server.process.send_signal(signal.SIGTERM)  # the second one ends the wait
    assert server.process.wait(DEADLINE) == 0
