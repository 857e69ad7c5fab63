"""The `ray` map of `model-config.yaml`, and what contradicts workers on other machines."""

from pathlib import Path

import pytest

from torchserve_py.base.settings.schemas.versions import VersionSettings
from torchserve_py.base.settings.server_settings import server_settings
from torchserve_py.core.plans.config import InvalidModelConfig, ModelConfig, read_model_config
from torchserve_py.core.plans.effective_config import EffectiveConfig
from torchserve_py.core.plans.precedence import Hardware, resolve
from torchserve_py.core.plans.sequence_states import SequenceStates
from torchserve_py.core.serving.serving import RegisterRequest
from torchserve_py.core.torchrun.torchrun import Torchrun
from torchserve_py.core.torchrun.torchrun_keys import TorchrunConfig
from torchserve_py.core.workers.launch_command import Launch, RankGroup
from torchserve_py.core.workers.worker_launcher import NodeShare
from torchserve_py.fleet.ray.ray_demand import NodeDemand, demand_of


def config_of(folder: Path, text: str) -> ModelConfig:
    file = folder / "model-config.yaml"
    file.write_text(text)
    return read_model_config(file)


def resolved(folder: Path, text: str, launcher: str = "ray") -> EffectiveConfig:
    return resolve(
        RegisterRequest(url="m"),
        config_of(folder, text),
        VersionSettings(),
        server_settings().model_construct(model_store=folder, worker_launcher=launcher),
        SequenceStates(),
        model_name="m",
        hardware=Hardware(gpus=8, cpus=8),
        at_startup=True,
    )


def test_a_worker_has_its_share_of_a_node_and_nothing_of_this_machine(tmp_path: Path) -> None:
    config = resolved(tmp_path, "ray: {num_cpus: 2.5, num_gpus: 0.5}")
    assert (config.node, config.device_type, config.initial_workers) == (NodeShare(2, has_gpu=True), "cpu", 1)
    assert resolved(tmp_path, "").node == NodeShare(1, has_gpu=False)


def test_a_parallel_worker_needs_what_all_its_processes_need(tmp_path: Path) -> None:
    keys = config_of(tmp_path, "ray: {num_cpus: 2, num_gpus: 1, resources: {a100: 1}, label_selector: {zone: a}}")
    launch = Launch(tmp_path, plugin_keys=keys.plugin_keys)
    assert demand_of(launch) == NodeDemand(2, 1, {"a100": 1}, {"zone": "a"})
    parallel = Launch(
        tmp_path, plugin_keys=keys.plugin_keys, ranks=RankGroup(4, True, "", tmp_path, Torchrun(TorchrunConfig()))
    )
    assert demand_of(parallel) == NodeDemand(8, 4, {"a100": 4}, {"zone": "a"})


@pytest.mark.parametrize(
    ("text", "launcher", "problem"),
    [
        (
            "ray: {num_cpus: 2}",
            "local",
            "ray is set but worker_launcher is local; take ray out",
        ),
        (
            "deviceIds: [0]",
            "ray",
            "deviceIds is set but worker_launcher is ray; Ray chooses the GPUs",
        ),
        ("useVenv: true", "ray", "useVenv is set but worker_launcher is ray; install the packages on the nodes"),
        (
            "sequenceBatching: true\nsequenceMaxIdleMSec: 9000\nmaxNumSequence: 2\nmaxSequenceJobQueueSize: 2\n"
            "handler: {cache: {store: file}}",
            "ray",
            "a file is of one machine; use handler.cache.store: redis",
        ),
        ("ray: {num_cpus: much}", "ray", "line 1: ray.num_cpus is 'much' (str), it must be a number from 0"),
    ],
)
def test_what_contradicts_the_launcher(tmp_path: Path, text: str, launcher: str, problem: str) -> None:
    with pytest.raises(InvalidModelConfig) as error:
        resolved(tmp_path, text, launcher)
    assert problem in str(error.value)
