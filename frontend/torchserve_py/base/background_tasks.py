"""Tasks that nobody awaits: they are kept until they end, and what one of them raises is logged at once."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: An event loop itself holds its tasks only weakly.
_running: Final = set[asyncio.Task[Any]]()


def in_background(work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
    """Start a task; ``name`` says in the log what has failed if it raises an exception."""
    task = asyncio.create_task(work, name=name)
    _running.add(task)
    task.add_done_callback(_ended)
    return task


def _ended(task: asyncio.Task[Any]) -> None:
    _running.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("A task of the server has failed: %s", task.get_name(), exc_info=error)
