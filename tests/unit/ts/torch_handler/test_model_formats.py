"""BaseHandler serves a model in each of the formats that PyTorch can save one in."""

import base64
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch

# torch imports it when native code is loaded, and it refuses to be imported once others have touched distutils.
pytest.importorskip("setuptools")
torch = pytest.importorskip("torch")

#: The rows of the batch are numbers in a JSON body.
HANDLER = """
    from ts.torch_handler.base_handler import BaseHandler

    class Numbers(BaseHandler):
        def preprocess(self, data):
            return super().preprocess([[float(row["body"])] for row in data])
"""

DOUBLE = """
    import torch

    class Double(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = torch.nn.Parameter(torch.tensor(2.0))

        def forward(self, values):
            return values * self.factor
"""

#: An ONNX model with one node, ``Mul(x, factor)``, where factor is 3.0 and x is float of shape [N, 1].
ONNX = (
    "CAg6VgoTCgF4CgZmYWN0b3ISAXkiA011bBIBZyoQEAFCBmZhY3RvckoEAABAQFoUCgF4Eg8KDQgBEgkKAxIBTgoCCAFiFAoBeRIP"
    "Cg0IARIJCgMSAU4KAggBQgIQDQ=="
)


class Triple(torch.nn.Module):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values * 3


def answers(serve: Callable[..., Any], model: Callable[..., str], file: str, **more: Any) -> list[Any]:
    served = serve(model(HANDLER), serializedFile=file, **more)
    return [answer for _, answer in served.answers(b"1", b"2")]


@pytest.mark.parametrize("name", ["model.pt", "model.pth"])
def test_torchscript(serve: Callable[..., Any], model: Callable[..., str], tmp_path: Path, name: str) -> None:
    torch.jit.trace(Triple().eval(), torch.zeros(1, 1)).save(str(tmp_path / name))

    assert answers(serve, model, name) == [[3.0], [6.0]]


@pytest.mark.parametrize("name", ["model.pt", "model.pth"])
def test_a_whole_model_needs_trust(
    serve: Callable[..., Any], model: Callable[..., str], tmp_path: Path, name: str
) -> None:
    torch.save(Triple(), tmp_path / name)
    with pytest.raises(RuntimeError, match=r"holds more than weights.*weights_only: false"):
        answers(serve, model, name)

    assert answers(serve, model, name, config="handler: {weights_only: false}") == [[3.0], [6.0]]


def test_weights_in_safetensors(serve: Callable[..., Any], model: Callable[..., str], tmp_path: Path) -> None:
    pytest.importorskip("safetensors.torch").save_file({"factor": torch.tensor(5.0)}, tmp_path / "model.safetensors")

    assert answers(serve, model, "model.safetensors", modelFile=model(DOUBLE)) == [[5.0], [10.0]]


def test_an_exported_program(serve: Callable[..., Any], model: Callable[..., str], tmp_path: Path) -> None:
    dynamic = {"values": {0: torch.export.Dim("rows")}}
    program = torch.export.export(Triple(), (torch.zeros(2, 1),), dynamic_shapes=dynamic)
    torch.export.save(program, tmp_path / "model.pt2")

    assert answers(serve, model, "model.pt2") == [[3.0], [6.0]]


