"""A Truss's `config.yaml`: what the server makes of it, and what it refuses."""

from pathlib import Path

import pytest

from torchserve_py.base.settings.schemas.yaml_mapping import YamlMapping
from torchserve_py.contracts.truss.truss_contract import configure
from torchserve_py.core.plans.config import InvalidModelConfig, ModelConfig, parse_model_config
from torchserve_py.core.plans.contracts import Configured


def truss(tmp_path: Path, config: str, *, class_file: str = "model/model.py") -> Path:
    folder = tmp_path / "mine"
    (folder / class_file).parent.mkdir(parents=True)
    (folder / class_file).write_text("class Model: ...\n")
    (folder / "config.yaml").write_text(config)
    return folder


def configured(tmp_path: Path, config: str, yaml: ModelConfig | None = None) -> Configured:
    return configure(truss(tmp_path, config), yaml or ModelConfig())


def refused(folder: Path) -> str:
    with pytest.raises(InvalidModelConfig) as caught:
        configure(folder, ModelConfig())
    return str(caught.value)


def test_an_empty_file_makes_one_worker_without_a_gpu(tmp_path: Path) -> None:
    result = configured(tmp_path, "")
    assert (result.config.min_workers, result.config.device_type) == (1, "cpu")
    assert (result.config.response_timeout, result.config.startup_timeout) == (3600, 1800)
    assert result.config.response_timeout == 3600
    assert (result.requirements, result.environment) == ((), {})


def test_model_config_yaml_wins(tmp_path: Path) -> None:
    yaml = ModelConfig(min_workers=2, startup_timeout=7, response_timeout=8, device_type="gpu")
    text = "runtime: {health_checks: {startup_threshold_seconds: 900}}\nresources: {accelerator: 'A10G:2'}\n"
    config = configured(tmp_path, text, yaml).config
    assert (config.min_workers, config.startup_timeout, config.response_timeout) == (2, 7, 8)
    assert (config.device_type, config.parallel_level) == ("gpu", None)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (3, "truss is 3 (int), it must be a map, for example {cancelOnDisconnect: true}"),
        ({"other": 1}, "truss.other is not known; known are cancelOnDisconnect"),
        ({"cancelOnDisconnect": 1}, "truss.cancelOnDisconnect is 1 (int), it must be true or false"),
        ({"streamErrors": "hide"}, "truss.streamErrors is 'hide' (str), it must be abort or end"),
        ({"aliasConcurrency": 0}, "truss.aliasConcurrency is 0 (int), it must be an integer from 1"),
        ({"hotReload": "yes"}, "truss.hotReload is 'yes' (str), it must be true or false"),
    ],
)
def test_wrong_options_are_refused_before_the_model_is_loaded(options: object, problem: str) -> None:
    with pytest.raises(InvalidModelConfig) as caught:
        parse_model_config(YamlMapping({"truss": options}, {}), contract="truss")
    assert str(caught.value).startswith("model-config.yaml: ")
    assert problem in str(caught.value)


def test_only_a_most_number_of_workers_leaves_the_least_open(tmp_path: Path) -> None:
    assert configured(tmp_path, "", ModelConfig(max_workers=3)).config.min_workers is None


@pytest.mark.parametrize(("accelerator", "gpus"), [("A10G", 1), ("H100:4", 4), ('""', None), ("null", None)])
def test_a_worker_gets_the_gpus_that_are_asked_for(accelerator: str, gpus: int | None, tmp_path: Path) -> None:
    config = configured(tmp_path, f"resources: {{accelerator: {accelerator}}}\n").config
    assert config.parallel_level == gpus
    assert config.device_type == ("cpu" if gpus is None else "gpu")


def test_the_startup_threshold_is_the_limit_for_loading(tmp_path: Path) -> None:
    text = "runtime: {health_checks: {startup_threshold_seconds: 900}}\n"
    assert configured(tmp_path, text).config.startup_timeout == 900


def test_variables_become_texts(tmp_path: Path) -> None:
    text = "environment_variables: {A: true, B: 1, C: x, D: null}\n"
    assert configured(tmp_path, text).environment == {"A": "true", "B": "1", "C": "x"}


def test_of_a_key_that_is_given_twice_the_last_counts_and_the_log_tells(tmp_path: Path) -> None:
    result = configured(tmp_path, "requirements: [a]\nrequirements: [b]\n")
    assert result.requirements == ("b",)
    assert result.config.warnings == ("line 2: requirements is already given on line 1",)


