"""Snapshots at rest: config.properties with one key more, `model_snapshot`, which says which models were served.

The format is TorchServe's, so its snapshots are read and ours are read by it. Two things it does not have are added and
are passed over by it: the handler that a registration named, and the start-up models that were not loaded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchserve_py.archive.errors import ArchiveNotFound
from torchserve_py.archive.locate import locate
from torchserve_py.settings.model_spec import ModelSpec, parse_model_specs

FOLDER = "config"
"""Where the snapshots are, below the directory of the logs."""

FILE_NAME = re.compile(r"\d{17}-(?:startup|snapshot|shutdown)\.cfg")

_NUMBERS = {
    "min_workers": "minWorkers",
    "max_workers": "maxWorkers",
    "batch_size": "batchSize",
    "max_batch_delay": "maxBatchDelay",
    "response_timeout": "responseTimeout",
    "startup_timeout": "startupTimeout",
}
_MAY_BE_ZERO = ("min_workers", "max_workers", "max_batch_delay")


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedModel:
    """One model version of a snapshot; what is None is settled by the model's own configuration.

    `location` is the archive or folder in the model store, or a folder by its absolute path. `max_batch_delay` is in
    milliseconds, timeouts are in seconds. `handler` is that of the registration, if it named one. `chosen`: it is the
    default version because somebody has said so.
    """

    name: str
    version: str
    location: str
    default: bool = False
    min_workers: int | None = None
    max_workers: int | None = None
    batch_size: int | None = None
    max_batch_delay: int | None = None
    response_timeout: int | None = None
    startup_timeout: int | None = None
    runtime: str | None = None
    parallel_level: int = 0
    handler: str | None = None
    chosen: bool = False

    def as_json(self) -> dict[str, Any]:
        """The model as it stands in `model_snapshot`."""
        values: dict[str, Any] = {"defaultVersion": self.default, "marName": self.location}
        values |= {key: getattr(self, name) for name, key in _NUMBERS.items()}
        values["runtimeType"] = self.runtime
        if self.parallel_level:
            values["parallelLevel"] = self.parallel_level
        if self.handler:
            values["handler"] = self.handler
        if self.chosen:
            values["defaultVersionChosen"] = True
        return {key: value for key, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Which models were served: `name` is the snapshot's file, `created` the time in milliseconds since 1970 (UTC).

    `not_loaded` are the start-up models that could not be loaded, so that the next start tries them again.
    """

    name: str
    created: int
    models: tuple[SavedModel, ...]
    not_loaded: tuple[ModelSpec, ...] = ()

    def __str__(self) -> str:
        """The JSON."""
        models: dict[str, dict[str, Any]] = {}
        for model in self.models:
            models.setdefault(model.name, {})[model.version] = model.as_json()
        content = {"name": self.name, "modelCount": len(self.models), "created": self.created, "models": models}
        if self.not_loaded:
            content["notLoaded"] = [str(spec) for spec in self.not_loaded]
        return json.dumps(content, ensure_ascii=False)

    def missing(self, model_store: Path) -> list[str]:
        """A sentence for each model whose archive is gone."""
        return [
            f"Model archive file for model :{model.name}, version :{model.version} not found in model store"
            for model in self.models
            if not _is_there(model.location, model_store)
        ]


def parse_snapshot(text: str) -> Snapshot:
    """Read the value of `model_snapshot`. Raises ValueError, saying what is wrong."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"no valid JSON: {error}") from None
    versions_of = _object(_object(content, "it").get("models", {}), "models")
    models = [
        _saved_model(name, version, _object(values, f"model {name} version {version}"))
        for name, versions in versions_of.items()
        for version, values in _object(versions, f"model {name}").items()
    ]
    created = content.get("created", 0)
    not_loaded = content.get("notLoaded", [])
    if not isinstance(not_loaded, list) or not all(isinstance(item, str) for item in not_loaded):
        raise ValueError("notLoaded is no list of texts")
    return Snapshot(
        str(content.get("name", "")),
        created if isinstance(created, int) else 0,
        tuple(models),
        tuple(parse_model_specs(not_loaded)),
    )


def newest_snapshot(log_location: Path) -> Path | None:
    """The snapshot that was written last, or None."""
    try:
        found = oldest_first(log_location / FOLDER)
    except OSError:  # no such folder, or not ours to read: there is nothing to restore
        return None
    return found[-1] if found else None


def oldest_first(folder: Path) -> list[Path]:
    """The snapshots in a folder by the time at which they were written. Raises OSError."""
    found = [path for path in folder.iterdir() if FILE_NAME.fullmatch(path.name)]
    return sorted(found, key=lambda path: (path.stat().st_mtime_ns, path.name))


def _is_there(location: str, model_store: Path) -> bool:
    try:
        locate(location, model_store)
    except ArchiveNotFound:
        return False
    return True


def _object(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name} is no JSON object")
    return value


def _saved_model(name: str, version: str, values: Mapping[str, Any]) -> SavedModel:
    location = values.get("marName")
    if not isinstance(location, str) or not location:
        raise ValueError(f"model {name} version {version} has no marName")
    numbers = {}
    for attribute, key in _NUMBERS.items():
        value = values.get(key)
        # What is not positive counts as not given, as in TorchServe's `models` JSON, unless 0 is a sensible value.
        if type(value) is int and (value > 0 or (value == 0 and attribute in _MAY_BE_ZERO)):
            numbers[attribute] = value
    return SavedModel(
        name=name,
        version=version,
        location=location,
        default=values.get("defaultVersion") is True,
        runtime=values.get("runtimeType") or None,
        handler=values.get("handler") or None,
        chosen=values.get("defaultVersionChosen") is True,
        **numbers,
    )
