"""A model's settings: files beat the environment, and an implementation is found by its import path."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from ts.mlserver import MLModel, ModelSettings, Settings
from ts.mlserver.errors import InvalidModelURI
from ts.mlserver.settings import ModelParameters
from ts.mlserver.utils import get_model_uri
from ts.runtimes.errors import LoadError
from ts.runtimes.mlserver.load import model_settings, read_settings


class Mine(MLModel):
    pass


def write(folder: Path, **values: Any) -> Path:
    path = folder / "model-settings.json"
    path.write_text(json.dumps({"implementation": "a.B", **values}))
    return path


def test_the_environment_says_what_the_file_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLSERVER_MODEL_PLATFORM", "from_environment")
    monkeypatch.setenv("MLSERVER_MODEL_MAX_BATCH_SIZE", "7")
    monkeypatch.setenv("MLSERVER_MODEL_VERSION", "v9")
    monkeypatch.setenv("MLSERVER_SERVER_NAME", "mine")
    settings = ModelSettings.parse_file(str(write(tmp_path, max_batch_size=3, parameters={"uri": "./x"})))
    assert (settings.platform, settings.max_batch_size, settings.version) == ("from_environment", 3, "v9")
    assert Settings().server_name == "mine"


def test_a_file_dot_env_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".env").write_text("MLSERVER_MODEL_IMPLEMENTATION=from.Env\n")
    monkeypatch.chdir(tmp_path)
    assert ModelSettings(name="m").implementation_ == "from.Env"


def test_keys_of_ones_own_are_kept_among_the_parameters(tmp_path: Path) -> None:
    settings = ModelSettings.parse_file(str(write(tmp_path, parameters={"mine": [1], "extra": {"a": 1}}, unknown=1)))
    assert settings.parameters is not None
    assert (settings.parameters.mine, settings.parameters.extra) == ([1], {"a": 1})  # type: ignore[attr-defined]
    assert settings.model_dump(by_alias=True)["implementation"] == "a.B"


def test_a_pool_id_is_made_up_where_it_is_asked_for() -> None:
    assert ModelParameters(autogenerate_inference_pool_gid=True).inference_pool_gid
    assert ModelParameters().inference_pool_gid is None


def test_the_implementation_is_a_class_or_its_import_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ModelSettings(implementation=Mine).implementation_.endswith("test_settings.Mine")
    (tmp_path / "my_model_code.py").write_text("class A:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    for path in ("my_model_code.A", "my_model_code:A"):
        assert ModelSettings(implementation=path).implementation.__name__ == "A"
    with pytest.raises(ImportError, match="the module 'my_model_code' has no 'B'"):
        _ = ModelSettings(implementation="my_model_code.B").implementation
    with pytest.raises(ImportError, match="must be a module and a class"):
        _ = ModelSettings(implementation="my_model_code").implementation
    settings = ModelSettings(implementation="my_model_code.A")
    settings.implementation = Mine
    assert settings.implementation_.endswith("test_settings.Mine")


def test_without_an_implementation_there_are_no_settings() -> None:
    with pytest.raises(ValidationError):
        ModelSettings(name="m")


@pytest.mark.parametrize(
    ("uri", "found"), [("./weights", "weights/known.bin"), ("weights/other", "weights/other"), (".", ".")]
)
async def test_where_the_artifacts_are(uri: str, found: str, tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    for name in ("known.bin", "other"):
        (tmp_path / "weights" / name).touch()
    settings = ModelSettings.parse_file(str(write(tmp_path, parameters={"uri": uri})))
    assert await get_model_uri(settings, ["first.bin", "known.bin"]) == str((tmp_path / found).resolve())


async def test_artifacts_elsewhere_and_nowhere(tmp_path: Path) -> None:
    settings = ModelSettings.parse_file(str(write(tmp_path, name="m", parameters={"uri": "s3://b/x"})))
    assert await get_model_uri(settings) == "s3://b/x"
    for parameters in ({"uri": "./nothing"}, {}):
        settings = ModelSettings.parse_file(str(write(tmp_path, name="m", parameters=parameters)))
        with pytest.raises(InvalidModelURI, match="Invalid URI specified for model m") as caught:
            await get_model_uri(settings)
        assert caught.value.status_code == 422


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