def test_a_target_below_the_slots_is_told(tmp_path: Path) -> None:
    result = configured(tmp_path, "runtime: {predict_concurrency: 9}\n", ModelConfig(concurrency_target=3))
    assert "concurrencyTarget is 3" in result.config.warnings[0]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "external_data: [{url: 'https://a/b', local_data_path: b}]",
            "external_data has no effect: nothing is fetched",
        ),
        ("model_cache: [{repo_id: a/b}]", "model_cache has no effect"),
        ("system_packages: [ffmpeg]", "system_packages has no effect: they are not installed"),
        ("build_commands: [make]", "build_commands has no effect"),
        ("weights: []", None),
        ("trt_llm: null", None),
    ],
)
def test_what_truss_would_have_built_is_told_to_be_missing(text: str, told: str | None, tmp_path: Path) -> None:
    warnings = configured(tmp_path, f"{text}\n").config.warnings
    assert [warning for warning in warnings if warning.startswith(told or "")] == list(warnings)
    assert len(warnings) == (told is not None)


def test_keys_of_the_platform_are_left_alone(tmp_path: Path) -> None:
    configured(
        tmp_path,
        "model_name: My model / 1\npython_version: py311\nweights: []\nsystem_packages: [ffmpeg]\nnobody_knows: 1\n"
        "resources: {cpu: '1', memory: 2Gi}\nruntime: {oidc: {enabled: true}, num_workers: 1, transport: {}}\n",
    )


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ("runtime: {predict_concurrency: 0}", "line 1: runtime.predict_concurrency is 0 (int), it must be an integer"),
        ("a: 1\nruntime: {predict_concurrency: many}", "line 2: runtime.predict_concurrency is 'many' (str)"),
        ("runtime: {predict_concurrency: true}", "runtime.predict_concurrency is True"),
        ("runtime: {streaming_read_timeout: 0}", "runtime.streaming_read_timeout is 0"),
        ("runtime: {num_workers: 2}", "runtime.num_workers is 2 (int), it must be 1 (minWorkers"),
        ("runtime: {transport: {kind: grpc}}", "runtime.transport.kind is 'grpc' (str), it must be http or websocket"),
        ("runtime: {transport: {ping_interval_seconds: -1}}", "runtime.transport.ping_interval_seconds is -1"),
        ("runtime: 3", "runtime is 3 (int), it must be a map"),
        ("resources: {accelerator: 'A10G:0'}", "resources.accelerator is 'A10G:0'"),
        ("environment_variables: {PORT: 80}", "without PORT and HOSTNAME"),
        ("secrets: [a]", "secrets is ['a'] (list), it must be a map from names"),
        ("requirements: torch", "requirements is 'torch' (str), it must be a list of texts"),
        ("requirements: [a]\nrequirements_file: b.txt", "both given"),
        ("requirements_file: none.txt", "requirements_file is 'none.txt', but there is no such file"),
        ("model_module_dir: ../other", "model_module_dir is '../other' (str), it must be a path inside"),
        ("model_class_filename: other.py", "there is no file model/other.py with the model class"),
        ("docker_server: {start_command: x}", "docker_server is {'start_command': 'x'} (dict), it must be left out"),
        ("- a", "not a list"),
        ("a: {", "not valid YAML"),
    ],
)
def test_what_cannot_be_acted_on_is_refused(config: str, complaint: str, tmp_path: Path) -> None:
    message = refused(truss(tmp_path, config))
    assert message.startswith("config.yaml: ")
    assert complaint in message


def test_every_mistake_is_named_at_once(tmp_path: Path) -> None:
    message = refused(truss(tmp_path, "runtime: {predict_concurrency: 0, num_workers: 3}\nsecrets: 1\n"))
    assert all(name in message for name in ("predict_concurrency", "num_workers", "secrets"))


def test_the_class_may_be_elsewhere(tmp_path: Path) -> None:
    text = "model_module_dir: code\nmodel_class_filename: served.py\n"
    configure(truss(tmp_path, text, class_file="code/served.py"), ModelConfig())


def test_a_requirements_file_is_pips_to_read(tmp_path: Path) -> None:
    folder = truss(tmp_path, "requirements_file: needs.txt\n")
    (folder / "needs.txt").write_text("a\n")
    result = configure(folder, ModelConfig())
    assert (result.requirements_file, result.requirements) == ("needs.txt", ())


def test_a_projects_dependencies_are_its_requirements(tmp_path: Path) -> None:
    folder = truss(tmp_path, "requirements_file: pyproject.toml\n")
    (folder / "pyproject.toml").write_text('[project]\nname = "x"\ndependencies = ["a>=1", "b"]\n')
    result = configure(folder, ModelConfig())
    assert (result.requirements_file, result.requirements) == (None, ("a>=1", "b"))


def test_a_lock_file_is_not_read(tmp_path: Path) -> None:
    folder = truss(tmp_path, "requirements_file: uv.lock\n")
    (folder / "uv.lock").write_text("")
    assert "uv export" in refused(folder)
