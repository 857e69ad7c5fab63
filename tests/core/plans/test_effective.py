"""What a model version runs with: which place wins, and what the hardware allows."""

from typing import Any

import pytest

from torchserve_py.base.settings.schemas.plugin_keys import PluginKeys
from torchserve_py.base.settings.schemas.versions import VersionSettings
from torchserve_py.core.plans.config import InvalidModelConfig, ModelConfig
from torchserve_py.core.plans.effective_config import EffectiveConfig
from torchserve_py.core.plans.precedence import Hardware, resolve
from torchserve_py.core.plans.sequence_states import SequenceStates
from torchserve_py.core.scheduling.policy import Policy, SequencePolicy
from torchserve_py.core.serving.errors import BadParameter, NotEnoughDevices
from torchserve_py.core.serving.serving import RegisterRequest
from torchserve_py.core.torchrun.torchrun_keys import TorchrunConfig, TorchrunKeys


class Server:
    """The defaults of a server, as in its settings."""

    default_workers_per_model = 0
    default_response_timeout = 120
    default_startup_timeout = 130
    job_queue_size = 100
    debug = False
    worker_launcher = "local"

    def __init__(self, **values: int | str) -> None:
        self.__dict__.update(values)


def torchrun(processes: int) -> PluginKeys:
    return PluginKeys((TorchrunKeys(torchrun=TorchrunConfig(nproc_per_node=processes)),))


def effective(
    api: dict[str, Any] | None = None,
    yaml: dict[str, Any] | None = None,
    json: dict[str, Any] | None = None,
    server: Server | None = None,
    *,
    gpus: int = 0,
    at_startup: bool = True,
    manifest_runtime: str | None = None,
) -> EffectiveConfig:
    return resolve(
        RegisterRequest(url="noop.mar", **api or {}),
        ModelConfig.model_construct(**yaml or {}),
        VersionSettings.model_validate(json or {}),
        server or Server(),
        SequenceStates(),
        model_name="noop",
        hardware=Hardware(gpus=gpus, cpus=6),
        at_startup=at_startup,
        manifest_runtime=manifest_runtime,
    )


@pytest.mark.parametrize(
    ("attribute", "api", "yaml", "json", "default"),
    [
        ("batch_size", "batch_size", "batch_size", "batchSize", 1),
        ("max_batch_delay_ms", "max_batch_delay", "max_batch_delay_ms", "maxBatchDelay", 100),
        ("response_timeout", "response_timeout", "response_timeout", "responseTimeout", 120),
        ("startup_timeout", "startup_timeout", "startup_timeout", "startupTimeout", 130),
    ],
)
def test_the_call_beats_the_yaml_beats_the_json_beats_the_default(
    attribute: str, api: str, yaml: str, json: str, default: int
) -> None:
    def value(*places: Any) -> Any:
        return getattr(effective(*places), attribute)

    assert value({api: 7}, {yaml: 8}, {json: 9}) == 7
    assert value({}, {yaml: 8}, {json: 9}) == 8
    assert value({}, {}, {json: 9}) == 9
    assert value({}, {}, {json: 0}) == default
    assert value({}, {}, {}) == default


def test_no_batch_delay_is_a_value() -> None:
    assert effective(yaml={"max_batch_delay_ms": 0}, json={"maxBatchDelay": 9}).max_batch_delay_ms == 0
    assert effective({"max_batch_delay": 0}, {"max_batch_delay_ms": 5}).max_batch_delay_ms == 0


