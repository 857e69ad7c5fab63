"""Errors of the device that a model runs on: its memory ran out, or the device is lost to this process.

After some errors (a failed device-side assertion, an illegal memory access, ECC …) CUDA answers every further call of
the process with the same error. Then the process tells the server that it leaves, answers the jobs that failed, and
ends; a fresh one takes its place.
"""

import logging
import os
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from ts.protocol.messages import LEAVING

if TYPE_CHECKING:
    from ts.connection.frontend_connection import FrontendConnection

logger = logging.getLogger(__name__)

_EXIT_STATUS: Final = 70  # EX_SOFTWARE of <sysexits.h>
_MAX_TOLD: Final = 200
#: The number of causes of an exception that are examined.
_MAX_CAUSES: Final = 20
_DEVICE: Final = re.compile(r"\b(CUDA|HIP|GPU)|\bCU(BLAS|DNN)_", re.IGNORECASE)
_OUT_OF_MEMORY: Final = re.compile(
    r"(CUDA|HIP|XPU|MPS)\b[^\n]{0,60}out of memory|CU(BLAS|DNN|SOLVER|SPARSE)_STATUS_ALLOC_FAILED"
    r"|can't allocate memory|Failed to allocate memory",
    re.IGNORECASE,
)
#: cudaErrorAssert, …IllegalAddress, …LaunchFailure, …IllegalInstruction, …MisalignedAddress, …HardwareStackError,
#: …InvalidPc, …InvalidAddressSpace, …ECCUncorrectable, …NvlinkUncorrectable, …LaunchTimeout, …Unknown.
_LOST: Final = re.compile(
    "device-side assert|illegal memory access|unspecified launch failure|illegal instruction|misaligned address"
    "|hardware stack error|invalid program counter|shared address space|uncorrectable (ECC|NVLink) error"
    "|launch timed out and was terminated|unknown error|GPU is lost|fallen off the bus",
    re.IGNORECASE,
)


class _Loss:
    """Why this process cannot use its device any more; empty while it can."""

    reason = ""


#: Whoever answers jobs looks here before and after, see `announce` and `end`.
loss: Final = _Loss()


def memory_ran_out(error: BaseException) -> bool:
    """Return whether an exception or one of its causes reports that memory is exhausted, the host's or a device's."""
    return any(isinstance(each, MemoryError) for each in _chain(error, contexts=False)) or device_is_full(error)


def device_is_full(error: BaseException) -> bool:
    """Return whether an exception or one of its causes reports that the memory of a device is exhausted."""
    out_of_memory: Any = getattr(sys.modules.get("torch"), "OutOfMemoryError", ())
    return any(
        isinstance(each, out_of_memory) or _OUT_OF_MEMORY.search(_text(each)) for each in _chain(error, contexts=False)
    )


def note_loss(error: BaseException) -> str:
    """Record the loss if an exception, or one in its chain, reports that the device is lost.

    Returns:
        The message for the clients of the failed jobs; empty if the device is not lost.
    """
    for each in _chain(error, contexts=True):
        text = _text(each)
        if _DEVICE.search(text) and not _OUT_OF_MEMORY.search(text) and (_LOST.search(text) or _device_fails()):
            loss.reason = text.partition("\n")[0][:_MAX_TOLD]
            return f"The device failed while this request ran ({loss.reason}). The worker is replaced."
    return ""


def _chain(error: BaseException, *, contexts: bool) -> Iterator[BaseException]:
    """Yield an exception and its causes; with ``contexts`` also what was being handled when it was raised."""
    each: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if each is None:
            return
        yield each
        each = each.__cause__ or (each.__context__ if contexts else None)


def announce(connection: "FrontendConnection") -> None:
    """Ask the server for no more jobs, as the device is lost; call this before the answers that free the worker."""
    connection.send([LEAVING])


def end(connection: "FrontendConnection") -> None:
    """End this process, whose device is lost; call this after the failed jobs are answered."""
    connection.flush()
    logger.error("This worker ends, and a fresh one takes its place: it cannot use its device any more")
    sys.stdout.flush()
    sys.stderr.flush()
    # Skip the interpreter's shutdown: destroying objects on the device would fail or hang.
    os._exit(_EXIT_STATUS)


def _device_fails() -> bool:
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return False
    try:
        cuda.synchronize()
    except Exception:
        logger.exception("The device answers with an error")
        return True
    return False


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return type(error).__name__  # an exception of the model's own without a text
