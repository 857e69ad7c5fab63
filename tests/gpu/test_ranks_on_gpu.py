"""A parallel worker whose processes share one GPU and talk by gloo; nvidia-smi is a stand-in that lists it twice."""

import os
from collections.abc import Iterator

import pytest
from tests.e2e.running_server import RunningServer, model_folder
from tests.gpu.machine import ON_CPU

pytestmark = [pytest.mark.gpu, pytest.mark.torch]

NVIDIA_SMI = """#!/bin/sh
[ "$1" = -L ] || exit 1
echo "GPU 0: The one (UUID: GPU-00000000-0000-0000-0000-000000000000)"
echo "GPU 1: The same (UUID: GPU-11111111-1111-1111-1111-111111111111)"
"""
HANDLER = """
import os

import torch
import torch.distributed as dist


class ParallelHandler:
    def initialize(self, context):
        self.rank = int(os.environ["RANK"])
        self.device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
        dist.init_process_group("gloo")
        self.share = torch.full((4,), self.rank + 1.0, device=self.device)

    def handle(self, data, context):
        product = self.share * torch.tensor([[float(row["body"])] for row in data], device=self.device)
        dist.all_reduce(product)  # gloo takes tensors of a GPU, by way of the host
        return [f"{row.sum().item()} {self.device.type}" for row in product]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("models")
    (folder / "bin").mkdir()
    (folder / "bin" / "nvidia-smi").write_text(NVIDIA_SMI)
    (folder / "bin" / "nvidia-smi").chmod(0o755)
    config = "parallelType: tp\ntorchrun: {nproc-per-node: 2}\nminWorkers: 1\nmaxWorkers: 1\n"
    ranks = model_folder(folder, "ranks", HANDLER, config)
    path = os.pathsep.join([str(folder / "bin"), os.environ["PATH"]])
    with RunningServer({"ranks": ranks}, environment={"PATH": path}) as running:
        running.wait_ready()
        yield running


def test_ranks_that_share_a_gpu_add_up(server: RunningServer) -> None:
    answer = server.predict("ranks", "2")
    assert answer.status_code == 200, answer.text
    assert answer.text == f"24.0 {'cpu' if ON_CPU else 'cuda'}"
