"""`Model`: what a manifest says of its model."""

import json
from pathlib import PurePath
from typing import Any


class Model:
    """The model of a manifest. Files are told by their names, which they have at the archive's root."""

    def __init__(
        self,
        model_name: str,
        serialized_file: str | None,
        handler: str,
        model_file: str | None = None,
        model_version: str | None = None,
        extensions: Any = None,
        requirements_file: str | None = None,
        config_file: str | None = None,
    ) -> None:
        self.model_name = model_name
        self.serialized_file = _name(serialized_file)
        self.handler = PurePath(handler).name
        self.model_file = model_file
        self.model_version = model_version
        self.extensions = extensions
        self.requirements_file = requirements_file
        self.config_file = _name(config_file)
        members = {
            "modelName": model_name,
            "serializedFile": self.serialized_file,
            "handler": self.handler,
            "modelFile": _name(model_file),
            "modelVersion": model_version,
            "extensions": extensions,
            "requirementsFile": _name(requirements_file),
            "configFile": self.config_file,
        }
        #: The model as the manifest has it; what is not given is left out.
        self.model_dict = {name: value for name, value in members.items() if value or name in ("modelName", "handler")}

    def __to_dict__(self) -> dict[str, Any]:
        return self.model_dict

    def __str__(self) -> str:
        return json.dumps(self.model_dict)

    __repr__ = __str__


def _name(path: str | None) -> str | None:
    return PurePath(path).name if path else None
