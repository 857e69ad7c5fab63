"""Models as they are saved, and which models a server registers when it starts: saved ones, or `load_models`."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torchserve_py.base.settings.model_spec import ModelSpec, expand_model_specs, is_url
from torchserve_py.base.settings.schemas.versions import SavedModel
from torchserve_py.base.settings.table import Settings
from torchserve_py.core.archive.file_function import split_function
from torchserve_py.core.models.model import Model
from torchserve_py.core.models.served_models import ModelVersions
from torchserve_py.core.serving.serving import RegisterRequest, Restored


@dataclass(frozen=True)
class StartupModel:
    """A model that is registered at the start; `spec` is its entry in a list of models.

    `default`: it serves requests without version. `chosen`: an operator has chosen the default explicitly.
    """

    spec: ModelSpec
    request: RegisterRequest
    default: bool = False
    chosen: bool = False


def startup_models(settings: Settings, restored: Restored | None) -> Iterator[StartupModel]:
    """Yield the models in the order in which they are registered; ``restored`` takes the place of `load_models`."""
    earlier = restored or Restored((), settings.load_models)
    for saved in earlier.models:
        spec = ModelSpec(saved.name, saved.location)
        yield StartupModel(spec, RegisterRequest.of(saved), saved.default, saved.chosen)
    for spec in expand_model_specs(earlier.not_loaded, settings.model_store):
        yield StartupModel(spec, RegisterRequest(url=spec.location, model_name=spec.name))


def remedy(location: str) -> str:
    """Return what to write in place of a location with ``..``, which clients must not use, nothing for any other."""
    if ".." not in Path(location).parts or is_url(location):
        return ""
    file, function = split_function(location)
    path = Path(file).resolve()
    if not path.exists():
        return f"; and there is no {path}"
    return f"; its absolute path is allowed: {path}{':' if function else ''}{function}"


def saved_model(model: Model, versions: ModelVersions | None) -> SavedModel:
    """Return what is saved of a model, which is one of `versions`; its location is the URL of its registration."""
    config = model.config
    is_default = versions is not None and model is versions.default
    return SavedModel(
        name=model.name,
        version=model.version,
        location=model.served.url,
        default=is_default,
        chosen=is_default and versions is not None and versions.is_chosen,
        min_workers=model.pool.min_workers,
        max_workers=model.pool.max_workers,
        batch_size=config.batch_size,
        max_batch_delay=config.max_batch_delay_ms,
        response_timeout=config.response_timeout,
        startup_timeout=config.startup_timeout,
        runtime=config.runtime,
        parallel_level=config.parallel_level,
        weight=model.weight,
        weight_until=model.weight_until if model.weight else None,
        handler=model.handler if model.handler != model.files.manifest.handler else None,
    )
