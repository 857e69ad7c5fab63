"""How the states of a model's sequences are kept: what its workers are told, and the default file of the file store.

That file is in the folder `sequences` of the data folder. The versions of a model share it, since a sequence is the
model's: it stays with the version that began it, and the others know that. Earlier releases had it next to the logs:
there it stays until somebody moves it, since other servers may use it. Older ones had a file for each version,
``NAME@VERSION.db``; the file store imports those.
"""

import glob
import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from torchserve_py.base.settings.schemas.plugin_keys import PluginKeys
from torchserve_py.base.settings.state_folders import StateFolders
from torchserve_py.core.plans.effective_config import EffectiveConfig
from torchserve_py.core.plans.sequence_states import SequenceStates
from torchserve_py.core.serving.errors import InvalidModel
from torchserve_py.core.workers.confinement import Confinement
from torchserve_py.plugins import stores
from torchserve_py.sequences.steps.cache_config import CacheConfig
from torchserve_py.sequences.steps.handler_keys import HandlerKeys
from ts.protocol.messages import Cache
from ts.sequences.steps.sequence_limits import MOST_KEPT_ANSWERS
from ts.sequences.steps.server_identity import server_identity

logger = logging.getLogger(__name__)

_FOLDER = "sequences"
#: The longest file name, in bytes, that is not replaced by its hash: file systems allow 255, and five are added.
_MAX_NAME = 240


def sequence_file(folders: StateFolders, model_name: str) -> Path:
    """Return the file of a model's sequences; two models never have the same.

    It is the one of an earlier release, if that is there and the other is not.
    """
    name = quote(model_name, safe="")
    if len(name) > _MAX_NAME:
        name = hashlib.sha256(name.encode()).hexdigest()
    file, earlier = (folder / _FOLDER / f"{name}.db" for folder in folders)
    is_earlier = earlier.exists() or any(earlier.parent.glob(f"{glob.escape(name)}@*.db"))
    return earlier if is_earlier and not file.exists() else file


def make_folder(cache: CacheConfig, folder: Path, confinement: Confinement) -> None:
    """Make the folder of a model's file, if its sequences are kept in it; for its workers' user alone (0700). Blocks.

    Raises InvalidModel: it cannot be made.
    """
    if "path" not in cache.keys_of_store or cache.path is not None:
        return
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        confinement.give(folder)
    except OSError as error:
        raise InvalidModel(
            f"handler.cache.path is not set, and the folder {folder}, which the file would be in, cannot be made:"
            f" {error.strerror}; set handler.cache.path"
        ) from error


@dataclass(frozen=True)
class KeptStates(SequenceStates):
    """States as `handler.cache` says."""

    cache: CacheConfig

    @property
    def durable(self) -> bool:  # type: ignore[override]
        """Whether a state outlives the worker that runs its sequence."""
        return self.cache.durable

    @property
    def expires_after(self) -> int | None:  # type: ignore[override]
        """The seconds after its last step until a sequence expires."""
        return self.cache.expire

    @property
    def of_one_machine(self) -> bool:  # type: ignore[override]
        """Whether states are in a file."""
        return "path" in self.cache.keys_of_store

    def continues(self, other: SequenceStates, *, migrates: bool) -> bool:
        """Return whether both have the same place, and states are migrated or of the same `stateVersion`."""
        if not isinstance(other, KeptStates) or not (self.durable and other.durable):
            return False
        mine, its = self.cache, other.cache
        is_same_place = (mine.store, mine.path, mine.url) == (its.store, its.path, its.url)
        is_same_form = mine.state_version is not None and mine.state_version == its.state_version
        return is_same_place and (migrates or is_same_form)

    def prepare(self, folders: StateFolders, model_name: str, confinement: Confinement) -> None:
        """Make the folder of states."""
        file = sequence_file(folders, model_name)
        make_folder(self.cache, file.parent, confinement)
        if self.of_one_machine and self.cache.path is None and not file.is_relative_to(folders.data):
            logger.warning(
                "The sequences of %s are in %s, where earlier releases had them. To move them to data_folder, stop the"
                " servers that use the file, and: mkdir -p %s && mv %s %s",
                *(model_name, file, folders.data, file.parent, folders.data / _FOLDER),
            )

    def message(self, config: EffectiveConfig, model_name: str, folders: StateFolders) -> Cache | None:
        """Return `cache_message`."""
        return cache_message(self.cache, config, sequence_file(folders, model_name))


def states_of(keys: PluginKeys) -> KeptStates:
    """Return how the states of a model with these keys are kept."""
    return KeptStates(keys.of(HandlerKeys).handler.cache or CacheConfig())


def path_of(cache: CacheConfig, default_file: Path) -> str:
    """Return the path of the file that states are in; "" if they are in none."""
    return str((Path(cache.path) if cache.path else default_file).absolute()) if "path" in cache.keys_of_store else ""


def cache_message(cache: CacheConfig, config: EffectiveConfig, default_file: Path) -> Cache:
    """Return what workers are told.

    A relative path starts at the server's working directory; `default_file` is the file store of a model that names no
    file. Answers are kept for as many steps as a client can send before it gets an answer.
    """
    return Cache(
        store=cache.store,
        module=stores()[cache.store].module if cache.durable else "",
        durable=cache.durable,
        capacity=cache.capacity or max(config.max_num_sequence, config.max_workers * config.batch_size),
        path=path_of(cache, default_file),
        fsync=cache.fsync,
        url=cache.url or "",
        replicas=cache.replicas,
        owner=server_identity(),
        lease=cache.lease,
        lifetime=config.sequence_max_idle_ms / 1000,
        kept=min(MOST_KEPT_ANSWERS, config.max_sequence_job_queue_size + 2),
        remembered=config.remember_ended,
        most_ids=cache.remember_ids,
        most_memory=cache.max_memory_size or 0,
        most_state=cache.max_state_size,
        checkpoint_steps=cache.checkpoint_every,
        kept_states=cache.keep_checkpoints,
        rebuilt_at_once=cache.rebuild_batch or config.batch_size,
        state_version=cache.state_version or "",
        require_start=config.require_start,
        restart_expired=config.restart_expired_sequences,
    )
