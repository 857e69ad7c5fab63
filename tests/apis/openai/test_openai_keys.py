"""Which models have OpenAI's interface."""

import pytest

from torchserve_py.apis.openai.openai_keys import OpenAIKeys
from torchserve_py.base.settings.schemas.yaml_mapping import parse_yaml_mapping
from torchserve_py.core.plans.config import parse_model_config


@pytest.mark.parametrize(
    ("yaml", "openai"),
    [
        ("{}", None),
        ("openai: true", True),
        ("handler: {vllm_engine_config: {}}", True),
        ("{handler: {vllm_engine_config: {}}, openai: false}", False),
        ("handler: {model_path: x}", None),
        ("handler: null", None),
    ],
)
def test_a_handler_that_runs_vllm_answers_openais_requests(yaml: str, openai: bool | None) -> None:
    assert parse_model_config(parse_yaml_mapping(yaml.encode())).plugin_keys.of(OpenAIKeys).openai is openai


@pytest.mark.parametrize(
    ("yaml", "names"),
    [
        ("{openai: true, openaiModels: [a, b]}", ["a", "b"]),
        ("{openai: true}", None),
        ("handler: {vllm_engine_config: {served_model_name: llama}, adapters: {mine: x}}", ["llama", "mine"]),
        ("handler: {vllm_engine_config: {served_model_name: [a, b]}}", ["a", "b"]),
        ("{handler: {vllm_engine_config: {}}, openaiModels: ['*']}", ["*"]),
    ],
)
def test_the_names_of_a_model(yaml: str, names: list[str] | None) -> None:
    assert parse_model_config(parse_yaml_mapping(yaml.encode())).plugin_keys.of(OpenAIKeys).openai_models == names
