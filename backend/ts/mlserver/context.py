"""Which model the running code belongs to: for logging and for metrics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ts.mlserver.settings import ModelSettings

model_name_var: ContextVar[str] = ContextVar("model_name")
model_version_var: ContextVar[str] = ContextVar("model_version")


@contextmanager
def model_context(model_settings: ModelSettings) -> Iterator[None]:
    """Run the block as code of the model that has these settings."""
    name = model_name_var.set(model_settings.name)
    version = model_version_var.set(model_settings.version or "")
    try:
        yield
    finally:
        model_name_var.reset(name)
        model_version_var.reset(version)
