"""An MLServer model's settings files: what the server makes of them, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest

from torchserve_py.contracts.mlserver.mlserver_contract import configure
from torchserve_py.core.plans.config import InvalidModelConfig, ModelConfig
from torchserve_py.core.plans.contracts import Configured


def configured(tmp_path: Path, settings: Any, server: Any = None, yaml: ModelConfig | None = None) -> Configured:
    settings = {"implementation": "model.Mine", **settings} if isinstance(settings, dict) else settings
    for name, values in (("model-settings.json", settings), ("settings.json", server)):
        if values is not None:
            (tmp_path / name).write_text(values if isinstance(values, str) else json.dumps(values))
    return configure(tmp_path, yaml or ModelConfig())


def refused(tmp_path: Path, settings: Any, server: Any = None) -> str:
    with pytest.raises(InvalidModelConfig) as caught:
        configured(tmp_path, settings, server)
    return str(caught.value)


def test_name_and_version_are_those_of_the_file(tmp_path: Path) -> None:
    result = configured(tmp_path, {"name": "sum", "parameters": {"version": "v1.2"}})
    assert (result.name, result.version) == ("sum", "v1.2")
    result = configured(tmp_path, {})
    assert (result.name, result.version, result.config.warnings) == (None, None, ())


def test_the_environment_says_what_the_file_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLSERVER_MODEL_NAME", "other")
    monkeypatch.setenv("MLSERVER_MODEL_VERSION", "v2")
    monkeypatch.setenv("MLSERVER_MODEL_IMPLEMENTATION", "a.B")
    monkeypatch.setenv("MLSERVER_PARALLEL_WORKERS", "3")
    result = configured(tmp_path, {"implementation": None, "name": "mine"})
    assert (result.name, result.version, result.config.min_workers) == ("mine", "v2", 3)
    assert configured(tmp_path, {}, {"parallel_workers": 2}).config.min_workers == 2
    monkeypatch.setenv("MLSERVER_PARALLEL_WORKERS", "many")
    assert "MLSERVER_PARALLEL_WORKERS: the variable is 'many'" in refused(tmp_path, {}, {})


@pytest.mark.parametrize(("server", "workers"), [(None, 1), ({}, 1), ({"parallel_workers": 4}, 4)])
def test_parallel_workers_are_workers(server: Any, workers: int, tmp_path: Path) -> None:
    assert configured(tmp_path, {}, server).config.min_workers == workers


def test_no_parallel_workers_are_one_worker(tmp_path: Path) -> None:
    assert configured(tmp_path, {}, {"parallel_workers": 0}).config.min_workers == 1


def test_model_config_yaml_wins(tmp_path: Path) -> None:
    server = {"parallel_workers": 4}
    assert configured(tmp_path, {}, server, ModelConfig(min_workers=2)).config.min_workers == 2
    assert configured(tmp_path, {}, server, ModelConfig(max_workers=2)).config.min_workers is None


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ("{", "model-settings.json: the file cannot be used: no valid JSON"),
        ("[]", "model-settings.json: the file cannot be used: no JSON object but a list"),
        ({"implementation": None}, "implementation is missing, it must be a module and a class in it"),
        ({"implementation": "Model"}, "implementation is 'Model' (str), it must be a module and a class in it"),
        ({"max_batch_size": "many"}, "max_batch_size is 'many' (str), it must be an integer from 0"),
        ({"max_batch_size": 1.5}, "max_batch_size is 1.5 (float), it must be an integer from 0"),
        ({"max_batch_size": "-1"}, "max_batch_size is '-1' (str), it must be an integer from 0"),
        ({"cache_enabled": "maybe"}, "cache_enabled is 'maybe' (str), it must be true or false"),
        ({"max_batch_time": -1}, "max_batch_time is -1 (int), it must be a number of seconds from 0"),
        ({"parameters": []}, "parameters is [] (list), it must be an object"),
        ({"parameters": {"version": 1}}, "parameters.version is 1 (int), it must be a text"),
        (
            {"inputs": [{"name": "x", "datatype": [], "shape": [1]}]},
            "inputs[0].datatype is [] (list), it must be one of BF16, BOOL",
        ),
        ({"inputs": [3]}, "inputs[0] is 3 (int), it must be an object with name, datatype and shape"),
        ({"outputs": [{"datatype": "FP32", "shape": [1]}]}, "outputs[0].name is missing"),
        (
            {"inputs": [{"name": "x", "datatype": "FLOAT", "shape": [1]}]},
            "inputs[0].datatype is 'FLOAT' (str), it must be one of BF16, BOOL",
        ),
        (
            {"inputs": [{"name": "x", "datatype": "FP32", "shape": [-2]}]},
            "inputs[0].shape is [-2] (list), it must be a list of integers from -1 (any size)",
        ),
    ],
)
def test_a_wrong_value_is_named(settings: Any, problem: str, tmp_path: Path) -> None:
    message = refused(tmp_path, settings)
    assert message.startswith("model-settings.json: ")
    assert problem in message


def test_all_wrong_values_are_named_at_once(tmp_path: Path) -> None:
    message = refused(tmp_path, {"name": 1, "versions": [1]})
    assert "name is 1" in message
    assert "versions is [1]" in message


def test_the_servers_file_is_checked_too(tmp_path: Path) -> None:
    assert refused(tmp_path, {}, {"parallel_workers": -1}).startswith("settings.json: parallel_workers is -1 (int)")


#: The `settings.json` of the examples in MLServer's documentation; most model folders there have this one.
DOCUMENTED_SERVER_SETTINGS = '{\n    "debug": "true"\n}\n'


def test_values_are_read_as_mlserver_reads_them(tmp_path: Path) -> None:
    pytest.importorskip("mlserver")
    from mlserver.settings import ModelSettings, Settings

    model = {
        "name": "mnist-svm",
        "implementation": "mlserver_sklearn.SKLearnModel",
        "max_batch_size": "8",
        "max_batch_time": "0.5",
        "cache_enabled": "off",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": ["-1", 64]}],
        "parameters": {"uri": "./mnist-svm.joblib", "version": "v0.1.0"},
    }
    server = {"debug": "true", "parallel_workers": "2", "cache_size": "16", "use_structured_logging": 1}
    theirs = ModelSettings(**model)
    assert (theirs.max_batch_size, theirs.max_batch_time, theirs.cache_enabled) == (8, 0.5, False)
    assert Settings(**server).parallel_workers == 2
    result = configured(tmp_path, model, server)
    assert (result.name, result.version, result.config.min_workers) == ("mnist-svm", "v0.1.0", 2)
    assert result.config.warnings == ()


def test_the_settings_of_mlservers_documentation_are_fine(tmp_path: Path) -> None:
    assert configured(tmp_path, {}, DOCUMENTED_SERVER_SETTINGS).config.warnings == ()


def test_what_has_no_effect_is_a_warning(tmp_path: Path) -> None:
    settings = {"colour": 1, "parameters": {"environment_tarball": "./e.tgz", "own": 1}, "max_batch_size": 8}
    warnings = configured(tmp_path, settings, {"http_port": 1, "flavour": 2, "debug": True}).config.warnings
    assert [warning.partition(" has no effect")[0] for warning in warnings[:4]] == [
        "model-settings.json: colour is unknown and",
        "model-settings.json, parameters: environment_tarball",
        "settings.json: http_port",
        "settings.json: flavour is unknown and",
    ]
    assert "max_batch_size is 8 and max_batch_time is 0" in warnings[4]
    assert len(warnings) == 5


def in_store(tmp_path: Path, shared: Any, own: Any = None) -> Configured:
    (tmp_path / "settings.json").write_text(json.dumps(shared))
    folder = tmp_path / "models" / "sum"
    folder.mkdir(parents=True, exist_ok=True)
    configured(folder, {}, own)
    return configure(folder, ModelConfig(), tmp_path)


def test_the_file_of_the_model_store_is_for_all_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLSERVER_PARALLEL_WORKERS", "5")
    (tmp_path / "logging.json").touch()
    shared = {
        "server_name": "here",
        "parallel_workers": 3,
        "cache_enabled": "on",
        "cache_size": 7,
        "debug": False,
        "logging_settings": "logging.json",
        "http_port": 1,
    }
    result = in_store(tmp_path, shared)
    assert result.config.min_workers == 3
    assert result.environment == {
        "MLSERVER_SERVER_NAME": "here",
        "MLSERVER_CACHE_ENABLED": "true",
        "MLSERVER_CACHE_SIZE": "7",
        "MLSERVER_DEBUG": "false",
        "MLSERVER_LOGGING_SETTINGS": str((tmp_path / "logging.json").resolve()),
    }
    assert result.config.warnings == ()
    (warning,) = result.shared_warnings
    assert warning.startswith("settings.json of the model store: http_port has no effect: it is about MLServer's own")
    assert in_store(tmp_path, shared, {"parallel_workers": 2}).config.min_workers == 2


def test_a_wrong_value_of_the_model_stores_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidModelConfig, match=r"settings\.json of the model store: cache_size is -1"):
        in_store(tmp_path, {"cache_size": -1})


def test_the_file_of_a_model_that_is_the_store_is_its_own(tmp_path: Path) -> None:
    configured(tmp_path, {}, {"http_port": 1, "server_name": "mine"})
    result = configure(tmp_path, ModelConfig(), tmp_path)
    assert (len(result.config.warnings), result.shared_warnings, result.environment) == (1, [], {})


def test_kafka_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    message = refused(tmp_path, {}, {"kafka_enabled": True})
    assert message.startswith("settings.json: kafka_enabled is true, but Kafka is not supported")
    store = tmp_path / "store"
    store.mkdir()
    with pytest.raises(InvalidModelConfig, match=r"settings\.json of the model store: kafka_enabled is true"):
        in_store(store, {"kafka_enabled": 1})
    monkeypatch.setenv("MLSERVER_KAFKA_ENABLED", "true")
    assert refused(tmp_path, {}, {}).startswith("MLSERVER_KAFKA_ENABLED: kafka_enabled is true")
    warnings = configured(tmp_path, {}, {"kafka_enabled": False, "kafka_servers": "a:1"}).config.warnings
    assert warnings == ("settings.json: kafka_servers has no effect: Kafka is not supported",)


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("http_port", "MLServer's own listeners"),
        ("model_repository_root", "--models"),
        ("load_models_at_startup", "--models"),
        ("tracing_server", "traces in config.properties"),
        ("gzip_enabled", "response_compression_min_size"),
        ("parallel_workers_timeout", "drain_timeout"),
        ("environments_dir", "useVenv"),
        ("metrics_dir", "this server's own"),
    ],
)
def test_the_reason_why_a_key_has_no_effect_is_its_own(key: str, reason: str, tmp_path: Path) -> None:
    (warning,) = configured(tmp_path, {}, {key: "x"}).config.warnings
    assert warning.startswith(f"settings.json: {key} has no effect: ")
    assert reason in warning


def test_every_key_of_mlservers_settings_is_known(tmp_path: Path) -> None:
    settings = pytest.importorskip("mlserver.settings").Settings
    given = {name: field.default for name, field in settings.model_fields.items()}
    given = json.loads(json.dumps(given, default=str))
    warnings = configured(tmp_path, {}, {**given, "debug": True}).config.warnings
    assert not [each for each in warnings if "unknown" in each]
