"""How the container image starts the server on each platform."""

import json
from pathlib import Path

import pytest

from torchserve_py.base.settings.properties import parse_properties
from torchserve_py.tools.operator_tools.container import Start, configuration, how_to_start


def config_of(start: Start, own: Path) -> dict[str, str]:
    return {entry.key: entry.value for entry in parse_properties(configuration(start, own))}


def test_without_a_platform_the_arguments_are_the_servers(tmp_path: Path) -> None:
    own = tmp_path / "config.properties"
    own.write_text("drain_timeout=30\nallowed_urls=file://.*\\\\.mar\n")
    start = how_to_start(["--models", "all"], {})
    assert start.flags == ["--model-store", "model_store", "--models", "all"]
    assert config_of(start, own) == {"drain_timeout": "30", "allowed_urls": r"file://.*\.mar"}


def test_sagemaker_serves_one_model(tmp_path: Path) -> None:
    (tmp_path / "handler.py").touch()
    environ = {"SM_MODEL_DIR": str(tmp_path), "SAGEMAKER_BIND_TO_PORT": "8000"}
    start = how_to_start(["serve"], environ)
    assert start.flags == ["--model-store", "model_store", "--models", f"model={tmp_path}"]
    assert start.overrides["inference_address"] == start.overrides["management_address"] == "http://[::]:8000"


def test_sagemaker_serves_several_models(tmp_path: Path) -> None:
    start = how_to_start(["serve"], {"SAGEMAKER_MULTI_MODEL": "true"})
    assert start.flags == ["--model-store", "model_store"]
    assert start.overrides["enable_model_api"] == "true"


def test_sagemakers_variables_are_settings(tmp_path: Path) -> None:
    (tmp_path / "model.pt").touch()
    environ = {
        "SM_MODEL_DIR": str(tmp_path),
        "SAGEMAKER_MODEL_SERVER_WORKERS": "3",
        "SAGEMAKER_MODEL_SERVER_TIMEOUT": "20",
        "SAGEMAKER_MAX_PAYLOAD_IN_MB": "1024",
        "SAGEMAKER_TS_BATCH_SIZE": "4",
        "SAGEMAKER_TS_MAX_WORKERS": "",
    }
    overrides = how_to_start(["serve"], environ).overrides
    assert overrides["default_workers_per_model"] == "3"
    assert overrides["default_response_timeout"] == "20"
    assert overrides["max_request_size"] == overrides["max_response_size"] == str(1 << 30)
    assert json.loads(overrides["models"]) == {"model": {"1.0": {"batchSize": 4}}}


@pytest.mark.parametrize("value", ["0", "many", "-1", "1.5"])
def test_a_variable_of_sagemakers_that_is_no_number_is_refused(tmp_path: Path, value: str) -> None:
    environ = {"SAGEMAKER_MULTI_MODEL": "true", "SAGEMAKER_MODEL_SERVER_WORKERS": value}
    with pytest.raises(ValueError, match=f"SAGEMAKER_MODEL_SERVER_WORKERS is '{value}', it must be a whole number"):
        how_to_start(["serve"], environ)


def test_archives_are_a_model_store(tmp_path: Path) -> None:
    (tmp_path / "a.mar").touch()
    start = how_to_start(["serve"], {"SM_MODEL_DIR": str(tmp_path)})
    assert start.flags == ["--model-store", str(tmp_path), "--models", "all"]


@pytest.mark.parametrize(
    ("files", "models"),
    [
        (["resnet-50.tar.gz"], ["iris=resnet-50.tar.gz"]),
        (["a-b.tar.gz", "c.zip", "d.tgz"], ["a_b=a-b.tar.gz", "c=c.zip", "d=d.tgz"]),
        (["one/handler.py", "two/model.pt", "three.zip", ".cache/x"], ["one=one", "three=three.zip", "two=two"]),
        # These are one model, whose own files they are.
        (["one/handler.py"], None),
        (["handler.py", "data.zip"], None),
        (["code/inference.py", "weights/model.pt"], None),
        (["MAR-INF/MANIFEST.json", "handlers/handler.py"], None),
        (["model.pt", "data.tar.gz"], None),
        (["model-settings.json", "data/a", "more/b"], None),
    ],
)
def test_a_folder_of_models_is_told_from_a_model(tmp_path: Path, files: list[str], models: list[str] | None) -> None:
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    (tmp_path / "lost+found").mkdir()
    flags = list(how_to_start(["--model_name=iris", f"--model_dir={tmp_path}"], {}).flags)
    alone = ["--model-store", "model_store", "--models", f"iris={tmp_path}"]
    assert flags == (alone if models is None else ["--model-store", str(tmp_path), "--models", *models])


