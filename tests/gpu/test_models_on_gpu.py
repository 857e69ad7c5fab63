"""BaseHandler on a GPU: each format of a model, number formats, compiled models."""

import base64
import itertools
import json
import logging
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.running_server import RunningServer
from tests.gpu.machine import DEVICE, GPU_ID, ON_CPU
from tests.unit.handlers.conftest import FakeContext

pytestmark = [pytest.mark.gpu, pytest.mark.torch]

#: An ONNX model with one node, ``Mul(x, factor)``, where factor is 3.0 and x is float of shape [N, 1].
ONNX = (
    "CAg6VgoTCgF4CgZmYWN0b3ISAXkiA011bBIBZyoQEAFCBmZhY3RvckoEAABAQFoUCgF4Eg8KDQgBEgkKAxIBTgoCCAFiFAoBeRIP"
    "Cg0IARIJCgMSAU4KAggBQgIQDQ=="
)
MODEL = """
    import torch


    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layers = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.GELU(), torch.nn.Linear(64, 4))

        def forward(self, values):
            return self.layers(values)
"""
#: In a process of its own: the compiler's imports depend on what else a process has imported before.
COMPILE = """
import sys

import torch

sys.path.insert(0, sys.argv[1])
from {module} import Net

rows = torch.export.Dim("rows", min=1, max=64)
values = torch.zeros(4, 8, device=sys.argv[3])
program = torch.export.export(Net().to(sys.argv[3]).eval(), (values,), dynamic_shapes=({{0: rows}},))
torch._inductor.aoti_compile_and_package(program, package_path=sys.argv[2])
"""
#: Some releases of torch compile what they cannot load: they end with a segmentation fault.
LOAD = "import sys, torch; torch._inductor.aoti_load_package(sys.argv[1])"
_numbers = itertools.count()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A file with the class of the model, under a name of its own."""
    name = f"net_on_gpu_{next(_numbers)}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(MODEL))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    sys.modules.pop(name, None)


@pytest.fixture
def rows() -> list[list[float]]:
    return [[(row * 8 + column) % 7 / 7.0 for column in range(8)] for row in range(5)]


def load(folder: Path, config: dict[str, Any] | None = None, **entry: str) -> tuple[Any, Callable[[Any], Any]]:
    """Return a BaseHandler with a model, and what answers a batch."""
    from ts.metrics.metrics_cache import MetricsCache
    from ts.torch_handler.base_handler import BaseHandler

    context = FakeContext({"batchSize": 8, **(config or {})}, folder, {"model": entry})
    context.system_properties["gpu_id"] = GPU_ID
    context.metrics = MetricsCache("model")
    context.metrics.request_ids = {}
    handler = BaseHandler()
    handler.initialize(context)

    def answers(data: Any) -> Any:
        context.next_batch([(str(number), {}) for number in range(len(data))])
        return handler.handle(data, context)

    return handler, answers


def expected(module: str, rows: list[list[float]]) -> Any:
    import importlib

    import torch

    with torch.inference_mode():
        return importlib.import_module(module).Net().eval()(torch.tensor(rows))


def close(answers: Any, wanted: Any, tolerance: float = 5e-3) -> None:
    import torch

    torch.testing.assert_close(torch.tensor(answers), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("config", "tolerance"),
    [
        ({}, 5e-3),
        ({"autocast": "bfloat16"}, 0.05),
        ({"autocast": "float16"}, 0.02),
        ({"dtype": "bfloat16"}, 0.05),
    ],
)
def test_eager_models(
    tmp_path: Path, module: str, rows: list[list[float]], config: dict[str, Any], tolerance: float
) -> None:
    handler, answers = load(tmp_path, config, modelFile=f"{module}.py")
    assert next(handler.model.parameters()).device.type == DEVICE.partition(":")[0]
    close(answers(rows), expected(module, rows), tolerance)


def test_images_with_their_channels_last(tmp_path: Path, only_cuda: None) -> None:
    import torch

    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1)).eval()
    torch.jit.script(net).save(str(tmp_path / "model.pt"))
    images = torch.rand(3, 3, 32, 32)
    _, answers = load(tmp_path, {"channelsLast": True, "autocast": "bfloat16"}, serializedFile="model.pt")
    with torch.inference_mode():
        close(answers(list(images)), net(images), 0.05)


def test_exported_programs_move_to_the_gpu(tmp_path: Path, module: str, rows: list[list[float]]) -> None:
    import importlib

    import torch

    net = importlib.import_module(module).Net().eval()
    program = torch.export.export(
        net, (torch.zeros(4, 8),), dynamic_shapes=({0: torch.export.Dim("rows", min=1, max=64)},)
    )
    torch.export.save(program, tmp_path / "model.pt2")
    _, answers = load(tmp_path, serializedFile="model.pt2")
    close(answers(rows), expected(module, rows))


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_models(
    tmp_path: Path, module: str, rows: list[list[float]], mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    if ON_CPU and mode != "default":
        pytest.skip("there are no graphs on the CPU")
    caplog.set_level(logging.INFO)
    config = {"pt2": {"compile": {"enable": True, "mode": mode}}}
    _, answers = load(tmp_path, config, modelFile=f"{module}.py")
    assert f"Compiled model with mode {mode}" in caplog.text
    for count in (5, 5, 5, 3, 1, 5):  # graphs are recorded in the second call, and replayed in later ones
        close(answers(rows[:count]), expected(module, rows[:count]))


@pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor compiles with g++")
def test_native_code_of_aot_inductor(tmp_path: Path, module: str, rows: list[list[float]]) -> None:
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    package = tmp_path / "model.pt2"
    command = [sys.executable, "-c", COMPILE.format(module=module), str(tmp_path), str(package), DEVICE]
    compiled = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert compiled.returncode == 0, compiled.stderr[-3000:]
    if subprocess.run([sys.executable, "-c", LOAD, str(package)], check=False, timeout=300).returncode < 0:
        pytest.skip("this release of torch cannot load its own native code, with or without a server")
    (tmp_path / "MAR-INF").mkdir()
    manifest = {"model": {"serializedFile": package.name, "handler": "base_handler"}}
    (tmp_path / "MAR-INF" / "MANIFEST.json").write_text(json.dumps(manifest))
    (tmp_path / "model-config.yaml").write_text("minWorkers: 1\nmaxWorkers: 1\nbatchSize: 8\n")
    with RunningServer({"net": tmp_path}) as server, ThreadPoolExecutor(len(rows)) as clients:
        server.wait_ready()
        headers = {"Content-Type": "application/json"}
        answers = list(clients.map(lambda row: server.predict("net", json.dumps(row), headers=headers).json(), rows))
    close(answers, expected(module, rows))


def test_inputs_of_onnx_models_stay_on_the_host(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    (tmp_path / "model.onnx").write_bytes(base64.b64decode(ONNX))
    handler, answers = load(tmp_path, serializedFile="model.onnx")
    assert handler.preprocess([[1.0], [2.0]]).device.type == "cpu"
    assert answers([[1.0], [2.0]]) == [[3.0], [6.0]]
