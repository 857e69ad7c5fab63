"""Workers on the nodes of a Ray cluster: placed, lost with their node, placed again; and nobody else gets in."""

import json
import os
import socket
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
from tests.e2e.running_server import HANDLERS, RunningServer, eventually, model_folder
from tests.fleet.ray.ray_cluster import RayNodes
from tests.programs import need_program
from tests.redis_server import RedisServer

pytest.importorskip("ray")

DOUBLE = """
import os, pathlib


def handle(data, context):
    if data is None:
        return None
    print("a batch of", len(data), flush=True)
    note = pathlib.Path(context.system_properties["model_dir"], "note.txt").read_text()
    return [f"{os.getpid()} {note} {bytes(row.get('body') or row.get('data')).decode() * 2}" for row in data]
"""
COUNT = """
from ts.sequence import SequenceCache


class Handler:
    def initialize(self, context):
        self.cache = SequenceCache(context)

    def handle(self, data, context):
        return [self.count(context.get_sequence_id(index)) for index in range(len(data))]

    def count(self, sequence_id):
        self.cache[sequence_id] = self.cache.get(sequence_id, 0) + 1
        return str(self.cache[sequence_id])
"""
SEQUENCES = "sequenceBatching: true\nsequenceMaxIdleMSec: 600000\nmaxNumSequence: 100\nmaxSequenceJobQueueSize: 10\n"


