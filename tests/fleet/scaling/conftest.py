"""Fixtures: registries of models without workers."""

from tests.core.models.conftest import make_registry, store

__all__ = ["make_registry", "store"]