@pytest.mark.parametrize(
    ("api", "yaml", "json", "server", "gpus", "at_startup", "workers"),
    [
        ({}, {"min_workers": 2, "max_workers": 4}, {"minWorkers": 1}, {}, 0, True, (2, 4)),
        ({}, {"min_workers": 2}, {}, {}, 0, True, (2, 2)),
        ({}, {"max_workers": 2}, {}, {}, 0, True, (2, 2)),
        ({}, {"max_workers": 2}, {"minWorkers": 3, "maxWorkers": 4}, {}, 0, True, (2, 2)),
        ({}, {}, {"minWorkers": 3, "maxWorkers": 4}, {}, 0, True, (3, 4)),
        ({}, {}, {}, {"default_workers_per_model": 5}, 8, True, (5, 5)),
        ({}, {}, {}, {}, 8, True, (8, 8)),
        ({}, {}, {}, {}, 0, True, (6, 6)),
        ({}, {}, {}, {"debug": True}, 8, True, (1, 1)),
        ({"initial_workers": 1}, {"min_workers": 2, "max_workers": 4}, {}, {}, 0, False, (1, 1)),
        ({"initial_workers": 0}, {"min_workers": 2, "max_workers": 4}, {}, {}, 0, False, (0, 0)),
        ({}, {"min_workers": 2, "max_workers": 4}, {}, {}, 0, False, (2, 4)),
        ({}, {}, {}, {"default_workers_per_model": 5}, 8, False, (5, 5)),
        ({}, {}, {}, {}, 8, False, (0, 0)),
    ],
)
def test_number_of_workers(
    api: dict[str, Any],
    yaml: dict[str, Any],
    json: dict[str, Any],
    server: dict[str, Any],
    gpus: int,
    at_startup: bool,
    workers: tuple[int, int],
) -> None:
    config = effective(api, yaml, json, Server(**server), gpus=gpus, at_startup=at_startup)
    assert (config.min_workers, config.max_workers) == workers


def test_job_queue_size_zero_means_the_servers() -> None:
    assert effective(yaml={"job_queue_size": 7}).job_queue_size == 7
    assert effective(yaml={"job_queue_size": 0}).job_queue_size == 100
    assert effective(server=Server(job_queue_size=9)).job_queue_size == 9


@pytest.mark.parametrize(
    ("api", "json", "manifest", "runtime"),
    [
        ("python3", "python", "python", "python3"),
        (None, "python3", "python", "python3"),
        (None, None, "python3", "python3"),
        (None, None, None, "python"),
    ],
)
def test_runtime(api: str | None, json: str | None, manifest: str | None, runtime: str) -> None:
    assert effective({"runtime": api}, {}, {"runtimeType": json}, manifest_runtime=manifest).runtime == runtime


def test_an_unknown_runtime_is_refused() -> None:
    with pytest.raises(BadParameter, match=r"^Invalid RuntimeType value: cobol: it must be python or python3$"):
        effective({"runtime": "cobol"})
    with pytest.raises(BadParameter, match=r"^Invalid RuntimeType value: LSP: the C\+\+ backend is not run here"):
        effective({"runtime": "LSP"})


@pytest.mark.parametrize("name", ["batch_size", "max_batch_delay", "initial_workers", "response_timeout"])
def test_a_negative_parameter_is_refused(name: str) -> None:
    with pytest.raises(BadParameter, match=f"^Parameter {name} is -1, it must be an integer from "):
        effective({name: -1})


@pytest.mark.parametrize(
    ("device_type", "gpus", "effective_type"),
    [(None, 0, "cpu"), (None, 2, "gpu"), ("auto", 2, "gpu"), ("cpu", 2, "cpu"), ("gpu", 2, "gpu"), ("gpu", 0, "cpu")],
)
def test_device_type(device_type: str | None, gpus: int, effective_type: str) -> None:
    assert effective(yaml={"device_type": device_type}, gpus=gpus).device_type == effective_type


def test_device_ids_must_exist_on_a_host_with_gpus() -> None:
    assert effective(yaml={"device_ids": (1, 3)}, gpus=4).device_ids == (1, 3)
    assert effective(yaml={"device_ids": (1, 3)}, gpus=0).device_ids is None
    with pytest.raises(InvalidModelConfig, match=r"deviceIds names \[4, 9\], but .* numbered 0 to 3"):
        effective(yaml={"device_ids": (0, 4, 9)}, gpus=4)


