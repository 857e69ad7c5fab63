"""What ``--schema`` prints: the JSON Schema of a file that users write."""

import json
from typing import Final

from torchserve_py.core.contracts.mlserver import ModelSettings, ServerSettings
from torchserve_py.core.contracts.truss import OptionsKey, TrussConfig
from torchserve_py.metrics.metrics_file import MetricsFile
from torchserve_py.settings.schemas.model_config import ModelConfigFile
from torchserve_py.settings.schemas.schema import Schema
from torchserve_py.settings.table import Settings
from torchserve_py.workflows.spec import SpecFile


class ModelConfig(ModelConfigFile, OptionsKey):
    """A `model-config.yaml` with the keys of all contracts."""


#: By the name that the flag takes: the file and its schema.
SCHEMAS: Final[dict[str, tuple[str, type[Schema]]]] = {
    "config.properties": ("config.properties", Settings),
    "model-config": ("model-config.yaml", ModelConfig),
    "metrics": ("metrics.yaml", MetricsFile),
    "workflow": ("the specification of a workflow", SpecFile),
    "truss": ("config.yaml of a Truss", TrussConfig),
    "mlserver-model": ("model-settings.json", ModelSettings),
    "mlserver-server": ("settings.json", ServerSettings),
}


def schema_text(name: str) -> str:
    """Return the JSON Schema called ``name``, one of `SCHEMAS`."""
    title, schema = SCHEMAS[name]
    draft = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return json.dumps({**draft, **schema.model_json_schema(), "title": title}, indent=2)
