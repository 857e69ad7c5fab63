"""Files of configuration as TorchServe's image and SageMaker's toolkit have them: the server starts with each."""

from pathlib import Path

import pytest

from torchserve_py.base.settings.addresses import Address
from torchserve_py.base.settings.flags import parse_flags
from torchserve_py.base.settings.model_spec import ModelSpec
from torchserve_py.base.settings.resolution import Resolution

#: docker/config.properties of TorchServe's images, with the folders of a test.
IMAGE = """\
inference_address=http://0.0.0.0:8080
management_address=http://0.0.0.0:8081
metrics_address=http://0.0.0.0:8082
number_of_netty_threads=32
job_queue_size=1000
model_store={home}/model-store
workflow_store={home}/wf-store
"""

#: etc/default-ts.properties of sagemaker-pytorch-inference 2.0.25; it has no line break at its end.
SAGEMAKER_DEFAULT = """\
# Based on https://github.com/pytorch/serve/blob/master/docs/configuration.md
vmargs=-XX:-UseContainerSupport
enable_envvars_config=true
decode_input_request=false
load_models=ALL
disable_token_authorization=true
enable_model_api=true"""

#: etc/mme-ts.properties, for endpoints with several models.
SAGEMAKER_MULTI_MODEL = """\
vmargs=-XX:-UseContainerSupport
enable_envvars_config=true
model_store=/
default_service_handler=$$SAGEMAKER_HANDLER$$
default_workers_per_model=1
async_logging=true
decode_input_request=false
disable_token_authorization=true
enable_model_api=true"""

#: What the toolkit's torchserve.py appends to either.
SAGEMAKER_APPENDED = """\
default_response_timeout=60
default_workers_per_model=2
inference_address=http://0.0.0.0:8080
management_address=http://0.0.0.0:8080
default_service_handler=sagemaker_pytorch_serving_container.handler_service:handle
"""


def resolved(home: Path, text: str, *argv: str, **environ: str) -> Resolution:
    (home / "ts.properties").write_text(text)
    return Resolution(parse_flags(["--ts-config", "ts.properties", *argv]), environ, home)


def test_torchserves_image_needs_no_workflow_store(tmp_path: Path) -> None:
    (tmp_path / "model-store").mkdir()
    resolution = resolved(tmp_path, IMAGE.format(home=tmp_path))
    assert not resolution.errors
    assert resolution.effective["workflow_store"].value == tmp_path / "wf-store"
    assert (
        f"ts.properties:7: workflow_store = {tmp_path}/wf-store: there is no such directory; workflows cannot be"
        " registered until there is"
    ) in resolution.warnings

    (tmp_path / "wf-store").mkdir()
    assert not any("workflow_store" in warning for warning in resolved(tmp_path, IMAGE.format(home=tmp_path)).warnings)


def test_a_missing_workflow_store_of_the_command_line_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "model-store").mkdir()
    resolution = resolved(tmp_path, IMAGE.format(home=tmp_path), "--workflow-store", "no")
    assert resolution.errors == ["--workflow-store directory not found: no"]


@pytest.mark.parametrize("file", [SAGEMAKER_DEFAULT, SAGEMAKER_MULTI_MODEL])
def test_what_sagemakers_toolkit_appends_without_a_line_break_is_read_as_meant(tmp_path: Path, file: str) -> None:
    (tmp_path / "store").mkdir()
    argv = ("--model-store", "store", "--log-config", "ts.properties", "--models", "model=/")
    resolution = resolved(tmp_path, file + SAGEMAKER_APPENDED, *argv, SAGEMAKER_HANDLER="module:handle")
    assert not resolution.errors
    settings = resolution.settings()
    assert settings.enable_model_api
    assert settings.default_response_timeout == 60
    assert settings.default_workers_per_model == 2
    assert settings.inference_address == settings.management_address == Address("http", "0.0.0.0", 8080)
    assert settings.default_service_handler == "sagemaker_pytorch_serving_container.handler_service:handle"
    assert settings.load_models == (ModelSpec("model", "/"),)
    line = len(file.splitlines())
    assert resolution.effective["default_response_timeout"].origin == f"ts.properties:{line}"
    assert (
        f"ts.properties:{line}: a line break is missing between enable_model_api=true and default_response_timeout;"
        " both are read as if there were one"
    ) in resolution.warnings


@pytest.mark.parametrize("value", ["truenonsense=1", "truedebug", "yesdebug=true"])
def test_other_text_behind_a_boolean_is_a_mistake(tmp_path: Path, value: str) -> None:
    (tmp_path / "store").mkdir()
    resolution = resolved(tmp_path, f"enable_model_api={value}", "--model-store", "store")
    assert resolution.errors == [
        f"Invalid configuration: ts.properties:1: enable_model_api = {value}: it must be true or false"
    ]