def test_parallel_workers_are_capped_by_the_gpus() -> None:
    yaml = {"parallel_type": "tp", "parallel_level": 2, "min_workers": 1, "max_workers": 9}
    config = effective(yaml=yaml, gpus=5)
    assert (config.min_workers, config.max_workers, config.parallel_level) == (1, 2, 2)
    assert effective(yaml={**yaml, "device_ids": (0, 3)}, gpus=5).max_workers == 1
    assert effective(yaml=yaml, gpus=0).max_workers == 9
    with pytest.raises(NotEnoughDevices, match=r"^No enough gpu devices for model:noop parallelLevel:2$"):
        effective(yaml=yaml, gpus=1)


def test_parallel_level_from_torchrun() -> None:
    config = effective(yaml={"parallel_type": "pp", "plugin_keys": torchrun(2)}, gpus=4)
    assert (config.parallel_type, config.parallel_level, config.max_workers) == ("pp", 2, 2)
    assert effective(yaml={"parallel_level": 1}, gpus=4).parallel_level == 0


def test_policy_of_a_stateless_model() -> None:
    config = effective(yaml={"batch_size": 4, "max_batch_delay_ms": 50, "use_job_ticket": True, "job_queue_size": 7})
    assert config.policy() == Policy(batch_size=4, max_batch_delay=0.05, queue_size=7, job_ticket=True)
    assert config.stateful is False


def test_policy_of_a_stateful_model() -> None:
    config = effective(
        yaml={
            "batch_size": 4,
            "continuous_batching": True,
            "sequence_batching": True,
            "sequence_max_idle_ms": 1500,
            "max_num_sequence": 32,
            "max_sequence_job_queue_size": 5,
            "on_expired_sequence": "restart",
            "use_job_ticket": True,
        }
    )
    assert config.policy() == Policy(
        batch_size=4,
        max_batch_delay=0.1,
        queue_size=100,
        continuous=True,
        sequences=SequencePolicy(max_idle=1.5, timeout=None, queue_size=5, max_sequences=32, restart_expired=True),
    )


def test_sequence_limits_are_zero_for_a_stateless_model() -> None:
    config = effective(yaml={"sequence_max_idle_ms": 5, "max_num_sequence": 9})
    assert (config.sequence_max_idle_ms, config.sequence_timeout_ms) == (0, 0)
    assert (config.max_num_sequence, config.max_sequence_job_queue_size) == (0, 0)


def test_requests_of_an_asynchronous_model_join_at_once_and_without_a_batch() -> None:
    config = effective(yaml={"async_communication": True})
    policy = config.policy()
    assert (config.batch_size, config.continuous) == (1, False)
    assert (policy.continuous, policy.sequences) == (True, None)
    assert policy.batch_size > 1000


@pytest.mark.parametrize("api", [{"batch_size": 2}, {}])
def test_an_asynchronous_model_has_no_batches(api: dict[str, int]) -> None:
    yaml = {"async_communication": True} if api else {"async_communication": True, "batch_size": 2}
    with pytest.raises(InvalidModelConfig, match="batch size is 2; each request is a call of its own, so it must be 1"):
        effective(api, yaml)


@pytest.mark.parametrize(
    ("yaml", "ranks"),
    [
        ({}, 0),
        ({"parallel_type": "tp", "parallel_level": 2}, 2),
        ({"parallel_type": "pp", "plugin_keys": torchrun(4)}, 4),
        ({"parallel_type": "custom", "parallel_level": 4}, 0),
        ({"parallel_type": "custom", "plugin_keys": torchrun(2)}, 2),
        ({"parallel_type": "custom", "plugin_keys": torchrun(2), "async_communication": True}, 0),
    ],
)
def test_how_many_processes_torchrun_starts_for_a_worker(yaml: dict[str, Any], ranks: int) -> None:
    assert effective(yaml=yaml).ranks == ranks
