"""`scaling` in model-config.yaml: what is refused, which limits hold, and what the scheduler is told."""

import math
from pathlib import Path
from typing import Any

import pytest
from tests.core.models.registries import MakeRegistry, write_model

from torchserve_py.base.settings.schemas.versions import VersionSettings
from torchserve_py.base.settings.server_settings import server_settings
from torchserve_py.core.plans.config import InvalidModelConfig, ModelConfig, read_model_config
from torchserve_py.core.plans.effective_config import EffectiveConfig
from torchserve_py.core.plans.precedence import Hardware, resolve
from torchserve_py.core.plans.sequence_states import SequenceStates
from torchserve_py.core.serving.errors import BadParameter, InvalidModel
from torchserve_py.core.serving.serving import RegisterRequest
from torchserve_py.fleet.scaling.autoscaler import policy_of
from torchserve_py.fleet.scaling.scaling import ScalingPolicy

ZERO_TO_FOUR = "minWorkers: 0\nmaxWorkers: 4\nscaling: {}\n"


def read(tmp_path: Path, text: str) -> ModelConfig:
    path = tmp_path / "model-config.yaml"
    path.write_text(text)
    return read_model_config(path)


def effective(config: ModelConfig, json: dict[str, Any] | None = None, **more: Any) -> EffectiveConfig:
    settings = {name: more.pop(name) for name in ("debug", "cpu_launcher_enable") if name in more}
    return resolve(
        RegisterRequest(url="", **more),
        config,
        VersionSettings.model_validate(json or {}),
        server_settings().model_construct(model_store=Path(), default_workers_per_model=None, **settings),
        SequenceStates(),
        model_name="m",
        hardware=Hardware(gpus=0, cpus=6),
        at_startup=True,
    )


def limits(config: EffectiveConfig) -> tuple[int, int, int]:
    return config.min_workers, config.max_workers, config.initial_workers


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("minWorkers: 0\nmaxWorkers: 2\n", "minWorkers is 0 but neither scaling nor loading: on_demand is set"),
        ("loading: on_demand\n", "loading is on_demand but minWorkers is not 0; set minWorkers: 0"),
        ("minWorkers: 1\nloading: on_demand\n", "loading is on_demand but minWorkers is not 0; set minWorkers: 0"),
        ("minWorkers: 0\nloading: on_demand\nuseJobTicket: true\n", "loading is set but useJobTicket is true"),
        ("minWorkers: 0\nloading: later\n", "loading is 'later' (str), it must be one of at_start, on_demand"),
        ("minWorkers: 1\nmaxWorkers: 2\nscaling: {}\nuseJobTicket: true\n", "scaling is set but useJobTicket is true"),
        ("scaling: true\n", "line 1: scaling is True (bool), it must be a map"),
        ("scaling: {targetWaitMSec: 0}\n", "scaling.targetWaitMSec is 0 (int), it must be an integer from 1"),
        ("scaling: {downAfter: 5}\n", "scaling.downAfter is not known; known are targetWaitMSec, downAfterSec"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(InvalidModelConfig) as refused:
        read(tmp_path, text)
    assert problem in str(refused.value)


def test_without_the_key_the_number_of_workers_is_fixed(tmp_path: Path) -> None:
    config = effective(read(tmp_path, "minWorkers: 1\nmaxWorkers: 4\n"))
    assert not config.follows_load
    assert limits(config) == (1, 4, 1)


def test_an_empty_map_has_all_defaults(tmp_path: Path) -> None:
    config = effective(read(tmp_path, ZERO_TO_FOUR))
    assert config.follows_load
    assert policy_of(config.plugin_keys) == ScalingPolicy(1.0, 60, 300)


@pytest.mark.parametrize("text", ["minWorkers: 0\nloading: on_demand\n", "minWorkers: 0\nscaling: {}\n"])
def test_a_model_that_loads_on_demand_has_one_worker_at_most(tmp_path: Path, text: str) -> None:
    config = effective(read(tmp_path, text))
    assert config.follows_load
    assert limits(config) == (0, 1, 0)


def test_a_model_that_loads_on_demand_stays_unless_a_time_is_set(tmp_path: Path) -> None:
    text = "minWorkers: 0\nmaxWorkers: 3\nloading: on_demand\n"
    assert policy_of(effective(read(tmp_path, text)).plugin_keys) == ScalingPolicy(1.0, 60, math.inf)
    limited = effective(read(tmp_path, text + "scaling: {idleTimeoutSec: 9}\n"))
    assert policy_of(limited.plugin_keys).idle_timeout == 9


def test_limits_that_are_equal_are_a_warning(tmp_path: Path) -> None:
    (warning,) = read(tmp_path, "minWorkers: 2\nscaling: {}\n").warnings
    assert warning == "scaling has no effect because maxWorkers is not more than minWorkers, which is 2"


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({}, (0, 4, 0)),
        ({"initial_workers": 2}, (0, 4, 2)),
        ({"initial_workers": 6}, (0, 6, 6)),
        ({"initial_workers": 1, "max_workers": 3}, (1, 3, 1)),  # as a snapshot gives them
        ({"initial_workers": 0, "max_workers": 0}, (0, 0, 0)),
    ],
)
def test_a_registration_says_how_many_to_begin_with_and_a_snapshot_the_limits(
    tmp_path: Path, request_: dict[str, int], expected: tuple[int, int, int]
) -> None:
    assert limits(effective(read(tmp_path, ZERO_TO_FOUR), **request_)) == expected


