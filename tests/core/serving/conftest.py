"""The event loop of the server."""

from tests.core.workers.conftest import pytest_asyncio_loop_factories

__all__ = ["pytest_asyncio_loop_factories"]
