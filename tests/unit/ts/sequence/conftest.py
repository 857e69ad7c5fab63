"""For the tests of states that a store keeps: stores, and workers that use them."""

from tests.sequences.steps.conftest import cache_settings, durable_worker, kind, redis_server

__all__ = ["cache_settings", "durable_worker", "kind", "redis_server"]