def test_the_limits_may_be_those_of_the_models_setting(tmp_path: Path) -> None:
    json = {"minWorkers": 2, "maxWorkers": 5}
    assert limits(effective(read(tmp_path, "scaling: {}\n"), json)) == (2, 5, 2)


def test_workers_that_are_started_by_hand_do_not_follow_the_load(tmp_path: Path) -> None:
    config = effective(read(tmp_path, ZERO_TO_FOUR), debug=True)
    assert (config.follows_load, config.initial_workers) == (False, 1)


def test_workers_that_share_the_processors_do_not_follow_the_load(tmp_path: Path) -> None:
    with pytest.raises(InvalidModelConfig, match="scaling is set but cpu_launcher_enable is true"):
        effective(read(tmp_path, ZERO_TO_FOUR), cpu_launcher_enable=True)
    with pytest.raises(InvalidModelConfig, match="threads is 2 but cpu_launcher_enable is true"):
        effective(read(tmp_path, "threads: 2"), cpu_launcher_enable=True)
    assert effective(read(tmp_path, "threads: 2")).threads == 2


def test_the_most_workers_are_limited(tmp_path: Path) -> None:
    with pytest.raises(BadParameter, match="1000 workers, 1001"):
        effective(read(tmp_path, "minWorkers: 1\nmaxWorkers: 1001\nscaling: {}\n"))


def test_sequences_wait_for_the_workers_that_may_come(tmp_path: Path) -> None:
    sequences = "sequenceBatching: true\nsequenceMaxIdleMSec: 1000\nbatchSize: 2\n"
    policy = effective(read(tmp_path, ZERO_TO_FOUR + sequences)).policy()
    assert policy.sequences is not None
    assert policy.sequences.max_sequences == 8


async def test_a_model_that_loads_on_demand_is_registered_without_a_worker(
    make_registry: MakeRegistry, store: Path
) -> None:
    (write_model(store / "m") / "model-config.yaml").write_text(ZERO_TO_FOUR)
    registry = make_registry()
    assert (await registry.register(RegisterRequest(url="m"))).workers_wanted == 0
    model = registry.get("m")
    status = registry.status(model)
    assert (status.min_workers, status.max_workers, status.workers) == (0, 4, [])
    assert status.ready
    assert registry.is_loaded(model)
    assert await registry.check_health(model, 1.0)
    await registry.scale("m", None, 0, 0, synchronous=True)
    assert not registry.status(model).ready
    assert not registry.is_loaded(model)
    assert not await registry.check_health(model, 1.0)
    with pytest.raises(BadParameter):
        await registry.scale("m", None, 0, 1001, synchronous=True)
    await registry.close()


async def test_a_bad_map_is_told_at_registration(make_registry: MakeRegistry, store: Path) -> None:
    (write_model(store / "m") / "model-config.yaml").write_text("minWorkers: 0\n")
    with pytest.raises(InvalidModel, match="minWorkers is 0 but neither scaling nor loading: on_demand is set"):
        await make_registry().register(RegisterRequest(url="m"))
