"""`ts.handler_utils.distributed.deepspeed` and the handler for it, with a stand-in for DeepSpeed."""

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from ts.context import Context
from ts.handler_utils.distributed.deepspeed import get_ds_engine


def context(folder: Path, options: dict[str, Any] | None) -> Context:
    made = Context("big", str(folder), None, 1, None, "1.0")
    made.model_yaml_config = {"handler": {"model_path": str(folder)}}
    if options is not None:
        made.model_yaml_config["deepspeed"] = options
    return made


@pytest.fixture
def deepspeed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tells what it was called with."""
    module = types.ModuleType("deepspeed")
    module.init_inference = lambda model, **options: (model, options)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "deepspeed", module)


@pytest.mark.usefixtures("deepspeed")
def test_the_configuration_and_the_checkpoints_are_handed_on(tmp_path: Path) -> None:
    for name in ("ds.json", "b.bin", "a.pt", "readme.txt"):
        (tmp_path / name).write_text("{}")
    model, options = get_ds_engine("model", context(tmp_path, {"config": "ds.json", "checkpoint": "list.json"}))
    listed = str(tmp_path / "list.json")
    assert model == "model"
    assert options == {"config": str(tmp_path / "ds.json"), "base_dir": str(tmp_path), "checkpoint": listed}
    checkpoints = [str(tmp_path / "a.pt"), str(tmp_path / "b.bin")]
    assert json.loads(Path(listed).read_text()) == {"type": "ds_model", "checkpoints": checkpoints, "version": 1.0}


@pytest.mark.usefixtures("deepspeed")
@pytest.mark.parametrize(
    ("options", "message"), [(None, "has no map deepspeed"), ({"config": "gone.json"}, "gone.json, which is not there")]
)
def test_a_wrong_configuration_is_told(tmp_path: Path, options: dict[str, Any] | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        get_ds_engine("model", context(tmp_path, options))


def test_without_deepspeed_the_error_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(ModuleNotFoundError, match="pip install deepspeed"):
        get_ds_engine("model", context(tmp_path, {}))


@pytest.mark.torch
def test_the_handlers_device_is_its_number_in_the_worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from ts.torch_handler.distributed.base_deepspeed_handler import BaseDeepSpeedHandler  # needs PyTorch

    class Handler(BaseDeepSpeedHandler):
        pass

    monkeypatch.setenv("LOCAL_RANK", "3")
    handler = Handler()
    handler.initialize(context(tmp_path, None))
    assert handler.device == 3