@pytest.mark.parametrize(
    ("files", "handler"),
    [
        (["model.pt", "README.md"], "base_handler"),
        (["model.pt2"], "base_handler"),
        (["model.pt", "handler.py"], None),
        (["model.pt", "model-settings.json"], None),
        (["model.joblib"], None),
    ],
)
def test_at_kserve_the_base_handler_runs_weights_alone(tmp_path: Path, files: list[str], handler: str | None) -> None:
    for file in files:
        (tmp_path / file).touch()
    assert how_to_start([f"--model_dir={tmp_path}"], {}).defaults.get("default_service_handler") == handler


def test_no_model_is_told_with_the_place(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"{tmp_path}/x has no model"):
        how_to_start(["serve"], {"SM_MODEL_DIR": str(tmp_path / "x")})


def test_vertex_gets_its_routes_and_does_not_repeat_those_that_are_there(tmp_path: Path) -> None:
    own = tmp_path / "config.properties"
    own.write_text("service_envelope=body\n")
    start = how_to_start(["--models", "all"], {"AIP_HTTP_PORT": "9000", "AIP_PREDICT_ROUTE": "/v1/endpoints/1:predict"})
    assert config_of(start, own) == {
        "service_envelope": "body",
        "inference_address": "http://[::]:9000",
        "disable_token_authorization": "true",
        "allowed_hosts": "*",
        "predict_route": "/v1/endpoints/1:predict",
    }
    routes = {"AIP_HEALTH_ROUTE": "/ping", "AIP_PREDICT_ROUTE": "/predictions/m"}
    start = how_to_start([], {"AIP_HTTP_PORT": "8080", **routes})
    assert not {"health_route", "predict_route"} & set(start.overrides)


def test_azure_serves_what_was_registered(tmp_path: Path) -> None:
    folder = tmp_path / "doubler"
    (folder / "code").mkdir(parents=True)
    start = how_to_start(["--workers", "2"], {"AZUREML_MODEL_DIR": str(tmp_path)})
    assert start.flags == ["--model-store", "model_store", "--models", f"model={folder}", "--workers", "2"]
    (folder / "a.mar").touch()
    start = how_to_start([], {"AZUREML_MODEL_DIR": str(tmp_path)})
    assert start.flags == ["--model-store", str(folder), "--models", "all"]
    with pytest.raises(ValueError, match=f"{tmp_path}/none has no model"):
        how_to_start([], {"AZUREML_MODEL_DIR": str(tmp_path / "none")})


def test_vertex_is_told_that_artifacts_are_not_downloaded() -> None:
    with pytest.raises(ValueError, match="'gs://bucket/model', but this image does not download models"):
        how_to_start([], {"AIP_HTTP_PORT": "8080", "AIP_STORAGE_URI": "gs://bucket/model"})


