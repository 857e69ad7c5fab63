"""Reads the usage of GPUs, and the memory of each process on them, by NVML.

That takes the package nvidia-ml-py (`pip install 'torchserve-py[gpu]'`) and NVIDIA's driver. Without them the server
asks `nvidia_smi` for the usage, and does not know the memory of processes.
"""

import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar

from torchserve_py.nvidia_smi import GpuUsage

logger = logging.getLogger(__name__)

_MEBIBYTE: Final = 1 << 20
T = TypeVar("T")


class Nvml:
    """NVML, initialized; ``library`` is the module ``pynvml``."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def read_usage(self) -> tuple[GpuUsage, ...]:
        """Return how busy each GPU is now, in the order of nvidia-smi's numbers."""
        return tuple(self._usage(index, handle) for index, handle in self._gpus())

    def memory_by_process(self) -> dict[int, int]:
        """Return the bytes on all GPUs together of each process that computes there, by process id.

        In a container with process ids of its own, the ids are those of the host.
        """
        memory: dict[int, int] = {}
        for _, gpu in self._gpus():
            for process in self._ask(self._library.nvmlDeviceGetComputeRunningProcesses, gpu) or ():
                memory[process.pid] = memory.get(process.pid, 0) + (process.usedGpuMemory or 0)
        return memory

    def _gpus(self) -> list[tuple[int, Any]]:
        count = self._ask(self._library.nvmlDeviceGetCount) or 0
        gpus = [(index, self._ask(self._library.nvmlDeviceGetHandleByIndex, index)) for index in range(count)]
        return [(index, gpu) for index, gpu in gpus if gpu is not None]

    def _usage(self, index: int, gpu: Any) -> GpuUsage:
        busy = self._ask(self._library.nvmlDeviceGetUtilizationRates, gpu)
        memory = self._ask(self._library.nvmlDeviceGetMemoryInfo, gpu)
        return GpuUsage(
            index,
            None if busy is None else float(busy.gpu),
            None if busy is None else float(busy.memory),
            None if memory is None else memory.used / _MEBIBYTE,
            None if memory is None else memory.total / _MEBIBYTE,
        )

    def _ask(self, function: Callable[..., T], *arguments: Any) -> T | None:
        """Return an answer of NVML; None where a GPU has none, such as the utilization of a divided one."""
        try:
            return function(*arguments)
        except self._library.NVMLError as error:
            logger.debug("%s: %s", function.__name__, error)
            return None


def open_nvml() -> Nvml | None:
    """Return NVML; None if nvidia-ml-py is not installed or the host has no driver."""
    try:
        import pynvml
    except ModuleNotFoundError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        logger.debug("NVML is not used: %s", error)
        return None
    return Nvml(pynvml)
