"""Reads the usage of GPUs, and the memory of each process on them, by NVML.

That takes the package nvidia-ml-py (`pip install 'torchserve-py[gpu]'`) and NVIDIA's driver. Without them `nvidia_smi`
tells the usage, and the memory of processes is not known.
"""

import functools
import logging
from typing import Any, Final

from torchserve_py.core.gpus import nvidia_smi
from torchserve_py.core.serving.usage import GpuUsage

logger = logging.getLogger(__name__)

_MEBIBYTE: Final = 1 << 20


def read_usage() -> tuple[GpuUsage, ...]:
    """Return how busy each GPU is now, in the order of nvidia-smi's numbers."""
    if _library() is None:
        return nvidia_smi.read_usage()
    return tuple(_usage(index, gpu) for index, gpu in _gpus())


def memory_by_process() -> dict[int, int]:
    """Return the bytes on all GPUs together of each process that computes there, by process id.

    In a container with process ids of its own, the ids are those of the host.
    """
    memory: dict[int, int] = {}
    for _, gpu in _gpus():
        for process in _ask("nvmlDeviceGetComputeRunningProcesses", gpu) or ():
            memory[process.pid] = memory.get(process.pid, 0) + (process.usedGpuMemory or 0)
    return memory


@functools.cache
def _library() -> Any:
    """Return the module ``pynvml``, initialized; None if it is not installed or the host has no driver."""
    try:
        import pynvml
    except ModuleNotFoundError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        logger.debug("NVML is not used: %s", error)
        return None
    return pynvml


def _gpus() -> list[tuple[int, Any]]:
    gpus = [(index, _ask("nvmlDeviceGetHandleByIndex", index)) for index in range(_ask("nvmlDeviceGetCount") or 0)]
    return [(index, gpu) for index, gpu in gpus if gpu is not None]


def _usage(index: int, gpu: Any) -> GpuUsage:
    busy, memory = _ask("nvmlDeviceGetUtilizationRates", gpu), _ask("nvmlDeviceGetMemoryInfo", gpu)
    return GpuUsage(
        index,
        None if busy is None else float(busy.gpu),
        None if busy is None else float(busy.memory),
        None if memory is None else memory.used / _MEBIBYTE,
        None if memory is None else memory.total / _MEBIBYTE,
    )


def _ask(function: str, *arguments: Any) -> Any:
    """Return an answer of NVML; None where a GPU has none, such as the utilization of a divided one."""
    library = _library()
    if library is None:
        return None
    try:
        return getattr(library, function)(*arguments)
    except library.NVMLError as error:
        logger.debug("%s: %s", function, error)
        return None
