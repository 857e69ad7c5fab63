"""`MAR-INF/MANIFEST.json`: the description of the model in an archive.

The format is TorchServe's. Unknown keys are kept: a handler sees the whole mapping as `context.manifest`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any

from torchserve_py.archive.errors import InvalidArchive
from torchserve_py.version import __version__

MANIFEST_PATH = PurePosixPath("MAR-INF", "MANIFEST.json")
MAX_MANIFEST_BYTES = 1 << 20
DEFAULT_VERSION = "1.0"
RUNTIMES = ("python", "python3", "LSP")

_SHOWN = 80
_NOT_PARSED = "Failed to parse signature.json."
_FILE_KEYS = ("serializedFile", "modelFile", "requirementsFile", "configFile")
_TEXT_KEYS = ("modelName", "modelVersion", "handler", "envelope", *_FILE_KEYS)


@dataclass(frozen=True, slots=True)
class Manifest:
    """A valid manifest. `raw` is the mapping as it was read; everything else is looked up in it.

    Make one with `parse`, `read` or `describe`: they check the mapping.
    """

    raw: Mapping[str, Any]

    @property
    def model_name(self) -> str | None:
        return self._text("modelName")

    @property
    def model_version(self) -> str:
        """The version, `1.0` where the manifest has none."""
        return self._text("modelVersion") or DEFAULT_VERSION

    @property
    def handler(self) -> str | None:
        return self._text("handler")

    @property
    def serialized_file(self) -> str | None:
        return self._text("serializedFile")

    @property
    def model_file(self) -> str | None:
        return self._text("modelFile")

    @property
    def requirements_file(self) -> str | None:
        return self._text("requirementsFile")

    @property
    def config_file(self) -> str | None:
        return self._text("configFile")

    @property
    def envelope(self) -> str | None:
        return self._text("envelope")

    @property
    def runtime(self) -> str:
        return str(self.raw.get("runtime", RUNTIMES[0]))

    @property
    def undated(self) -> tuple[str, ...]:
        """The keys about the archive's making that are missing: TorchServe warns of each."""
        return tuple(key for key in ("createdOn", "archiverVersion") if self.raw.get(key) is None)

    def _text(self, key: str) -> str | None:
        value = self.raw.get("model", {}).get(key)
        return None if value in (None, "") else str(value)

    def to_json(self) -> str:
        """The text of the file, the same for the same manifest."""
        return json.dumps(self.raw, indent=2, ensure_ascii=False) + "\n"


def parse(text: str | bytes) -> Manifest:
    """Read a manifest's JSON text. Raises InvalidArchive with TorchServe's message for what is wrong."""
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArchive(_NOT_PARSED, f"{MANIFEST_PATH} is not JSON: {error}") from error
    return checked(raw)


def read(path: Path) -> Manifest:
    """Read the manifest file at `path`. Raises InvalidArchive, and OSError where it cannot be read."""
    with path.open("rb") as file:
        text = file.read(MAX_MANIFEST_BYTES + 1)
    if len(text) > MAX_MANIFEST_BYTES:
        raise InvalidArchive(_NOT_PARSED, f"{MANIFEST_PATH} is larger than {MAX_MANIFEST_BYTES} bytes")
    return parse(text)


def checked(raw: Any) -> Manifest:
    """The manifest with the mapping `raw`. Raises InvalidArchive with TorchServe's message for what is wrong."""
    if not isinstance(raw, Mapping):
        raise InvalidArchive(_NOT_PARSED, f"{MANIFEST_PATH} must be a JSON object, not {_json_type(raw)}")
    model = raw.get("model", {})
    if model is None:
        raise InvalidArchive("Missing Model entry in manifest file.")
    if not isinstance(model, Mapping):
        raise InvalidArchive(_NOT_PARSED, f'"model" must be an object, not {_json_type(model)}')
    if raw.get("runtime", RUNTIMES[0]) not in RUNTIMES:
        detail = f"Found {json.dumps(raw['runtime'])[:_SHOWN]}, must be one of {', '.join(RUNTIMES)}"
        raise InvalidArchive("Runtime is not defined or invalid.", detail)
    for key in _TEXT_KEYS:
        _check_text(key, model.get(key))
    for key in _FILE_KEYS:
        _check_inside(key, model.get(key))
    return Manifest(raw)


def describe(
    *,
    model_name: str,
    version: str | None = None,
    handler: str | None = None,
    serialized_file: str | None = None,
    model_file: str | None = None,
    requirements_file: str | None = None,
    config_file: str | None = None,
    runtime: str = RUNTIMES[0],
) -> Manifest:
    """The manifest of a model made of these files. A key that has no value is left out."""
    model = {
        "modelName": model_name,
        "serializedFile": serialized_file,
        "handler": handler,
        "modelFile": model_file,
        "modelVersion": version,
        "requirementsFile": requirements_file,
        "configFile": config_file,
    }
    return checked({"runtime": runtime, "model": {key: value for key, value in model.items() if value}})


def stamped(manifest: Manifest, when: datetime) -> Manifest:
    """`manifest` with the keys that tell when and by which version of the archiver it was packed."""
    created = when.strftime("%d/%m/%Y %H:%M:%S")
    return Manifest({"createdOn": created, **manifest.raw, "archiverVersion": __version__})


def _check_text(key: str, value: Any) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, str | int | float)):
        raise InvalidArchive(_NOT_PARSED, f'"model.{key}" must be a string, not {_json_type(value)}')


def _check_inside(key: str, value: Any) -> None:
    if value is None:
        return
    path = PurePosixPath(str(value))
    if path.is_absolute() or ".." in path.parts or "\0" in str(value):
        detail = f'"model.{key}" is {json.dumps(value)}, must be the path of a file in the archive'
        raise InvalidArchive(_NOT_PARSED, detail)


def _json_type(value: Any) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
