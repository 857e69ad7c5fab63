"""Fixtures: registries of models without workers."""

from tests.unit.models.conftest import make_registry, store

__all__ = ["make_registry", "store"]
