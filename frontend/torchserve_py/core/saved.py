"""The saved form of a model, from which it can be registered again unchanged."""

from __future__ import annotations

from torchserve_py.core.model import Model
from torchserve_py.core.versions import Versions
from torchserve_py.settings.schemas.versions import SavedModel


def saved_model(model: Model, versions: Versions) -> SavedModel:
    """Return the snapshot entry of a model, which is one of `versions`; its location is the URL of its registration."""
    config = model.config
    is_default = model is versions.default
    return SavedModel(
        name=model.name,
        version=model.version,
        location=model.served.url,
        default=is_default,
        chosen=is_default and versions.is_chosen,
        min_workers=model.pool.min_workers,
        max_workers=model.pool.max_workers,
        batch_size=config.batch_size,
        max_batch_delay=config.max_batch_delay_ms,
        response_timeout=config.response_timeout,
        startup_timeout=config.startup_timeout,
        runtime=config.runtime,
        parallel_level=config.parallel_level,
        handler=model.handler if model.handler != model.files.manifest.handler else None,
    )
