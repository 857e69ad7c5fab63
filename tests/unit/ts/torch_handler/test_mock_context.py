"""The context for handlers' own unit tests, used as TorchServe's tests of handlers use it."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ts.torch_handler.unit_tests.test_utils.mock_context import MockContext

pytestmark = pytest.mark.torch

torch = pytest.importorskip("torch")


def test_a_handler_can_be_tried_without_a_server(
    tmp_path: Path, model: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ts.torch_handler.base_handler import BaseHandler

    monkeypatch.syspath_prepend(str(tmp_path))
    torch.save({"weight": torch.tensor([[2.0]])}, tmp_path / "weights.pt")
    (tmp_path / "model-config.yaml").write_text("handler: {profile: true}")
    file = model(
        "import torch\nclass One(torch.nn.Linear):\n    def __init__(self): super().__init__(1, 1, bias=False)"
    )
    context = MockContext(
        model_pt_file="weights.pt",
        model_dir=str(tmp_path),
        model_file=file,
        gpu_id=None,
        model_yaml_config_file="model-config.yaml",
    )
    handler = BaseHandler()
    handler.initialize(context)

    assert handler.handle([[1.0], [3.0]], context) == [[2.0], [6.0]]
    assert {metric.name for metric in context.metrics.store} == {
        "ts_handler_preprocess",
        "ts_handler_inference",
        "ts_handler_postprocess",
        "HandlerTime",
    }


def test_explanations_are_asked_for_by_an_attribute() -> None:
    context = MockContext(model_file=None)

    assert context.manifest == {"model": {"modelName": "mnist", "serializedFile": "model.pt"}}
    assert context.get_request_header(0, "explain") == "False"
    context.explain = True
    assert context.get_request_header(0, "explain") == "True"
    assert context.get_request_header(0, "describe") is None


def test_it_does_not_import_torch_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")

    assert "gpu_id" not in MockContext().system_properties
    assert "torch" not in sys.modules
