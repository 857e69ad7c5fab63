"""BaseHandler: which models it loads and how it answers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ts.context import Context, RequestProcessor
from ts.metrics.metrics_cache import MetricsCache

if TYPE_CHECKING:
    from ts.torch_handler.base_handler import BaseHandler

pytestmark = pytest.mark.torch

torch = pytest.importorskip("torch")

DOUBLE = """
    import torch

    class Double(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = torch.nn.Parameter(torch.tensor(2.0))

        def forward(self, values):
            return values * self.factor
"""


@pytest.fixture(autouse=True)
def model_dir_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])


@pytest.fixture
def base_handler() -> BaseHandler:
    from ts.torch_handler.base_handler import BaseHandler

    return BaseHandler()


@pytest.fixture
def make_context(tmp_path: Path) -> Callable[..., Context]:
    def make(headers: dict[str, Any] | None = None, config: dict[str, Any] | None = None, **entry: str) -> Context:
        manifest = {"model": {"modelName": "double", **entry}}
        context = Context("double", str(tmp_path), manifest, 1, None, "0.1.0", True, MetricsCache("double"), config)
        context.request_processor = [RequestProcessor(headers or {})]
        return context

    return make


def save_weights(path: Path, factor: float = 3.0) -> None:
    torch.save({"factor": torch.tensor(factor)}, path)


def test_an_eager_model_is_loaded_with_its_weights(
    base_handler: BaseHandler, make_context: Callable[..., Context], model: Callable[..., str], tmp_path: Path
) -> None:
    save_weights(tmp_path / "weights.pth")
    (tmp_path / "index_to_name.json").write_text(json.dumps({"0": "zero"}))
    context = make_context(modelFile=model(DOUBLE), serializedFile="weights.pth")

    base_handler.initialize(context)

    assert base_handler.initialized
    assert base_handler.mapping == {"0": "zero"}
    assert base_handler.model_pt_path == str(tmp_path / "weights.pth")
    assert (base_handler.map_location, base_handler.get_device()) == ("cpu", torch.device("cpu"))
    assert not base_handler.model.training
    assert base_handler.handle([[1.0, 2.0], [3.0, 4.0]], context) == [[3.0, 6.0], [9.0, 12.0]]


def test_a_model_leaves_its_device_to_sleep_and_comes_back_with_its_weights(
    base_handler: BaseHandler, make_context: Callable[..., Context], model: Callable[..., str], tmp_path: Path
) -> None:
    save_weights(tmp_path / "weights.pt")
    base_handler.initialize(make_context(modelFile=model(DOUBLE), serializedFile="weights.pt"))
    base_handler.device = torch.device("meta")  # in place of a GPU: it holds no values, so they come from the host
    base_handler.sleep()
    assert base_handler.model.factor.device.type == "cpu"
    assert base_handler.model.factor.item() == 3.0
    base_handler.wake()
    assert base_handler.model.factor.device.type == "meta"


def test_an_eager_model_may_come_without_weights(
    base_handler: BaseHandler, make_context: Callable[..., Context], model: Callable[..., str]
) -> None:
    context = make_context(modelFile=model(DOUBLE))
    base_handler.initialize(context)

    assert base_handler.handle([[1.0]], context) == [[2.0]]


def test_a_torchscript_model_needs_no_model_file(
    base_handler: BaseHandler, make_context: Callable[..., Context], tmp_path: Path
) -> None:
    torch.jit.trace(torch.nn.Linear(2, 2).eval(), torch.zeros(1, 2)).save(str(tmp_path / "model.pt"))
    context = make_context(serializedFile="model.pt")
    base_handler.initialize(context)

    [[first, second]] = base_handler.handle([[0.0, 1.0]], context)

    assert isinstance(first, float)
    assert isinstance(second, float)


class Code:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("unpickled",)


def test_weights_that_hold_code_are_refused_with_the_way_out(
    base_handler: BaseHandler,
    make_context: Callable[..., Context],
    model: Callable[..., str],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    torch.save({"factor": torch.tensor(3.0), "code": Code()}, tmp_path / "weights.pth")

    with pytest.raises(RuntimeError, match=r"weights\.pth holds more than weights.*handler: \{weights_only: false\}"):
        base_handler.initialize(make_context(modelFile=model(DOUBLE), serializedFile="weights.pth"))

    assert "unpickled" not in capfd.readouterr().out


class Weights(dict[str, Any]):
    """A mapping of another class than dict, as training code may save it: more than weights alone."""


def test_who_trusts_the_weights_can_say_so(
    base_handler: BaseHandler, make_context: Callable[..., Context], model: Callable[..., str], tmp_path: Path
) -> None:
    torch.save(Weights(factor=torch.tensor(3.0)), tmp_path / "weights.pth")
    files = {"modelFile": model(DOUBLE), "serializedFile": "weights.pth"}
    with pytest.raises(RuntimeError, match="weights_only: false"):
        base_handler.initialize(make_context(**files))

    context = make_context(config={"handler": {"weights_only": False}}, **files)
    base_handler.initialize(context)

    assert base_handler.handle([[1.0]], context) == [[3.0]]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({}, "neither a serialized file nor a model file"),
        ({"serializedFile": "weights.pth"}, r"weights\.pth holds weights without a model.*--model-file"),
        ({"serializedFile": "weights.safetensors"}, r"weights\.safetensors holds weights without a model"),
        ({"serializedFile": "absent.pt"}, r"the archive does not hold absent\.pt"),
        ({"serializedFile": "model.so"}, r"pt2: \{export: \{aot_compile: true\}\}"),
        ({"modelFile": "absent.py"}, r"Missing the model\.py file"),
    ],
)
def test_what_cannot_be_loaded_says_what_would_be_right(
    base_handler: BaseHandler,
    make_context: Callable[..., Context],
    tmp_path: Path,
    entry: dict[str, str],
    message: str,
) -> None:
    save_weights(tmp_path / "weights.pth")
    (tmp_path / "weights.safetensors").write_bytes(b"weights")
    (tmp_path / "model.so").write_bytes(b"code")

    with pytest.raises(RuntimeError, match=message):
        base_handler.initialize(make_context(**entry))

    assert not base_handler.initialized


def test_a_model_file_with_two_classes_is_refused(
    base_handler: BaseHandler, make_context: Callable[..., Context], model: Callable[..., str]
) -> None:
    with pytest.raises(ValueError, match="Expected only one class as model definition"):
        base_handler.initialize(make_context(modelFile=model("class A: ...\nclass B: ...")))


def test_the_handlers_time_is_reported(
    base_handler: BaseHandler, make_context: Callable[..., Context], model: Callable[..., str]
) -> None:
    context = make_context(modelFile=model(DOUBLE), config={"handler": {"profile": True}})
    base_handler.initialize(context)
    base_handler.handle([[1.0]], context)

    records = context.metrics.take_records()

    assert [record[0] for record in records] == [
        "ts_handler_preprocess",
        "ts_handler_inference",
        "ts_handler_postprocess",
        "HandlerTime",
    ]
    assert records[-1][1:3] == ["Milliseconds", "gauge"]
    assert records[-1][3] >= 0


def test_describe_and_explain_take_their_own_ways(make_context: Callable[..., Context]) -> None:
    from ts.torch_handler.base_handler import BaseHandler

    class Own(BaseHandler):
        def preprocess(self, data: Any) -> Any:
            return "prepared"

        def describe_handle(self) -> Any:
            return {"about": "me"}

        def get_insights(self, tensor_data: Any, raw: Any, target: Any) -> Any:
            return [(tensor_data, raw, target)]

    handler = Own()

    assert handler.handle([{}], make_context({"describe": "True"})) == [{"about": "me"}]
    explained = handler.handle([{"data": "raw", "target": 2}], make_context({"explain": "True"}))
    assert explained == [("prepared", "raw", 2)]
    assert handler.explain


@pytest.mark.parametrize(
    ("pt2", "options"),
    [
        (None, None),
        ("inductor", {"backend": "inductor"}),
        ({"backend": "eager", "mode": "default"}, {"backend": "eager", "mode": "default"}),
        ({"compile": {"enable": True, "backend": "eager"}}, {"backend": "eager"}),
        ({"compile": {"enable": False, "backend": "eager"}}, None),
        ({"compile": {"enable": True}}, {}),
        ({"export": {"aot_compile": True}}, None),
        ("magic", None),
    ],
)
def test_the_configuration_decides_on_compilation(pt2: Any, options: dict[str, Any] | None) -> None:
    from ts.torch_handler.computing import compile_options

    assert compile_options({} if pt2 is None else {"pt2": pt2}) == options


def test_a_compiled_model_answers_the_same(
    base_handler: BaseHandler, make_context: Callable[..., Context], model: Callable[..., str]
) -> None:
    context = make_context(modelFile=model(DOUBLE), config={"pt2": {"compile": {"enable": True, "backend": "eager"}}})
    base_handler.initialize(context)

    assert base_handler.handle([[1.0]], context) == [[2.0]]
    assert type(base_handler.model).__name__ == "OptimizedModule"


def test_the_built_in_handler_is_found_by_its_name(tmp_path: Path, model: Callable[..., str]) -> None:
    from tests.unit.ts.frontend_stub import load_message

    from ts.runtime.loader import load_service

    manifest = {"model": {"modelFile": model(DOUBLE)}}
    service = load_service(load_message(tmp_path, "base_handler", manifest=manifest))  # type: ignore[arg-type]
    service.context.request_processor = [RequestProcessor({})]

    assert service.entry_point([[1.0]], service.context) == [[2.0]]