def test_kserve_with_a_configuration_keeps_all_of_it_but_the_address(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    config = tmp_path / "config" / "config.properties"
    config.write_text(
        "inference_address=http://0.0.0.0:8085\ngrpc_inference_port=7070\nmodel_snapshot={}\nallowed_hosts=m.example\n"
    )
    start = how_to_start([f"--model_dir={tmp_path}"], {})
    assert start.flags == ["--model-store", str(tmp_path / "model-store")]
    assert config_of(start, tmp_path / "none") == {
        "inference_address": "http://[::]:8080",
        "grpc_inference_port": "7070",
        "model_snapshot": "{}",
        "grpc_inference_address": "::",
        "disable_token_authorization": "true",
        "allowed_hosts": "m.example",
    }


def test_kserve_without_a_configuration_serves_what_lies_there(tmp_path: Path) -> None:
    (tmp_path / "model.joblib").touch()
    start = how_to_start(["--model_name=iris", f"--model_dir={tmp_path}", "--grpc_port=9000", "--dt"], {})
    assert start.flags == ["--model-store", "model_store", "--models", f"iris={tmp_path}", "--dt"]
    assert start.overrides["grpc_inference_port"] == "9000"


@pytest.mark.parametrize(("variables", "envelope"), [({}, "kserve"), ({"TS_SERVICE_ENVELOPE": "kservev2"}, "kservev2")])
def test_kserve_without_a_configuration_names_the_envelope(
    tmp_path: Path, variables: dict[str, str], envelope: str
) -> None:
    (tmp_path / "handler.py").touch()
    assert how_to_start([f"--model_dir={tmp_path}"], variables).defaults["service_envelope"] == envelope


def test_kserves_own_runtime_keeps_its_arguments(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    config = tmp_path / "config" / "config.properties"
    config.write_text("inference_address=http://0.0.0.0:8085\nmetrics_address=http://0.0.0.0:8082\n")
    arguments = ["torchserve", "--start", "--model-store=/mnt/models/model-store", f"--ts-config={config}"]
    start = how_to_start(arguments, {"PROTOCOL_VERSION": "v1"})
    assert start.flags == ["--model-store", str(tmp_path / "model-store")]
    settings = config_of(start, tmp_path / "none")
    assert settings["inference_address"] == "http://[::]:8080"
    assert (settings["grpc_inference_address"], settings["grpc_inference_port"]) == ("::", "8081")
    assert settings["metrics_address"] == "http://0.0.0.0:8082"


def test_platforms_route_by_names_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "handler.py").touch()
    sagemaker = {"SM_MODEL_DIR": str(tmp_path)}
    several = {"SAGEMAKER_MULTI_MODEL": "true"}
    starts = [
        how_to_start(["serve"], sagemaker),
        how_to_start(["serve"], several),
        how_to_start([], {"AIP_HTTP_PORT": "9000"}),
        how_to_start([f"--model_dir={tmp_path}"], {}),
    ]
    assert [config_of(start, tmp_path / "none")["allowed_hosts"] for start in starts] == ["*"] * 4


@pytest.mark.parametrize("port", ["x", "-1", "0", "70000", "80\nenable_model_api=true"])
@pytest.mark.parametrize("name", ["AIP_HTTP_PORT", "SAGEMAKER_BIND_TO_PORT", "--http_port", "--grpc_port"])
def test_what_is_no_port_is_named(tmp_path: Path, name: str, port: str) -> None:
    (tmp_path / "handler.py").touch()
    environ = {"SM_MODEL_DIR": str(tmp_path), "AIP_HTTP_PORT": "", name: port}
    flags = [f"--model_dir={tmp_path}", f"{name}={port}"] if name.startswith("-") else []
    arguments = ["serve"] if name.startswith("SAGEMAKER") else flags
    with pytest.raises(ValueError, match=rf"{name} is .*, it must be a port"):
        how_to_start(arguments, environ)


def test_arguments_are_obeyed_or_refused() -> None:
    arguments = ["--models", "one.mar"]
    assert list(how_to_start(arguments, {"AIP_HTTP_PORT": "9000"}).flags)[-2:] == arguments
    assert list(how_to_start([], {"AIP_HTTP_PORT": "9000"}).flags)[-2:] == ["--models", "all"]
    with pytest.raises(ValueError, match="serve takes no arguments"):
        how_to_start(["serve", *arguments], {"AIP_HTTP_PORT": "9000"})


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "127.0.0.1", "models.example"])
def test_kserve_leaves_the_management_api_to_the_container(tmp_path: Path, host: str) -> None:
    (tmp_path / "config").mkdir()
    config = tmp_path / "config" / "config.properties"
    config.write_text(f"inference_address=http://{host}:8085\nmanagement_address=http://{host}:8085\n")
    start = how_to_start([f"--model_dir={tmp_path}"], {})
    assert start.overrides["management_address"] == "http://127.0.0.1:8085"
