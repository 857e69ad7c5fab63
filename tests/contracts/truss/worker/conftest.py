"""What the tests of Truss models share."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.contracts.truss.worker.frontend import Frontend


@pytest.fixture
async def serve() -> AsyncIterator[Callable[..., Frontend]]:
    """Serve an instance of a model class."""
    made: list[Frontend] = []

    def start(model: Any, **settings: Any) -> Frontend:
        made.append(Frontend(model, **settings))
        return made[-1]

    yield start
    for frontend in made:
        await frontend.close()
