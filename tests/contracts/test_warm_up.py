"""Warm-up requests of real workers, and the memory of workers on GPUs; the driver's library is a stand-in."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.running_server import ROOT, RunningServer, eventually, model_folder
from tests.e2e.stand_in_nvml import stand_in_nvml

#: Answers with how often it was called before, and with the size of each batch then.
COUNTS = """
import json

sizes = []


def handle(data, context):
    if data is None:
        return None
    if any(row["body"] == b"broken" for row in data):
        raise ValueError("not a sample")
    sizes.append(len(data))
    return [json.dumps(sizes[:-1]) for _ in data]
"""
WARM = "batchSize: 4\nmaxBatchDelay: 0\nwarmup: [{file: sample, calls: 2}, {file: sample, rows: 1}]\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RunningServer]:
    (folder / "library").mkdir()
    (folder / "library" / "pynvml.py").write_text(stand_in_nvml(2))
    (folder / "pids").write_text("")
    warm = model_folder(folder, "warm", COUNTS, WARM)
    (warm / "sample").write_text("sample")
    paths = [folder / "library", ROOT / "frontend", ROOT / "backend"]
    environment = {"PYTHONPATH": os.pathsep.join(map(str, paths)), "PIDS": str(folder / "pids")}
    properties = {"disable_system_metrics": "false", "metric_time_interval": 1}
    with RunningServer({"warm": warm}, properties, environment) as running:
        running.wait_ready()
        yield running


def test_clients_find_a_model_that_was_called_before(server: RunningServer) -> None:
    answer = server.predict("warm", "first")
    assert json.loads(answer.text) == [4, 4, 1]
    assert "Warm-up request 0 (sample, 4 in a batch) took" in server.log()


def test_a_model_whose_warm_up_fails_is_not_served(server: RunningServer, folder: Path) -> None:
    broken = model_folder(folder, "broken", COUNTS, WARM)
    (broken / "sample").write_text("broken")
    answer = server.register(broken, synchronous="true")
    assert answer.status_code == 500
    assert "Warm-up request 0 (sample, 4 in a batch) failed: ValueError: not a sample" in answer.text


def test_what_a_worker_has_on_gpus_is_described_and_measured(server: RunningServer, folder: Path) -> None:
    ((worker,),) = [each["workers"] for each in server.describe("warm")]
    (folder / "pids").write_text(str(worker["pid"]))

    def described() -> bool:
        ((now,),) = [each["workers"] for each in server.describe("warm")]
        return bool(now.get("gpuMemoryUsage") == 2 << 30)

    eventually(described, "the memory of the worker is known")
    assert server.metric("ts_worker_gpu_memory_bytes") == 2 << 30
