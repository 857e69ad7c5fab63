"""Measures the host, for scripts that `system_metrics_cmd` names; the server itself does not use it.

Such a script, as in TorchServe's documentation, adds functions of its own to this module (or to a copy) and logs the
metrics that all of them add to `system_metrics`:

    logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.INFO)
    system_metrics.collect_all(sys.modules["ts.metrics.system_metrics"], num_of_gpu=0)
"""

import logging
import types

import psutil

from ts.metrics.dimension import Dimension
from ts.metrics.metric import Metric

#: The measurements of this module's functions.
system_metrics: list[Metric] = []
dimension = [Dimension("Level", "Host")]

_MEGABYTE = 1024**2
_GIGABYTE = 1024**3
_NO_MEASUREMENTS = ("collect_all", "log_msg")


def cpu_utilization() -> None:
    """Measure how busy the processors are, for a tenth of a second."""
    system_metrics.append(Metric("CPUUtilization", psutil.cpu_percent(0.1), "percent", dimension))


def memory_used() -> None:
    """Measure the memory that is used."""
    system_metrics.append(Metric("MemoryUsed", psutil.virtual_memory().used / _MEGABYTE, "MB", dimension))


def memory_available() -> None:
    """Measure the memory that is available."""
    system_metrics.append(Metric("MemoryAvailable", psutil.virtual_memory().available / _MEGABYTE, "MB", dimension))


def memory_utilization() -> None:
    """Measure how much of the memory is used."""
    system_metrics.append(Metric("MemoryUtilization", psutil.virtual_memory().percent, "percent", dimension))


def disk_used() -> None:
    """Measure how much of the root file system is used."""
    system_metrics.append(Metric("DiskUsage", psutil.disk_usage("/").used / _GIGABYTE, "GB", dimension))


def disk_available() -> None:
    """Measure how much of the root file system is free."""
    system_metrics.append(Metric("DiskAvailable", psutil.disk_usage("/").free / _GIGABYTE, "GB", dimension))


def disk_utilization() -> None:
    """Measure which share of the root file system is used."""
    system_metrics.append(Metric("DiskUtilization", psutil.disk_usage("/").percent, "percent", dimension))


def gpu_utilization(num_of_gpu: int) -> None:
    """Measure the memory and the use of the first ``num_of_gpu`` GPUs, through torch."""
    if num_of_gpu <= 0:
        return
    import torch

    for index in range(min(num_of_gpu, torch.cuda.device_count())):
        dimensions = [Dimension("Level", "Host"), Dimension("DeviceId", index)]
        free, total = torch.cuda.mem_get_info(index)
        used = total - free
        system_metrics.append(Metric("GPUMemoryUtilization", 100 * used / total, "percent", dimensions))
        system_metrics.append(Metric("GPUMemoryUsed", used / _MEGABYTE, "MB", dimensions))
        try:
            system_metrics.append(Metric("GPUUtilization", torch.cuda.utilization(index), "percent", dimensions))
        except (ModuleNotFoundError, RuntimeError) as error:  # torch asks NVML for it, which may be missing
            logging.getLogger(__name__).warning("The utilization of GPU %d is not known: %s", index, error)


def collect_all(mod: types.ModuleType, num_of_gpu: int = 0) -> None:
    """Call every function of ``mod`` and log the measurements, then an empty line, which ends the metrics."""
    for name in dir(mod):
        value = getattr(mod, name)
        if isinstance(value, types.FunctionType) and value.__name__ not in _NO_MEASUREMENTS:
            if value.__name__ == "gpu_utilization":
                value(num_of_gpu)
            else:
                value()
    for metric in system_metrics:
        logging.getLogger().info(str(metric))
    logging.getLogger().info("")
