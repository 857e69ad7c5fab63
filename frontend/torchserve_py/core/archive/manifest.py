"""`MAR-INF/MANIFEST.json`: the description of the model in an archive.

The format is TorchServe's. Unknown keys are kept: a handler sees the whole mapping as `context.manifest`.
"""

import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from pydantic import BeforeValidator

from torchserve_py.base.settings.schemas import schema
from torchserve_py.base.settings.schemas.schema import Schema, key
from torchserve_py.base.settings.schemas.values import (
    ANY_TEXT,
    Expected,
    Nested,
    is_inside,
    is_number,
    json_object,
)
from torchserve_py.core.archive.errors import InvalidArchive
from ts.protocol.regular_files import read_regular_text

MANIFEST_PATH = PurePosixPath("MAR-INF", "MANIFEST.json")
MAX_MANIFEST_BYTES = 1 << 20
DEFAULT_VERSION = "1.0"
RUNTIMES = ("python", "python3", "LSP")

_SHOWN = 80
_NOT_PARSED = "Failed to parse signature.json."


def _text(value: Any) -> Any:
    """Return a number as its text, and an empty text as None."""
    return str(value) if is_number(value) else value or None if isinstance(value, str) else value


_Text = Annotated[str | None, ANY_TEXT, BeforeValidator(_text)]
_File = Annotated[str | None, Expected("the path of a file in the archive", is_inside), BeforeValidator(_text)]


class ModelEntry(Schema):
    """What is below "model"."""

    model_name: _Text = key("modelName", "the name")
    serialized_file: _File = key("serializedFile", "the weights")
    handler: _Text = key("handler", "the handler")
    model_file: _File = key("modelFile", "the file with the model's class")
    model_version: Annotated[str, ANY_TEXT, BeforeValidator(lambda value: _text(value) or DEFAULT_VERSION)] = key(
        "modelVersion", "the version", otherwise=DEFAULT_VERSION
    )
    requirements_file: _File = key("requirementsFile", "the packages that the model needs")
    config_file: _File = key("configFile", "the configuration")
    envelope: _Text = key("envelope", "the request envelope")


class Manifest(ModelEntry):
    """A valid manifest, and `raw`, the mapping that it was read from. `parse`, `read` and `describe` make one."""

    raw: Mapping[str, Any]
    runtime: str

    def to_json(self) -> str:
        """The text of the file, the same for the same manifest."""
        return json.dumps(self.raw, indent=2, ensure_ascii=False) + "\n"


class _ManifestFile(Schema):
    model: Annotated[ModelEntry, Nested("an object")] = ModelEntry()


def parse(text: str | bytes) -> Manifest:
    """Read a manifest's JSON text. Raises InvalidArchive with TorchServe's message for what is wrong."""
    try:
        raw = json_object(text)
    except ValueError as error:
        raise InvalidArchive(_NOT_PARSED, f"{MANIFEST_PATH}: {error}") from error
    return checked(raw)


def read(path: Path) -> Manifest:
    """Read the manifest file at `path`. Raises InvalidArchive, and OSError where it cannot be read."""
    try:
        text = read_regular_text(path, MAX_MANIFEST_BYTES)
    except ValueError as error:
        raise InvalidArchive(_NOT_PARSED, f"{MANIFEST_PATH}: {error}") from error
    return parse(text)


def checked(raw: Mapping[str, Any]) -> Manifest:
    """The manifest with the mapping `raw`. Raises InvalidArchive with TorchServe's message for what is wrong."""
    if raw.get("model", {}) is None:
        raise InvalidArchive("Missing Model entry in manifest file.")
    if raw.get("runtime", RUNTIMES[0]) not in RUNTIMES:
        detail = f"Found {json.dumps(raw['runtime'])[:_SHOWN]}, must be one of {', '.join(RUNTIMES)}"
        raise InvalidArchive("Runtime is not defined or invalid.", detail)
    file, problems = schema.read(_ManifestFile, raw)
    if problems:
        raise InvalidArchive(_NOT_PARSED, "; ".join(problems.values()))
    return Manifest(raw=raw, runtime=raw.get("runtime", RUNTIMES[0]), **dict(file.model))


def describe(*, runtime: str = RUNTIMES[0], **model: str | None) -> Manifest:
    """The manifest of a model; `model` are attributes of `Manifest`. Those without a value are left out."""
    keys = zip(ModelEntry.model_fields, ModelEntry.key_names(), strict=True)
    return checked({"runtime": runtime, "model": {key: model[name] for name, key in keys if model.get(name)}})
