"""What a plugin that follows the jobs of a worker does, such as measuring them."""

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from ts.protocol.messages import InferRow, Load
from ts.service import EntryPoint

if TYPE_CHECKING:
    import asyncio

    Task = asyncio.Task[None]


class WorkerObserver(Protocol):
    """Follows the calls of a handler, or the tasks that are jobs of another contract's model."""

    def around(self, entry_point: EntryPoint) -> EntryPoint:
        """Return an entry point that calls this one, which may be a coroutine function."""
        ...

    def start_task(self, wire_row: InferRow, start: "Callable[[], Task]") -> "Task":
        """Start the task of a job, and return it."""
        ...


def observers_of(load: Load) -> list[WorkerObserver]:
    """Return what follows the jobs of a model, see `Load`."""
    modules = load["observers"].items()
    return [importlib.import_module(module).observer(argument, load["model_name"]) for module, argument in modules]
