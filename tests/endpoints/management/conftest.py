"""Fixtures: registries of models without workers."""

from tests.core.models.conftest import make_registry, no_workers, store

__all__ = ["make_registry", "no_workers", "store"]
