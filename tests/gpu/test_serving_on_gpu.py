"""Workers on a GPU: what they see and report, two on one GPU, warm-up, and sequences that outlive a killed worker."""

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests
from tests.e2e.running_server import DEADLINE, HANDLERS, RunningServer, eventually, model_folder
from tests.gpu.machine import ON_CPU
from tests.unit.handlers.conftest import load_module

pytestmark = [pytest.mark.gpu, pytest.mark.torch]

#: Says where it runs, having computed there.
TELL = """
import os

import torch


class Handler:
    def initialize(self, context):
        gpu = context.system_properties["gpu_id"]
        self.device = torch.device("cpu" if gpu is None else f"cuda:{gpu}")
        self.weights = torch.ones(64 << 20, dtype=torch.uint8, device=self.device)

    def handle(self, data, context):
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "the processor"
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        total = int(self.weights[:100].sum())
        return [
            {"pid": os.getpid(), "device": str(self.device), "name": name, "visible": visible, "total": total}
            for _ in data
        ]
"""
MIXER = """
import torch


class Mixer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)
        torch.nn.init.constant_(self.layer.weight, 0.5)
        torch.nn.init.constant_(self.layer.bias, 1.0)

    def forward(self, values):
        return self.layer(values)
"""
MIXER_HANDLER = """
from ts.torch_handler.base_handler import BaseHandler


class MixerHandler(BaseHandler):
    pass
"""
MIXER_CONFIG = """
batchSize: 8
maxBatchDelay: 0
autocast: bfloat16
minWorkers: 1
maxWorkers: 1
warmup:
  - inputs: [{name: values, datatype: FP32, shape: [4]}]
    calls: 3
"""
GRU_CONFIG = """
minWorkers: 1
maxWorkers: 1
batchSize: 8
maxBatchDelay: 0
sequenceBatching: true
sequenceMaxIdleMSec: 600000
maxNumSequence: 100
handler: {cache: {store: file, path: %s, lease: 2}}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("models")
    tell = model_folder(folder, "tell", TELL, "minWorkers: 2\nmaxWorkers: 2\nmaxBatchDelay: 0\n")
    mixer = model_folder(folder, "mixer", MIXER_HANDLER, MIXER_CONFIG)
    (mixer / "model.py").write_text(MIXER)
    gru = folder / "gru"
    shutil.copytree(HANDLERS / "gru_session", gru, ignore=shutil.ignore_patterns("__pycache__"))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(gru))
        load_module(gru / "make_weights.py").write_weights(gru / "weights.pt")
    (gru / "make_weights.py").unlink()
    (gru / "model-config.yaml").write_text(GRU_CONFIG % (folder / "sequences.db"))
    properties = {"disable_system_metrics": "false", "metric_time_interval": 1}
    with RunningServer({"tell": tell, "mixer": mixer, "gru": gru}, properties) as running:
        running.wait_ready()
        yield running


def told(server: RunningServer) -> dict[int, dict[str, Any]]:
    """What both workers of a model say, by process id."""
    found: dict[int, dict[str, Any]] = {}

    def both_have_answered() -> bool:
        with ThreadPoolExecutor(4) as pool:
            for answer in pool.map(lambda _: server.predict("tell", "?"), range(8)):
                assert answer.status_code == 200, answer.text
                found[answer.json()["pid"]] = answer.json()
        return len(found) >= 2

    eventually(both_have_answered, "both workers have answered")
    return found


def test_two_workers_share_a_gpu(server: RunningServer) -> None:
    both = list(told(server).values())
    assert [each["total"] for each in both] == [100, 100]
    assert both[0]["name"] == both[1]["name"]
    if not ON_CPU:
        assert {each["device"] for each in both} == {"cuda:0"}
        assert all(each["visible"] for each in both), "each is told which GPU it has"


def test_workers_and_their_gpu_are_described(server: RunningServer, only_cuda: None) -> None:
    pids = set(told(server))

    def described() -> list[dict[str, Any]] | None:
        (model,) = server.describe("tell")
        known = [each for each in model["workers"] if each.get("gpuUsage", "").startswith("gpuId::")]
        return known if len(known) == len(pids) else None

    workers = eventually(described, "the usage of the GPU is known")
    assert {each["pid"] for each in workers} == pids
    assert all(each["gpu"] is True for each in workers)
    pytest.importorskip("pynvml")

    def memory() -> bool:
        (model,) = server.describe("tell")
        return all(each.get("gpuMemoryUsage", 0) > 64 << 20 for each in model["workers"])

    eventually(memory, "the memory of each worker on the GPU is known", 120)


def test_metrics_of_the_gpu(server: RunningServer, only_cuda: None) -> None:
    names = ("GPUUtilization", "GPUMemoryUsed", "GPUMemoryUtilization")

    def all_there() -> bool:
        text = requests.get(f"{server.metrics}/metrics", timeout=DEADLINE).text
        return all(f"\n{name}{{" in text for name in names)

    eventually(all_there, "the metrics of the GPU are there")
    assert server.metric("GPUMemoryUsed", DeviceId="0") > 128  # MB; two workers with 64 MiB each
    assert 0 <= server.metric("GPUUtilization", DeviceId="0") <= 100


def test_a_model_is_warm_before_it_is_asked(server: RunningServer) -> None:
    assert "Warm-up request 0 (values, 8 in a batch) took" in server.log()
    headers = {"content-type": "application/json"}
    answer = server.predict("mixer", "[1.0, 2.0, 3.0, 4.0]", headers=headers)
    assert answer.json() == pytest.approx([6.0, 6.0], rel=0.02)


def step(server: RunningServer, sequence: str, number: int) -> list[float]:
    headers = {"ts_request_sequence_id": sequence, "ts_request_step": str(number)}

    def answered() -> requests.Response | None:
        body = json.dumps([number / 10, -0.5, 0.25, 1.0])
        answer = server.predict("gru", body, headers=headers)
        return None if "Retry-After" in answer.headers else answer

    answer = eventually(answered, "an answer")
    assert answer.status_code == 200, answer.text
    output: list[float] = answer.json()["output"]
    return output


def test_a_sequence_continues_after_its_worker_was_killed(server: RunningServer) -> None:
    undisturbed = [step(server, "undisturbed", number) for number in range(1, 9)]
    outputs = [step(server, "killed", number) for number in range(1, 5)]
    (worker,) = (each["pid"] for each in server.describe("gru")[0]["workers"])
    (process,) = (each for each in server.workers() if each.pid == worker)
    process.kill()
    outputs += [step(server, "killed", number) for number in range(5, 9)]
    for before, after in zip(undisturbed, outputs, strict=True):
        assert after == pytest.approx(before, rel=1e-2, abs=5e-3)
