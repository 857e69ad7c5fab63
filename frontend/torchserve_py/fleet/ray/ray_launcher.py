"""What the server asks of Ray as its launcher; see `plugin_api.LauncherOffer`."""

from collections.abc import Iterator

from torchserve_py.base.settings.schemas.plugin_keys import PluginKeys
from torchserve_py.base.settings.table import Settings
from torchserve_py.core.plans.config import ModelConfig
from torchserve_py.core.workers.listener import WorkerListener
from torchserve_py.core.workers.worker_launcher import NodeShare
from torchserve_py.fleet.ray.ray_cluster import RayCluster
from torchserve_py.fleet.ray.ray_keys import RayKeys
from torchserve_py.fleet.ray.ray_settings import RaySettings
from torchserve_py.sequences.steps.kept_states import states_of


def launcher(settings: Settings, listener: WorkerListener) -> RayCluster:
    """Return what starts the workers of a server."""
    own = settings.of(RaySettings)
    return RayCluster(listener, own.ray_address, own.ray_worker_host)


def share(keys: PluginKeys) -> NodeShare:
    """Return what a worker has of its node."""
    needs = keys.of(RayKeys).ray
    return NodeShare(max(1, int(needs.num_cpus)), needs.num_gpus > 0)


def problems(config: ModelConfig) -> Iterator[str]:
    """Yield a line for each key that means this machine."""
    because = "is set but worker_launcher is ray;"
    if config.device_ids is not None:
        yield f"deviceIds {because} Ray chooses the GPUs; use ray.num_gpus"
    if config.use_venv:
        yield f"useVenv {because} install the packages on the nodes"
    if states_of(config.plugin_keys).of_one_machine:
        yield f"handler.cache.store: file {because} a file is of one machine; use handler.cache.store: redis"
