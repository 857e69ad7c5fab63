"""``--schema`` prints JSON Schemas that accept what the server accepts, and refuse what it refuses."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from torchserve_py.base.settings.flags import parse_flags
from torchserve_py.cli import main
from torchserve_py.tools.operator_tools.json_schemas import schemas

ROOT = Path(__file__).parents[3]


def schema(name: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["--schema", name]) == 0
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator.check_schema(printed)
    return printed


def test_the_flag_takes_every_schema() -> None:
    for name in schemas():
        assert parse_flags(["--schema", name]).schema == name


@pytest.mark.parametrize("path", sorted((ROOT / "handlers").glob("*/model-config.yaml")), ids=lambda it: it.parent.name)
def test_the_model_configs_here_are_valid(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jsonschema.validate(yaml.safe_load(path.read_text()), schema("model-config", capsys))


def test_the_metrics_configuration_here_is_valid(capsys: pytest.CaptureFixture[str]) -> None:
    jsonschema.validate(yaml.safe_load((ROOT / "configs" / "metrics.yaml").read_text()), schema("metrics", capsys))


@pytest.mark.parametrize(
    ("name", "document"),
    [
        ("model-config", {"batchSize": "4"}),
        ("model-config", {"deviceType": "tpu"}),
        ("model-config", {"truss": {"hotReload": "yes"}}),
        ("model-config", {"torchrun": {"nproc-per-node": 0}}),
        ("config.properties", {"job_queue_size": "many"}),
        ("config.properties", {"models": {"m": {"1.0": {"batchSize": "4"}}}}),
        ("metrics", {"mode": "log"}),
        ("metrics", {"ts_metrics": {"gauge": [{"unit": "s"}]}}),
        ("workflow", {"models": {"m": {"batch-size": 1}}, "dag": {}}),
        ("workflow", {"models": {"max-worker": 1}, "dag": {"f": "g"}}),
        ("truss", {"runtime": {"predict_concurrency": 0}}),
    ],
)
def test_mistakes_are_found(name: str, document: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema(name, capsys))


def test_a_workflow_is_valid(capsys: pytest.CaptureFixture[str]) -> None:
    models = {"timeout-ms": 5, "m": {"url": "m.mar", "batch-size": 4}}
    jsonschema.validate({"models": models, "dag": {"f": ["m"]}}, schema("workflow", capsys))


@pytest.mark.parametrize("name", ["config.properties", "model-config"])
def test_every_key_says_what_it_is_for(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert all(each["description"] for each in schema(name, capsys)["properties"].values())


def test_settings_are_written_as_their_types_or_as_the_file_writes_them(capsys: pytest.CaptureFixture[str]) -> None:
    found = schema("config.properties", capsys)
    values = {"job_queue_size": 5, "debug": True, "inference_address": "http://0.0.0.0:80", "model_store": "store"}
    jsonschema.validate(values, found)
    assert found["properties"]["inference_address"]["default"] == "http://127.0.0.1:8080"
    assert found["properties"]["job_queue_size"]["type"] == "integer"
    assert "log_location" not in found["properties"]