STREAM = """
from ts.handler_utils.utils import send_intermediate_predict_response


def handle(data, context):
    if data is None:
        return None
    for number in range(3):
        send_intermediate_predict_response([f"{number} "] * len(data), context.request_ids, "OK", 200, context)
    return ["end"] * len(data)
"""
TRUSS = """
class Model:
    def __init__(self, **given):
        pass

    def load(self):
        pass

    async def predict(self, given):
        async def parts():
            for number in range(3):
                yield f"{number} "

        return parts() if given["streamed"] else {"given": given}
"""
#: Two processes; only together they know the sum.
PARALLEL = """
import torch
import torch.distributed as dist


class Handler:
    def initialize(self, context):
        dist.init_process_group("gloo")

    def handle(self, data, context):
        one = torch.ones(1)
        dist.all_reduce(one)
        return [str(one.item()) for _ in data]
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayNodes]:
    with RayNodes() as nodes:
        yield nodes


@pytest.fixture(autouse=True)
def no_nodes(cluster: RayNodes) -> Iterator[None]:
    yield
    cluster.remove_all()


def serving(cluster: RayNodes, folder: Path, **properties: Any) -> RunningServer:
    settings = {
        "worker_launcher": "ray",
        "ray_address": cluster.address,
        "worker_heartbeat_timeout": 5,
        "access_log": "false",
    }
    return RunningServer({"m": folder}, {**settings, **properties})


def post(server: RunningServer, body: str = "x", **headers: str) -> requests.Response:
    return requests.post(f"{server.inference}/predictions/m", data=body.encode(), headers=headers, timeout=180)


def ready_workers(server: RunningServer) -> int:
    (model,) = requests.get(f"{server.management}/models/m", timeout=180).json()
    return sum(worker["status"] == "READY" for worker in model["workers"])


def statuses(server: RunningServer) -> list[str]:
    return sorted(worker["status"] for worker in server.describe("m")[0]["workers"])


def test_a_worker_with_a_gpu_of_its_node_says_so(cluster: RayNodes, tmp_path: Path) -> None:
    cluster.add(num_cpus=1, num_gpus=1)
    folder = model_folder(tmp_path, "m", DOUBLE, "minWorkers: 1\nmaxWorkers: 1\nray: {num_gpus: 1}\n")
    with serving(cluster, folder) as server:
        server.wait_ready()
        (worker,) = server.describe("m")[0]["workers"]
        assert (worker["gpu"], worker["gpuUsage"]) == (True, "N/A")


def test_workers_are_placed_lost_with_their_node_and_placed_again(cluster: RayNodes, tmp_path: Path) -> None:
    doomed, _ = cluster.add(num_cpus=1), cluster.add(num_cpus=1)
    folder = model_folder(tmp_path, "m", DOUBLE, "minWorkers: 2\nmaxWorkers: 2\n")
    (folder / "note.txt").write_text("noted")
    with serving(cluster, folder) as server:
        server.wait_ready()
        answers = [post(server, f"{number}").text.split() for number in range(10)]
        assert [(note, text) for _, note, text in answers] == [("noted", str(number) * 2) for number in range(10)]
        assert len({pid for pid, _, _ in answers}) == 2
        check_that_strangers_do_not_get_in(server)
        eventually(lambda: server.log().count("MODEL_LOG - a batch of 1") == 10, "what workers print is logged")
        cluster.remove(doomed)
        eventually(lambda: ready_workers(server) == 1, "the loss is noticed")
        assert {post(server).status_code for _ in range(10)} == {200}
        eventually(lambda: "no node of the Ray cluster has room for it yet; it needs 1 CPU" in server.log(), "it waits")
        eventually(lambda: statuses(server) == ["READY", "WAITING"], "describe tells so")
        assert "pid -1" not in server.log()
        assert "with its node" in server.log()
        assert ready_workers(server) == 1
        cluster.add(num_cpus=1)
        eventually(lambda: ready_workers(server) == 2, "the place is filled again")
        last = {int(post(server).text.split()[0]) for _ in range(10)}
        server.server.kill()
        eventually(lambda: not any(map(psutil.pid_exists, last)), "no worker outlives the server")


def test_a_scaled_down_place_withdraws_its_demand(cluster: RayNodes, tmp_path: Path) -> None:
    cluster.add(num_cpus=1)
    folder = model_folder(tmp_path, "m", DOUBLE)
    (folder / "note.txt").write_text("noted")
    with serving(cluster, folder) as server:
        server.wait_ready()
        requests.put(f"{server.management}/models/m?min_worker=2&max_worker=2", timeout=180)
        eventually(lambda: "has room for it yet" in server.log(), "the second waits for a place")
        answer = requests.put(f"{server.management}/models/m?min_worker=1&max_worker=1&synchronous=true", timeout=180)
        assert answer.status_code == 200
        cluster.add(num_cpus=1)
        assert post(server).status_code == 200
        assert ready_workers(server) == 1


@pytest.mark.torch
def test_every_kind_of_model_code_runs_on_nodes(cluster: RayNodes, tmp_path: Path) -> None:
    cluster.add(num_cpus=5)
    (tmp_path / "truss" / "model").mkdir(parents=True)
    (tmp_path / "truss" / "config.yaml").write_text("model_name: truss\n")
    (tmp_path / "truss" / "model" / "__init__.py").touch()
    (tmp_path / "truss" / "model" / "model.py").write_text(TRUSS)
    parallel = "minWorkers: 1\nmaxWorkers: 1\nparallelType: tp\ntorchrun: {nproc-per-node: 2}\n"
    models = {
        "stream": model_folder(tmp_path, "stream", STREAM),
        "truss": tmp_path / "truss",
        "sentences": HANDLERS / "sentences",
        "parallel": model_folder(tmp_path, "parallel", PARALLEL, parallel),
    }
    properties = {"worker_launcher": "ray", "ray_address": cluster.address, "access_log": "false"}
    with RunningServer(models, properties) as server:
        server.wait_ready()

        def ask(path: str, body: Any) -> requests.Response:
            return requests.post(f"{server.inference}{path}", json=body, timeout=180)

        assert ask("/predictions/stream", {}).text == "0 1 2 end"
        assert ask("/v1/models/truss:predict", {"streamed": False}).json() == {"given": {"streamed": False}}
        assert ask("/v1/models/truss:predict", {"streamed": True}).text == "0 1 2 "
        sample = json.loads((HANDLERS / "sentences" / "sample" / "request.json").read_text())
        assert ask("/v2/models/sentences/infer", sample).json()["outputs"][0]["data"] == [4, 9, 2, 6]
        assert ask("/predictions/parallel", {}).text == "2.0"


@pytest.mark.parametrize("store", ["memory", "redis"])
def test_sequences_go_on_elsewhere_or_are_told_to_be_lost(cluster: RayNodes, tmp_path: Path, store: str) -> None:
    node = cluster.add(num_cpus=1)
    need_program("redis-server")
    (tmp_path / "redis").mkdir()
    with RedisServer(tmp_path / "redis") as redis:
        cache = f"handler: {{cache: {{store: redis, url: '{redis.url}', lease: 2}}}}\n" if store == "redis" else ""
        folder = model_folder(tmp_path, "m", COUNT, SEQUENCES + cache)
        with serving(cluster, folder) as server:
            server.wait_ready()
            steps = [post(server, ts_request_sequence_id="s") for _ in range(3)]
            assert [each.text for each in steps] == ["1", "2", "3"]
            cluster.remove(node)
            cluster.add(num_cpus=1)
            told = eventually(lambda: outcome(post(server, ts_request_sequence_id="s")), "the step has an outcome")
            assert told == ((200, "4") if store == "redis" else (410, "sequence_lost"))


STUBBORN = """
import os, subprocess, time


