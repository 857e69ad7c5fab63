"""Snapshot files: config.properties with one more key, `model_snapshot`, which lists the models that were served.

The format is TorchServe's: each server reads the snapshots of the other. Two additions, which TorchServe ignores, are
the handler that a registration has named, and the start-up models that were not loaded.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from torchserve_py.base.settings.model_spec import ModelSpec, parse_model_specs
from torchserve_py.base.settings.schemas.schema import Schema, key, read
from torchserve_py.base.settings.schemas.values import MAX_LONG, AnyText, Nested, Texts, integer, json_object
from torchserve_py.base.settings.schemas.versions import SavedModel
from torchserve_py.core.archive.errors import ArchiveNotFound
from torchserve_py.core.archive.locate import locate

_Versions = Annotated[
    dict[str, Annotated[SavedModel, Nested("a JSON object with marName")]],
    Nested("a JSON object with an object for each version"),
]


class ModelSnapshot(Schema):
    """The value of `model_snapshot`."""

    name: AnyText = key(None, "the file of the snapshot")
    created: Annotated[int, integer(0, MAX_LONG)] = key(None, "milliseconds since 1970 (UTC)", "", 0)
    models: Annotated[dict[str, _Versions], Nested("a JSON object of models")] = key(None, "the models", "", {})
    not_loaded: Texts = key("notLoaded", "start-up models that could not be loaded")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The models that were served; `name` is the snapshot's file, `created` the time in milliseconds since 1970 (UTC).

    `not_loaded` are the start-up models that could not be loaded; the next start tries them again.
    """

    name: str
    created: int
    models: tuple[SavedModel, ...]
    not_loaded: tuple[ModelSpec, ...] = ()

    def __str__(self) -> str:
        """Return the JSON."""
        models: dict[str, dict[str, Any]] = {}
        for model in self.models:
            entry = model.model_dump(by_alias=True, exclude_defaults=True, exclude={"name", "version"})
            models.setdefault(model.name, {})[model.version] = {"defaultVersion": model.default, **entry}
        content = {"name": self.name, "modelCount": len(self.models), "created": self.created, "models": models}
        if self.not_loaded:
            content["notLoaded"] = [str(spec) for spec in self.not_loaded]
        return json.dumps(content, ensure_ascii=False)

    def missing(self, model_store: Path) -> list[str]:
        """Return a message for each model whose archive is missing."""
        return [
            f"Model archive file for model :{model.name}, version :{model.version} not found in model store"
            for model in self.models
            if not _is_there(model.location, model_store)
        ]


def parse_snapshot(text: str) -> Snapshot:
    """Read the value of `model_snapshot`. Raises ValueError with all that is wrong."""
    content, problems = read(ModelSnapshot, json_object(text))
    if problems:
        raise ValueError("; ".join(problems.values()))
    return Snapshot(
        content.name or "",
        content.created,
        tuple(
            saved.model_copy(update={"name": name, "version": version})
            for name, versions in content.models.items()
            for version, saved in versions.items()
        ),
        tuple(parse_model_specs(content.not_loaded or ())),
    )


def _is_there(location: str, model_store: Path) -> bool:
    try:
        locate(location, model_store)
    except ArchiveNotFound:
        return False
    return True
