"""The source of a module in place of nvidia-ml-py's ``pynvml``, for machines without a GPU."""

_SOURCE = """
import os
from pathlib import Path
from types import SimpleNamespace

import psutil


class NVMLError(Exception):
    pass


def nvmlInit():
    pass


def nvmlDeviceGetCount():
    return GPUS


def nvmlDeviceGetHandleByIndex(index):
    return index


def nvmlDeviceGetUtilizationRates(gpu):
    return SimpleNamespace(gpu=50, memory=25)


def nvmlDeviceGetMemoryInfo(gpu):
    return SimpleNamespace(used=1 << 30, total=2 << 30)


def nvmlDeviceGetComputeRunningProcesses(gpu):
    if "GPU_MEMORY" in os.environ:
        files = [each for each in Path(os.environ["GPU_MEMORY"]).iterdir() if psutil.pid_exists(int(each.name))]
        return [SimpleNamespace(pid=int(each.name), usedGpuMemory=int(each.read_text())) for each in files]
    return [SimpleNamespace(pid=pid, usedGpuMemory=1 << 30) for pid in pids()]


def pids():
    if "PIDS" in os.environ:
        return [int(pid) for pid in Path(os.environ["PIDS"]).read_text().split()]
    return [child.pid for child in psutil.Process().children(recursive=True)]
"""


def stand_in_nvml(gpus: int) -> str:
    """Return the source: on each GPU compute the processes in the file at ``PIDS``, or all of the server's.

    With a folder ``GPU_MEMORY`` those whose ids its files have for names, which hold their bytes.
    """
    return f"GPUS = {gpus}\n{_SOURCE}"