def handle(data, context):
    if data is None:
        return None
    body = bytes(data[0].get("body") or data[0]["data"]).decode()
    if body == "exit":
        subprocess.Popen(["sleep", "60"])  # holds the output open
        os._exit(7)
    print("sleeps for", body, flush=True)
    time.sleep(float(body))
    return [open("linked.txt").read()] * len(data)
"""


def test_drains_after_sigterm_and_tells_how_workers_ended(cluster: RayNodes, tmp_path: Path) -> None:
    cluster.add(num_cpus=1)
    folder = model_folder(tmp_path, "m", STUBBORN)
    (tmp_path / "outside.txt").write_text("linked")
    (folder / "linked.txt").symlink_to(tmp_path / "outside.txt")
    (folder / "around").symlink_to(folder)
    (folder / "nowhere").symlink_to(tmp_path / "nothing")
    os.mkfifo(folder / "pipe")
    with serving(cluster, folder, drain_timeout=60) as server:
        server.wait_ready()
        assert post(server, "exit").status_code == 500
        eventually(lambda: "exited with code 7" in server.log(), "the log tells how the worker ended")
        server.wait_ready()
        module = "torchserve_py.fleet.ray.ray_driver"
        (ray,) = (each for each in server.server.children() if module in each.cmdline())
        ray.kill()
        eventually(lambda: "joined the Ray cluster" in server.log(), "the server joins the cluster again")
        server.wait_ready()
        with ThreadPoolExecutor() as pool:
            answer = pool.submit(post, server, "5")  # longer than the crash handler of Ray leaves a process
            eventually(lambda: "sleeps for 5" in server.log(), "the request runs")
            assert server.terminate() == 0
            assert answer.result().text == "linked"


def test_requests_go_on_while_the_head_of_the_cluster_does_not_answer(cluster: RayNodes, tmp_path: Path) -> None:
    cluster.add(num_cpus=2)
    folder = model_folder(tmp_path, "m", DOUBLE, "minWorkers: 2\nmaxWorkers: 2\n")
    (folder / "note.txt").write_text("noted")
    with serving(cluster, folder, worker_heartbeat_timeout=60) as server:
        server.wait_ready()
        noticed = server.log().count("starts again")
        with cluster.frozen_head():
            psutil.Process(int(post(server).text.split()[0])).kill()
            eventually(lambda: server.log().count("starts again") > noticed, "the loss is noticed")
            assert {post(server).status_code for _ in range(10)} == {200}
        eventually(lambda: ready_workers(server) == 2, "the place is filled again")
        with cluster.frozen_head():
            ends_in_order(server)


def ends_in_order(server: RunningServer) -> None:
    began = time.monotonic()
    assert server.terminate() == 0
    assert time.monotonic() - began < 30


def test_a_server_joins_the_cluster_again_that_has_a_new_head(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, "m", DOUBLE)
    (folder / "note.txt").write_text("noted")
    with RayNodes() as cluster, serving(cluster, folder) as server:
        cluster.add(num_cpus=1)
        server.wait_ready()
        first = post(server).text
        cluster.kill_head()
        eventually(lambda: "The head of the Ray cluster" in server.log(), "the log tells of the head")
        assert post(server).text == first
        cluster.remove_all()
        eventually(lambda: ready_workers(server) == 0, "the worker is gone with its node")
        text = f"the head of the Ray cluster at {cluster.address} does not answer"
        eventually(lambda: server.describe("m")[0]["workers"][0].get("failure") == text, "the place tells why it waits")
        cluster.start_head()
        cluster.add(num_cpus=1)
        eventually(lambda: ready_workers(server) == 1, "a worker is placed again")
        assert post(server).text.split()[1:] == ["noted", "xx"]
        assert "is lost, with all workers" in server.log()
        assert f"The server has joined the Ray cluster at {cluster.address} again" in server.log()
        cluster.kill_head()
        ends_in_order(server)


def test_a_model_that_no_node_is_large_enough_for_says_so_and_is_unregistered_at_once(
    cluster: RayNodes, tmp_path: Path
) -> None:
    cluster.add(num_cpus=1)
    config = "parallelType: tp\ntorchrun: {nproc-per-node: 2}\nray: {num_gpus: 0.5, resources: {a100: 1}}\n"
    folder = model_folder(tmp_path, "m", DOUBLE, config)
    with serving(cluster, folder) as server:
        needs = "it needs 2 CPU, 1 GPU, 2 a100, and the most that a node has is 1 CPU, 0 GPU, 0 a100"
        eventually(lambda: needs in server.describe("m")[0]["workers"][0].get("failure", ""), "it says why")
        time.sleep(2)  # it is being placed again
        began = time.monotonic()
        assert server.unregister("m").status_code == 200
        assert time.monotonic() - began < 5  # an attempt to place it takes 10
        assert server.terminate() == 0


def outcome(answer: requests.Response) -> tuple[int, str] | None:
    """What an answer says that is not to be asked for again."""
    if "retry-after" in answer.headers or answer.status_code == 500:
        return None
    return answer.status_code, answer.headers.get("ts-error-cause") or answer.text


def check_that_strangers_do_not_get_in(server: RunningServer) -> None:
    line = next(line for line in server.log().splitlines() if "Workers are placed by Ray" in line)
    host, _, port = line.rpartition(" ")[2].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=180) as plain:
        plain.sendall(b"\x00\x00\x00\x10" + b"x" * 16)
        assert all_of(plain).count(b"x") == 0
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection((host, int(port)), timeout=180) as connected:
        try:
            with context.wrap_socket(connected) as secured:
                secured.sendall(b"\x00\x00\x00\x10" + b"x" * 16)
                assert all_of(secured) == b""
        except (ssl.SSLError, ConnectionError) as error:
            print("refused:", error)


def all_of(connected: socket.socket) -> bytes:
    """What comes until the other end closes; TimeoutError if it does not."""
    received = b""
    try:
        while data := connected.recv(100):
            received += data
    except ConnectionResetError:
        pass
    return received


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ("useVenv: true\n", "useVenv is set but worker_launcher is ray; install the packages on the nodes"),
        ("ray: {num_cpus: -1}\n", "ray.num_cpus is -1 (int), it must be a number from 0"),
        ("ray: {cpus: 1}\n", "ray.cpus is not known"),
        (f"{SEQUENCES}handler: {{cache: {{store: file}}}}\n", "handler.cache.store: redis"),
    ],
)
def test_what_cannot_be_obeyed_is_refused(cluster: RayNodes, tmp_path: Path, config: str, problem: str) -> None:
    folder = model_folder(tmp_path, "m", DOUBLE, config)
    with serving(cluster, folder) as server:
        eventually(lambda: problem in server.log(), "the model is refused")


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("127.0.0.1:1", "there is no such cluster"),
        ("ray://127.0.0.1:1", "the server needs that of the head, HOST:PORT"),
    ],
)
def test_a_cluster_that_is_not_there_is_told(tmp_path: Path, address: str, problem: str) -> None:
    folder = model_folder(tmp_path, "m", DOUBLE)
    server = RunningServer({"m": folder}, {"worker_launcher": "ray", "ray_address": address})
    with pytest.raises(AssertionError, match=rf"ray_address = {address}\b.*{problem}"), server:
        raise RuntimeError("it has started")


def test_a_version_takes_the_places_of_a_full_cluster(cluster: RayNodes, tmp_path: Path) -> None:
    cluster.add(num_cpus=1)
    cluster.add(num_cpus=1)
    code = (
        'def handle(data, context):\n    return [str(context.system_properties["model_version"])] * len(data or ())\n'
    )
    first, second = (model_folder(tmp_path / version, "m", code, "minWorkers: 2\nmaxWorkers: 2\n") for version in "12")
    (second / "MAR-INF").mkdir()
    model = {"modelName": "m", "modelVersion": "2", "handler": "handler.py", "configFile": "model-config.yaml"}
    (second / "MAR-INF" / "MANIFEST.json").write_text(json.dumps({"model": model}))
    with serving(cluster, first) as server:
        try:
            server.wait_ready()
        except AssertionError as error:
            error.add_note(f"alive on the nodes: {cluster.processes()}")
            raise
        assert server.register(second, initial_workers=0).ok
        answer = requests.put(f"{server.management}/models/m/2/rollout", timeout=180)
        assert answer.ok, answer.text
        assert post(server).text == "2"
        assert ready_workers(server) == 2
