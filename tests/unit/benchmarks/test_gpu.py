"""The load for GPUs, as far as it goes without one."""

import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

torch = pytest.importorskip("torch")

from benchmarks import gpu  # noqa: E402 - needs torch
from benchmarks.benchmark_models import Probe  # noqa: E402


def test_the_model_is_an_archive_with_a_network_that_runs(tmp_path: Path) -> None:
    model = gpu.ImageModel(gpu.network(2), {"batchSize": 2}, Probe("/", b"", bool))
    archive = tmp_path / model.put_into(tmp_path)
    with zipfile.ZipFile(archive) as opened:
        opened.extractall(tmp_path / "images")
    network = torch.jit.load(str(tmp_path / "images" / "model.pt"))
    assert network(torch.zeros(2, 3, 64, 64)).shape == (2, gpu.CLASSES)
    assert (tmp_path / "images" / "model-config.yaml").read_text() == '{"batchSize": 2}'


@pytest.mark.skipif(torch.cuda.is_available(), reason="it would measure this GPU")
def test_without_a_gpu_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu"])
    assert gpu.main() == 1
    assert "--device cpu" in capsys.readouterr().err
