"""What the contracts other than TorchServe's say in their own files about how a model is to be served.

Each module reads its contract's files: ``configure(model_dir, yaml, store)`` returns a `Configured`.
"""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torchserve_py.base.settings.schemas.yaml_mapping import YamlMapping
from torchserve_py.core.archive.model_files import ModelFiles
from torchserve_py.core.plans.config import (
    InvalidModelConfig,
    ModelConfig,
    parse_model_config,
    read_mapping,
    read_model_config,
)
from torchserve_py.core.serving.errors import InvalidModel
from torchserve_py.plugins import contracts


@dataclass(frozen=True, slots=True)
class Configured:
    """A model's configuration with what its contract's files say; `model-config.yaml` wins where both say something.

    ``name`` and ``version`` are what these files call the model, None where they do not. ``environment`` has variables
    for its workers. ``requirements`` are lines as pip takes them, beside those in ``requirements_file`` (a path in the
    folder, None for that of the manifest). ``shared_warnings`` are about a file that other models read as well.
    """

    config: ModelConfig
    name: str | None = None
    version: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    requirements: Sequence[str] = ()
    requirements_file: str | None = None
    shared_warnings: Sequence[str] = ()


def configuration_of(files: ModelFiles, store: Path | None = None) -> Configured:
    """Read all that files say about how a model is to be served; files of a megabyte may take a second.

    Args:
        files: The model's own files.
        store: The model store, which may have a file for the models of a contract.

    Raises:
        InvalidModel: They cannot be used, or contradict each other.
    """
    try:
        yaml = _model_config(files)
        offer = contracts().get(files.contract)
        if offer is None:
            return Configured(yaml)
        contract = importlib.import_module(offer.configure)
        configured: Configured = contract.configure(files.model_dir, yaml, store)
        return configured
    except InvalidModelConfig as error:
        raise InvalidModel(str(error)) from error


def _with_defaults(given: Mapping[Any, Any], defaults: Mapping[str, Any]) -> dict[Any, Any]:
    """Return the values of a file, and where it says nothing, those of the source; a store comes with its own keys."""
    merged = {**defaults, **given}
    handler, own = defaults.get("handler"), given.get("handler")
    if isinstance(handler, Mapping) and isinstance(own, Mapping):
        cache, own_cache = handler.get("cache", {}), own.get("cache")
        store = cache.get("store")
        if isinstance(own_cache, Mapping) and own_cache.get("store", store) == store:
            own = {**own, "cache": {**cache, **own_cache}}
        merged["handler"] = {**handler, **own}
    return merged


def _model_config(files: ModelFiles) -> ModelConfig:
    """Return what `model-config.yaml` says, and where it says nothing, what the handler's file says."""
    file, source = files.config_file, files.source
    if source is None:
        return read_model_config(file, files.contract) if file else ModelConfig()
    mapping = read_mapping(file) if file else YamlMapping({}, {})
    given = _with_defaults(mapping.values, source.config)
    overruled = {key: each for key, each in source.fixed.items() if given.get(key) not in (None, each[0])}
    values = given | {key: value for key, (value, _) in overruled.items()}
    config = parse_model_config(replace(mapping, values=values), file.name if file else source.name)
    unread = [each for each in source.unread.items() if values.get(each[0])]
    return config.completed(
        [
            *(f"{name} has no effect here: it is read by {reader} only" for name, reader in unread),
            *(f"{key} {str(given[key]).lower()} has no effect here: {why}" for key, (_, why) in overruled.items()),
        ]
    )
