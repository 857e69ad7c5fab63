"""Models for registries that the tests of this folder make."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchserve_py.core.models.registry import ModelRegistry
from torchserve_py.core.serving.serving import RegisterRequest

MakeRegistry = Callable[..., ModelRegistry]


def write_model(folder: Path, manifest: dict[str, Any] | None = None) -> Path:
    """Write a model folder, a packed one where there is a manifest."""
    folder.mkdir()
    (folder / "handler.py").write_text("def handle(data, context):\n    return data\n")
    if manifest is not None:
        (folder / "MAR-INF").mkdir()
        (folder / "MAR-INF" / "MANIFEST.json").write_text(json.dumps(manifest))
    return folder


def without_workers(url: str, **more: Any) -> RegisterRequest:
    return RegisterRequest(url=url, initial_workers=0, **more)


def urls(registry: ModelRegistry) -> list[tuple[str, str, str]]:
    """Name, version and URL of all that is registered."""
    models = [model for each in registry.models() for model in registry.versions(each.name)]
    return [(model.name, model.version, model.url) for model in models]
