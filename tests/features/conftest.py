"""For the tests of features: doors with a fake model registry behind them, workers without processes, and a Redis."""

from tests.features.sequence_steps.conftest import cache_settings, durable_worker, kind, redis_server
from tests.unit.doors.conftest import serving, start
from tests.unit.ts.conftest import frontend, make_worker, model

__all__ = [
    "cache_settings",
    "durable_worker",
    "frontend",
    "kind",
    "make_worker",
    "model",
    "redis_server",
    "serving",
    "start",
]