#: In a process of its own: the compiler's imports depend on what else a process has imported before.
COMPILE = """
import sys
import torch

class Triple(torch.nn.Module):
    def forward(self, values):
        return values * 3

torch._inductor.aoti_compile_and_package(
    torch.export.export(Triple(), (torch.zeros(2, 1),)),
    package_path=sys.argv[1],
    inductor_configs={"aot_inductor.precompile_headers": False, "aot_inductor.compile_wrapper_opt_level": "O0"},
)
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor compiles with g++")
def test_native_code_of_aot_inductor(serve: Callable[..., Any], model: Callable[..., str], tmp_path: Path) -> None:
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    subprocess.run([sys.executable, "-c", COMPILE, str(tmp_path / "model.pt2")], env=environment, check=True)
    with zipfile.ZipFile(tmp_path / "model.pt2") as package:
        (library,) = (name for name in package.namelist() if name.endswith(".so"))
        (tmp_path / "model.so").write_bytes(package.read(library))

    assert answers(serve, model, "model.pt2") == [[3.0], [6.0]]
    assert answers(serve, model, "model.so", config="pt2: {export: {aot_compile: true}}") == [[3.0], [6.0]]


def test_onnx(serve: Callable[..., Any], model: Callable[..., str], tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    (tmp_path / "model.onnx").write_bytes(base64.b64decode(ONNX))

    assert answers(serve, model, "model.onnx") == [[3.0], [6.0]]


def test_an_onnx_model_computes_with_its_workers_share_of_the_processors(
    serve: Callable[..., Any], model: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    (tmp_path / "model.onnx").write_bytes(base64.b64decode(ONNX))
    monkeypatch.setenv("OMP_NUM_THREADS", "3")  # as the worker sets it, or the user

    served = serve(model(HANDLER), serializedFile="model.onnx", changes={"processors": 2})

    assert served.handler.model.get_session_options().intra_op_num_threads == 3


@pytest.mark.parametrize(
    ("package", "file", "message"),
    [
        ("onnxruntime", "model.onnx", r"\.onnx models need the package onnxruntime.*torchserve-py\[onnx\]"),
        ("safetensors", "model.safetensors", r"\.safetensors files need the package safetensors"),
    ],
)
def test_a_package_that_is_missing_is_named(
    serve: Callable[..., Any],
    model: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    package: str,
    file: str,
    message: str,
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    (tmp_path / file).write_bytes(b"model")
    entry = {"modelFile": model(DOUBLE)} if package == "safetensors" else {}

    with pytest.raises(ModuleNotFoundError, match=message):
        answers(serve, model, file, **entry)


@pytest.mark.parametrize(
    ("config", "compiled"),
    [
        ("pt2: eager", True),
        ("pt2: {backend: eager, mode: default}", True),
        ("pt2: {compile: {enable: true, backend: eager}}", True),
        ("pt2: {compile: {enable: false, backend: eager}}", False),
        ("pt2: magic", False),
        ("pt2: {compile: {enable: true, backend: eager, nonsense: 1}}", False),
    ],
)
def test_the_model_is_compiled_where_that_is_configured_and_possible(
    serve: Callable[..., Any], model: Callable[..., str], config: str, compiled: bool, caplog: pytest.LogCaptureFixture
) -> None:
    served = serve(model(HANDLER), modelFile=model(DOUBLE), config=config)

    assert isinstance(served.handler.model, torch._dynamo.OptimizedModule) is compiled
    assert served.answers(b"1") == [(200, [2.0])]
    assert ("magic is not a supported backend" in caplog.text) is ("magic" in config)
    assert ("it is used uncompiled" in caplog.text) is ("nonsense" in config)


def test_a_compiler_that_does_not_work_shows_while_loading(
    serve: Callable[..., Any], model: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    def broken(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("there is no C++ compiler")

    torch._dynamo.register_backend(broken, "ofi")  # type: ignore[attr-defined,unused-ignore]
    served = serve(model(HANDLER), modelFile=model(DOUBLE), config="pt2: ofi")

    assert "it is used uncompiled" in caplog.text
    assert not isinstance(served.handler.model, torch._dynamo.OptimizedModule)
    assert served.answers(b"1") == [(200, [2.0])]


def test_a_model_that_cannot_be_compiled_answers_uncompiled(
    serve: Callable[..., Any], model: Callable[..., str]
) -> None:
    def picky(graph: Any, inputs: Any) -> Any:
        if any(node.op == "call_module" or "linear" in str(node.target) for node in graph.graph.nodes):
            return graph.forward
        raise RuntimeError("this model is too hard")

    torch._dynamo.register_backend(picky, "fx2trt")  # type: ignore[attr-defined,unused-ignore]
    served = serve(model(HANDLER), modelFile=model(DOUBLE), config="pt2: fx2trt")

    assert isinstance(served.handler.model, torch._dynamo.OptimizedModule)
    assert served.handler.model(torch.tensor([[1.0]])).tolist() == [[2.0]]


def test_the_profiler_writes_a_trace(
    serve: Callable[..., Any], model: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENABLE_TORCH_PROFILER", "true")
    served = serve(model(HANDLER), modelFile=model(DOUBLE))
    served.handler.profiler_args = {
        "activities": [torch.profiler.ProfilerActivity.CPU],
        "on_trace_ready": torch.profiler.tensorboard_trace_handler(str(tmp_path / "traces")),
    }

    assert served.answers(b"1", b"2") == [(200, [2.0]), (200, [4.0])]

    (trace,) = (tmp_path / "traces").iterdir()
    for step in ("preprocess", "inference", "postprocess"):
        assert f'"{step}"' in trace.read_text()


def test_without_further_arguments_traces_go_to_a_folder_of_the_model(
    serve: Callable[..., Any], model: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders: list[str] = []
    write = torch.profiler.tensorboard_trace_handler

    def trace_handler(folder: str) -> Any:
        folders.append(folder)
        return write(str(tmp_path / "traces"))

    monkeypatch.setattr(torch.profiler, "tensorboard_trace_handler", trace_handler)
    monkeypatch.setenv("ENABLE_TORCH_PROFILER", "true")
    served = serve(model(HANDLER), modelFile=model(DOUBLE))

    assert [served.answers(b"1"), served.answers(b"2")] == [[(200, [2.0])], [(200, [4.0])]]
    assert folders == ["/tmp/pytorch_profiler/small"]
    assert len(list((tmp_path / "traces").iterdir())) == 2
