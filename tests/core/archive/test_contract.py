"""How a model's contract is told by its files."""

import json
from pathlib import Path

import pytest

from torchserve_py.core.archive.contracts import contract_of
from torchserve_py.core.archive.model_files import open_model


@pytest.mark.parametrize(
    ("names", "contract"),
    [
        ({"handler.py", "model.pt"}, "torchserve"),
        ({"handler.py", "config.yaml"}, "torchserve"),
        ({"config.yaml", "model"}, "truss"),
        ({"model-settings.json", "my_handler.py"}, "mlserver"),
        ({"model-settings.json", "config.yaml"}, "mlserver"),
        ({"model.pt"}, "sagemaker"),
        ({"weights.pt2", "config.txt"}, "sagemaker"),
        ({"model.pt", "model.py"}, "torchserve"),
        ({"notes.txt"}, "torchserve"),
        ({"code/inference.py", "model.pt"}, "sagemaker"),
        ({"inference.py"}, "sagemaker"),
        ({"inference.py", "handler.py"}, "torchserve"),
        ({"inference.py", "model-settings.json"}, "mlserver"),
    ],
)
def test_the_files_of_a_folder_tell(names: set[str], contract: str) -> None:
    assert contract_of(names) == contract


def test_a_script_is_left_to_the_default_handler(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "inference.py").touch()
    opened = open_model(tmp_path, tmp_path)
    assert (opened.contract, opened.model_dir) == ("sagemaker", tmp_path)
    assert open_model(tmp_path, tmp_path, has_default_handler=True).contract == "torchserve"


def test_a_manifest_that_names_a_handler_makes_it_a_torchserve_model(tmp_path: Path) -> None:
    (tmp_path / "MAR-INF").mkdir()
    manifest = {"model": {"modelName": "m", "handler": "h.py", "modelVersion": "1"}}
    (tmp_path / "MAR-INF" / "MANIFEST.json").write_text(json.dumps(manifest))
    (tmp_path / "model-settings.json").write_text("{}")
    assert open_model(tmp_path, tmp_path).contract == "torchserve"


def test_so_does_a_handler_that_the_registration_names(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("")
    (tmp_path / "model").mkdir()
    assert open_model(tmp_path, tmp_path).contract == "truss"
    assert open_model(tmp_path, tmp_path, handler="module:function").contract == "torchserve"
