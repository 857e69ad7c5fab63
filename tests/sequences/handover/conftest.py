"""Workers that keep their sequences in memory."""

from collections.abc import Callable

import pytest
from tests.sequences.steps.conftest import CacheSettings
from tests.unit.ts.frontend_stub import Worker


@pytest.fixture
def kind() -> str:
    return "memory"


@pytest.fixture
def worker_of(make_worker: Callable[..., Worker], cache_settings: CacheSettings) -> Callable[..., Worker]:
    """Load a handler's source into a worker, whose ``handler.cache`` has these values."""
    return lambda source, **changes: make_worker(source, sequences=True, cache=cache_settings(**changes))
