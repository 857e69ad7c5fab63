"""Workers that Intel's launcher binds to their share of the cores (cpu_launcher_enable)."""

import os
import shutil
from pathlib import Path

import psutil
import pytest
from tests.e2e.running_server import RunningServer, model_folder

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(shutil.which("taskset") is None, reason="needs taskset"),
    pytest.mark.skipif(shutil.which("lscpu") is None, reason="needs lscpu"),
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores"),
]

HANDLER = """
def handle(data, context):
    return data and ["ok"] * len(data)
"""


def test_workers_share_the_cores_and_scaling_shares_them_anew(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, "bound", HANDLER)
    properties = {"cpu_launcher_enable": "true", "cpu_launcher_args": "--use-default-allocator --use-logical-core"}
    with RunningServer({"bound": folder}, properties) as server:
        server.wait_ready()
        before = psutil.Process(server.describe("bound")[0]["workers"][0]["pid"])
        assert server.predict("bound", "x").text == "ok"

        assert server.scale("bound", 2).status_code == 200
        assert not before.is_running()
        first, second = (psutil.Process(worker["pid"]) for worker in server.describe("bound")[0]["workers"])
        assert set(first.cpu_affinity()).isdisjoint(second.cpu_affinity())
        assert server.predict("bound", "x").text == "ok"

        assert server.scale("bound", 0).status_code == 200
        assert server.workers() == []
