"""A handler that sleeps: it moves its weights to the memory of the host, say, and back before its next batch.

The server asks it by a request of a protocol of its own, alone in its batch, which calls the handler's method
``sleep``. The first batch after that calls ``wake`` before ``handle``.
"""

import gc
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from ts.context import Context, RequestProcessor
from ts.jobs.errors import LoadError
from ts.jobs.row import Row, RowReader
from ts.protocol.messages import InferRow, Load
from ts.runtime.torchserve_handler import TorchServeHandler
from ts.service import EntryPoint, Service

logger = logging.getLogger(__name__)

_METHODS: Final = ("sleep", "wake")


class Nap(dict[str, Any]):
    """The data of a row that asks the handler to sleep."""


def row_reader(context: Context, declared: Mapping[str, Any], envelope: str | None) -> RowReader:
    """Return what reads a request to sleep, whatever the handler reads."""
    return _read


def _read(wire_row: InferRow) -> Row:
    return Row(wire_row.job_id, Nap(), RequestProcessor(None, wire_row.headers))


def prepare(
    service: Service,
    runtime: TorchServeHandler,
    load: Load,
    argument: bool,
    wait_for: Callable[[Awaitable[Any]], Any] | None = None,
) -> None:
    """Let the handler sleep when it is asked to. Raises LoadError: it has no methods for that."""
    sleep, wake = (getattr(service.handler, each, None) for each in _METHODS)
    if not (callable(sleep) and callable(wake)):
        raise LoadError(
            "sleep is true in model-config.yaml, so the handler must be a class with the methods sleep(self)"
            " and wake(self)."
        )
    service.entry_point = Sleeper(sleep, wake, service.entry_point)


class Sleeper:
    """An entry point around that of a handler which sleeps."""

    def __init__(self, sleep: Callable[[], Any], wake: Callable[[], Any], handle: EntryPoint) -> None:
        self._sleep, self._wake, self._handle = sleep, wake, handle
        #: Whether `wake` is due, be it that `sleep` has failed half way.
        self._is_asleep = False

    def __call__(self, data: Any, context: Context) -> Any:
        """Call the handler, which wakes if it sleeps; or let it sleep. Raises what the handler raises."""
        if data and type(data[0]) is Nap:
            if not self._is_asleep:
                self._is_asleep = True
                _timed("sleeps", self._sleep)
                _give_back_memory()
            return [""]
        if self._is_asleep:
            _timed("has woken", self._wake)
            self._is_asleep = False
        return self._handle(data, context)


def _timed(what: str, call: Callable[[], Any]) -> None:
    began = time.perf_counter()
    call()
    logger.info("The handler %s after %.2f s", what, time.perf_counter() - began)


def _give_back_memory() -> None:
    """Give what PyTorch keeps of a GPU's memory for later use back to the device."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
