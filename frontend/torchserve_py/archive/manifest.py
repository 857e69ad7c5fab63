"""`MAR-INF/MANIFEST.json`: the description of the model in an archive.

The format is TorchServe's. Unknown keys are kept: a handler sees the whole mapping as `context.manifest`.
"""

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
#: The attributes of `Manifest` and their keys below "model".
_MODEL_KEYS = {
    "model_name": "modelName",
    "serialized_file": "serializedFile",
    "handler": "handler",
    "model_file": "modelFile",
    "model_version": "modelVersion",
    "requirements_file": "requirementsFile",
    "config_file": "configFile",
    "envelope": "envelope",
}


@dataclass(frozen=True, slots=True)
class Manifest:
    """A valid manifest, and `raw`, the mapping that it was read from. `parse`, `read` and `describe` make one."""

    raw: Mapping[str, Any]
    runtime: str
    model_name: str | None
    serialized_file: str | None
    handler: str | None
    model_file: str | None
    model_version: str
    requirements_file: str | None
    config_file: str | None
    envelope: str | None

    @property
    def undated(self) -> tuple[str, ...]:
        """The keys about the archive's making that are missing: TorchServe warns of each."""
        return tuple(key for key in ("createdOn", "archiverVersion") if self.raw.get(key) is None)

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
    texts = {name: _text(key, model.get(key)) for name, key in _MODEL_KEYS.items()}
    version = texts.pop("model_version") or DEFAULT_VERSION
    return Manifest(raw, raw.get("runtime", RUNTIMES[0]), model_version=version, **texts)


def describe(*, runtime: str = RUNTIMES[0], **model: str | None) -> Manifest:
    """The manifest of a model; `model` are attributes of `Manifest`. Those without a value are left out."""
    keys = {_MODEL_KEYS[name]: value for name, value in model.items() if value}
    return checked({"runtime": runtime, "model": keys})


def stamped(manifest: Manifest, when: datetime) -> Manifest:
    """`manifest` with the keys that tell when and by which version of the archiver it was packed."""
    created = when.strftime("%d/%m/%Y %H:%M:%S")
    return checked({"createdOn": created, **manifest.raw, "archiverVersion": __version__})


def _text(key: str, value: Any) -> str | None:
    """The value of a key below "model"; None where it is missing or empty."""
    if value in (None, ""):
        return None
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InvalidArchive(_NOT_PARSED, f'"model.{key}" must be a string, not {_json_type(value)}')
    path = PurePosixPath(str(value))
    if key.endswith("File") and (path.is_absolute() or ".." in path.parts or "\0" in str(value)):
        detail = f'"model.{key}" is {json.dumps(value)}, must be the path of a file in the archive'
        raise InvalidArchive(_NOT_PARSED, detail)
    return str(value)


def _json_type(value: Any) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
