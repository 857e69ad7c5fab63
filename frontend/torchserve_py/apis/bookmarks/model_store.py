"""Where the sequences of a model are stored, as its configuration says."""

from torchserve_py.apis.bookmarks.bookmarks import StorePlace
from torchserve_py.base.settings.state_folders import StateFolders
from torchserve_py.core.serving.serving import ServedModel
from torchserve_py.endpoints.failures import bad_request, unsupported
from torchserve_py.plugins import stores
from torchserve_py.sequences.steps.cache_config import CacheConfig
from torchserve_py.sequences.steps.handler_keys import HandlerKeys
from torchserve_py.sequences.steps.kept_states import path_of, sequence_file


def place_of(model: ServedModel, folders: StateFolders) -> StorePlace:
    """Return where a model's sequences are. Raises EndpointError: in no store."""
    if not model.is_stateful:
        raise bad_request(
            f'Model "{model.name}" keeps no sequences; set sequenceBatching: true in its model-config.yaml.'
        )
    cache = model.config.plugin_keys.of(HandlerKeys).handler.cache or CacheConfig()
    if not model.is_durable:
        raise unsupported(
            f"Model {model.name} has its sequences in the memory of its workers: only with handler.cache.store: file or"
            " redis in its model-config.yaml can they be forked, go back, and move."
        )
    path = path_of(cache, sequence_file(folders, model.name))
    return StorePlace(stores()[cache.store].module, path or cache.url or "")
