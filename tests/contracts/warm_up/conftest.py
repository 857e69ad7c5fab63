"""For warm-up requests of models with sequences."""

from tests.sequences.steps.conftest import cache_settings

__all__ = ["cache_settings"]
