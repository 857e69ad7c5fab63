"""What ``--schema`` prints: the JSON Schema of a file that users write."""

import json
from collections.abc import Callable, Mapping
from typing import cast

from torchserve_py.base.settings.flags import OWN_SCHEMAS
from torchserve_py.base.settings.schemas.model_config import ModelConfigFile
from torchserve_py.base.settings.schemas.schema import Schema
from torchserve_py.base.settings.server_settings import server_settings
from torchserve_py.plugin_api import SchemaOffer
from torchserve_py.plugins import model_config_keys, plugins


def model_config_file() -> type[Schema]:
    """Return the schema of a `model-config.yaml` with the keys of all plugins."""
    bases: tuple[type[Schema], ...] = (*model_config_keys(), ModelConfigFile)
    return cast(type[Schema], type("ModelConfig", bases, {}))


def schemas() -> Mapping[str, Callable[[], SchemaOffer]]:
    """Return what the flag takes, each with what makes the schema."""
    makers: tuple[Callable[[], SchemaOffer], ...] = (
        lambda: SchemaOffer("config.properties", server_settings()),
        lambda: SchemaOffer("model-config.yaml", model_config_file()),
    )
    return dict(zip(OWN_SCHEMAS, makers, strict=True)) | {
        name: make for plugin in plugins() for name, make in plugin.schemas.items()
    }


def schema_text(name: str) -> str:
    """Return the JSON Schema called ``name``, one of `schemas`."""
    title, schema = schemas()[name]()
    draft = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return json.dumps({**draft, **schema.model_json_schema(), "title": title}, indent=2)
