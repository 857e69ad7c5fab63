"""What a server serves at first instead of `load_models`: what its fleet serves, else what it served before itself."""

from pathlib import Path

from torchserve_py.base.settings.table import Settings
from torchserve_py.core.handover.left_files import in_folder
from torchserve_py.core.handover.storage import Storage
from torchserve_py.core.serving.serving import Restored
from torchserve_py.fleet.saved_models.saved_models_settings import SavedModelsSettings


def restored(settings: Settings) -> Restored | None:
    """Return what the server begins with; None: neither a fleet nor a snapshot tells. Blocks.

    Raises PluginUnavailable: the state of the fleet cannot be read.
    """
    own = settings.of(SavedModelsSettings)
    if own.fleet_state is not None:
        # It imports the management API, for which the first workers of a server without a fleet need not wait.
        from torchserve_py.fleet.saved_models.fleet_member import fleet_models

        found = fleet_models(own.fleet_state, own.fleet_name or "", settings)
        if found is not None:
            return found
    snapshot = own.model_snapshot
    return None if snapshot is None else Restored(snapshot.models, snapshot.not_loaded)


def shared_handover(settings: Settings) -> Storage | None:
    """Return where the servers of a fleet leave each other their sequences in memory; None without a fleet."""
    own = settings.of(SavedModelsSettings)
    if own.fleet_state is None:
        return None
    if "://" not in own.fleet_state:
        return in_folder(Path(own.fleet_state) / (own.fleet_name or "") / "handover", is_shared=True)
    try:
        from torchserve_py.fleet.saved_models.handover_in_redis import HandoverInRedis
    except ModuleNotFoundError:
        return None  # without it the state of the fleet cannot be read either, which ends the start
    redis = HandoverInRedis(own.fleet_state, own.fleet_name or "")
    return Storage(redis, redis)
