"""Incidents that a real Prometheus has to notice, each with the alert that names the model and no other alert."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import grpc
import pytest
import requests
from tests.e2e.prometheus import Prometheus
from tests.e2e.running_server import DEADLINE, RunningServer, eventually, model_folder
from tests.ports import free_ports
from tests.programs import need_program
from tests.redis_server import RedisServer
from websockets.sync.client import connect

from torchserve_py.apis.grpc.protos.inference_pb2 import PredictionsRequest
from torchserve_py.apis.grpc.protos.inference_pb2_grpc import InferenceAPIsServiceStub

WELL = "def handle(data, context):\n    return ['well'] * len(data) if data else None\n"
RAISING = "def handle(data, context):\n    if data:\n        raise ValueError('wrong')\n"
SLOW = "import time\n\n\n" + WELL.replace("    return", "    time.sleep(0.5)\n    return")
COUNTING = """
from ts.sequence import SequenceCache


class Counting:
    def initialize(self, context):
        self.counts = SequenceCache(context)

    def handle(self, data, context):
        ids = [context.get_sequence_id(index) for index in range(len(data))]
        self.counts.update((each, self.counts.get(each, 0) + 1) for each in ids)
        return [str(self.counts[each]) for each in ids]
"""
SEQUENCES = "sequenceBatching: true\nmaxNumSequence: 100\nsequenceMaxIdleMSec: 60000\nminWorkers: 1\n"
#: What is on the way besides any incident: a machine that is shared may be full.
HOST = {"HostMemoryFull", "DiskFull", "RequestsWaitLong"}
#: What says the same of all models, or later: in these tests all windows have the same length.
ALSO = {"RequestsFail", "ModelFailsSlowly"}


@dataclass(frozen=True)
class Scene:
    server: RunningServer
    prometheus: Prometheus
    redis: RedisServer
    grpc: str

    def firing(self) -> set[tuple[str, str]]:
        """Return the alerts that fire, each with its model."""
        alerts = self.prometheus.get("alerts")["alerts"]
        named = [each["labels"] for each in alerts if each["state"] == "firing"]
        return {
            (each["alertname"], each.get("model_name", "")) for each in named if each["alertname"] not in HOST | ALSO
        }


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    need_program("redis-server")
    directory = tmp_path_factory.mktemp("incidents")
    for name in ("redis", "prometheus"):
        (directory / name).mkdir()
    (port,) = free_ports(1)
    with RedisServer(directory / "redis") as redis:
        stored = f"{SEQUENCES}handler:\n  cache: {{store: redis, url: '{redis.url}', lease: 4}}\n"
        sources = {
            "busy": (WELL, ""),
            "broken": (RAISING, ""),
            "rpc": (RAISING, ""),
            "live": (RAISING, SEQUENCES),
            "slow": (SLOW, ""),
            "stored": (COUNTING, stored),
        }
        models = {name: model_folder(directory, name, *source) for name, source in sources.items()}
        with RunningServer(models, {"grpc_inference_port": port, "drain_timeout": 1}) as server:
            server.wait_ready()
            target = server.metrics.removeprefix("http://")
            with Prometheus(target, directory / "prometheus", hasty=True) as prometheus:
                eventually(lambda: prometheus.values("up == 1"), "Prometheus has scraped the server")
                yield Scene(server, prometheus, redis, f"127.0.0.1:{port}")


def raises_alert(scene: Scene, incident: Callable[[], object], alert: str, model: str) -> None:
    """Let an incident go on, beside a busy model that is well, until its alert fires; no other one may."""
    eventually(lambda: not scene.firing(), "all is well")
    stop = threading.Event()

    def go_on(act: Callable[[], object]) -> None:
        while not stop.wait(0.05):
            act()

    acts = (incident, lambda: [scene.server.predict("busy", "x") for _ in range(5)])
    threads = [threading.Thread(target=go_on, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    try:
        found = eventually(scene.firing, f"{alert} fires for {model}")
    finally:
        stop.set()
        for thread in threads:
            thread.join(DEADLINE)
    assert found == {(alert, model)}
    eventually(lambda: not scene.firing(), "the alert ends with the incident")


def test_a_model_that_fails_alone_beside_a_busy_one(scene: Scene) -> None:
    raises_alert(scene, lambda: scene.server.predict("broken", "x"), "ModelFails", "broken")


def test_calls_of_grpc_that_fail(scene: Scene) -> None:
    with grpc.insecure_channel(scene.grpc) as channel:
        predict = InferenceAPIsServiceStub(channel).Predictions

        def call() -> None:
            with contextlib.suppress(grpc.RpcError):
                predict(PredictionsRequest(model_name="rpc", input={"data": b"x"}), timeout=DEADLINE)

        raises_alert(scene, call, "ModelFails", "rpc")


def test_live_sessions_whose_steps_fail(scene: Scene) -> None:
    url = scene.server.inference.replace("http", "ws", 1)
    with connect(f"{url}/sequences/live?content_type=text/plain") as socket:
        socket.recv(timeout=DEADLINE)

        def step() -> None:
            socket.send(json.dumps({"body": "x"}))
            assert "error" in json.loads(socket.recv(timeout=DEADLINE))

        raises_alert(scene, step, "ModelFails", "live")
    eventually(
        lambda: scene.server.metric("ts_http_requests_total", route="/sequences/{model_name}", status="101") == 1,
        "the session is counted",
    )
    assert 'GET /sequences/live?content_type=text/plain HTTP/1.1" 101' in scene.server.log()


def test_clients_that_give_up(scene: Scene) -> None:
    def give_up() -> None:
        with contextlib.suppress(requests.Timeout):
            scene.server.predict("slow", "x", timeout=0.1)

    raises_alert(scene, give_up, "ClientsGiveUp", "slow")


def test_a_store_that_is_down(scene: Scene) -> None:
    assert scene.server.predict("stored", "x", sequence="a").status_code == 200
    scene.redis.kill()
    raises_alert(scene, lambda: scene.server.predict("stored", "x", sequence="a"), "SequenceStoreFails", "stored")
