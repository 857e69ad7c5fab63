"""A model's settings are read from its folder, and a file that is wrong is named."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ts.contracts.mlserver.load_mlserver import model_settings, read_settings
from ts.jobs.errors import LoadError


def write(folder: Path, **values: Any) -> Path:
    path = folder / "model-settings.json"
    path.write_text(json.dumps({"implementation": "a.B", **values}))
    return path


def test_a_loaded_model_is_called_what_it_is_registered_as(tmp_path: Path) -> None:
    write(tmp_path, name="other")
    settings = model_settings(tmp_path, "mine")
    assert settings.name == "mine"
    assert settings.parameters is not None
    assert settings.parameters.uri == str(tmp_path)
    assert read_settings(tmp_path).server_name == "mlserver"


@pytest.mark.parametrize(
    ("text", "problem"),
    [("{", "model-settings.json: "), ('{"implementation": "a.B", "inputs": 3}', "model-settings.json: inputs is 3: ")],
)
def test_a_file_that_is_wrong_is_named(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "model-settings.json").write_text(text)
    with pytest.raises(LoadError) as caught:
        model_settings(tmp_path, "mine")
    assert problem in str(caught.value)


def test_the_servers_settings_are_checked_too(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text('{"debug": "maybe"}')
    with pytest.raises(LoadError, match=r"settings.json: debug is 'maybe'"):
        read_settings(tmp_path)


def test_a_worker_without_mlserver_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "ts.contracts.mlserver.load_mlserver")
    with pytest.raises(LoadError, match=r"pip install 'torchserve-py\[mlserver\]'"):
        importlib.import_module("ts.contracts.mlserver.load_mlserver")
