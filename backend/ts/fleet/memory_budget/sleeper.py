"""A handler that sleeps: it moves its weights to the memory of the host, say, and back when it wakes.

The server asks for both while the handler has no jobs, and sends none to one that sleeps.
"""

import gc
import logging
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from ts.fleet.memory_budget.questions import SLEEP, WAKE
from ts.jobs.errors import LoadError, users_traceback, wire_text
from ts.protocol.messages import Load
from ts.runtime.torchserve_handler import TorchServeHandler
from ts.service import Service

logger = logging.getLogger(__name__)


def prepare(
    service: Service,
    runtime: TorchServeHandler,
    load: Load,
    argument: bool,
    wait_for: Callable[[Awaitable[Any]], Any] | None = None,
) -> None:
    """Let the handler sleep and wake when it is asked to. Raises LoadError: it has no methods for that."""
    sleep, wake = (getattr(service.handler, each, None) for each in (SLEEP, WAKE))
    if not (callable(sleep) and callable(wake)):
        raise LoadError(
            "sleep is true in model-config.yaml, so the handler must be a class with the methods sleep(self)"
            " and wake(self)."
        )
    runtime.answers[SLEEP] = partial(_answer, "sleeps", partial(_sleep, sleep))
    runtime.answers[WAKE] = partial(_answer, "has woken", wake)


def _answer(what: str, call: Callable[[], Any]) -> float | str:
    """Call the handler; return how many seconds it took, or what it raised."""
    began = time.perf_counter()
    try:
        call()
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:  # a panic of Rust code, as tokenizers have it, is no Exception
        logger.error("The handler fails", exc_info=(type(error), error, users_traceback(error)))
        return wire_text(f"{type(error).__name__}: {error}")
    seconds = time.perf_counter() - began
    logger.info("The handler %s after %.2f s", what, seconds)
    return seconds


def _sleep(sleep: Callable[[], Any]) -> None:
    """Let the handler sleep, and give what PyTorch keeps of a GPU's memory for later use back to the device."""
    sleep()
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
