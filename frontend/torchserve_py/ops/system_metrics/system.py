"""Metrics of the host: processors, memory, disk, GPUs, and the memory of each worker."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence

from torchserve_py.base.metrics.server_metrics import ServerMetrics
from torchserve_py.core.serving.usage import GpuUsage, Usage
from torchserve_py.endpoints.routing import EndpointContext
from torchserve_py.ops.system_metrics.nvml import memory_by_process, read_usage
from torchserve_py.ops.system_metrics.system_command import BUILT_IN_SCRIPT, HostReading, SystemCommand
from torchserve_py.ops.system_metrics.system_settings import SystemSettings

logger = logging.getLogger(__name__)

#: The smallest time limit for a run of `system_metrics_cmd` (seconds), however short the interval between runs is.
_SHORTEST_COMMAND_LIMIT = 10
_MEGABYTE = 1024**2
_GIGABYTE = 1024**3
#: Seconds over which processor use is measured the first time; afterwards it is measured since the time before.
_FIRST_INTERVAL = 0.1


async def measure(context: EndpointContext) -> None:
    """Measure from time to time while the server runs, unless its settings say otherwise."""
    settings, serving = context.settings.of(SystemSettings), context.serving
    if settings.disable_system_metrics:
        return
    limit = max(settings.metric_time_interval, _SHORTEST_COMMAND_LIMIT)
    system = SystemMetrics(context.metrics, command=settings.system_metrics_cmd, command_limit=limit)
    while True:
        try:
            await asyncio.to_thread(system.collect, serving.worker_pids(), serving.usage)
        except Exception:
            logger.exception("The system metrics could not be collected this time")
        serving.record_gpu_memory()
        context.metrics.flush_logs()
        await asyncio.sleep(settings.metric_time_interval)


class SystemMetrics:
    """Fills the host's gauges in `metrics` each time `collect` is called.

    `read_gpus` tells how busy the GPUs are; if there are none the first time, it is not asked again. `read_gpu_memory`
    tells the bytes on GPUs by process id. `command` is `system_metrics_cmd`, which measures the host instead; one run
    of it may take `command_limit` seconds.
    """

    def __init__(
        self,
        metrics: ServerMetrics,
        read_gpus: Callable[[], Sequence[GpuUsage]] = read_usage,
        read_gpu_memory: Callable[[], Mapping[int, int]] = memory_by_process,
        command: str | None = None,
        command_limit: float = 60,
    ) -> None:
        self._metrics = metrics
        self._command = None
        if command is not None and not command.startswith(BUILT_IN_SCRIPT):
            self._command = SystemCommand(command, command_limit)
        self._read_gpus: Callable[[], Sequence[GpuUsage]] | None = read_gpus
        self._has_gpus = False
        self._interval: float | None = _FIRST_INTERVAL
        self._read_gpu_memory = read_gpu_memory

    def collect(self, pids: Sequence[int], usage: Usage) -> None:
        """Measure everything once; `usage` gets what belongs to the workers with these process ids, and to GPUs.

        Blocks for about a tenth of a second, longer where there are GPUs: call it off the event loop.
        """
        import psutil  # it takes 40 ms, which the start of the server need not wait for

        for reading in self._host() if self._command is None else self._command.run(pids):
            self._metrics.record(*reading)
        self._collect_gpus(usage)
        usage.worker_gpu_memory = _of_workers(self._read_gpu_memory(), pids)
        resident = {}
        for pid in pids:
            try:
                resident[pid] = psutil.Process(pid).memory_info().rss
            except (psutil.Error, ValueError):  # gone meanwhile, or not yet a process (-1)
                continue
        usage.worker_memory = resident

    def _host(self) -> list[HostReading]:
        import psutil

        memory = psutil.virtual_memory()
        disk = psutil.disk_usage("/")
        values = {
            "CPUUtilization": psutil.cpu_percent(self._interval),
            "MemoryUsed": memory.used / _MEGABYTE,
            "MemoryAvailable": memory.available / _MEGABYTE,
            "MemoryUtilization": memory.percent,
            "DiskUsage": disk.used / _GIGABYTE,
            "DiskAvailable": disk.free / _GIGABYTE,
            "DiskUtilization": disk.percent,
        }
        self._interval = None
        return [HostReading(name, ("Host",), value) for name, value in values.items()]

    def _collect_gpus(self, usage: Usage) -> None:
        if self._read_gpus is None:
            return
        gpus = self._read_gpus()
        self._has_gpus = self._has_gpus or bool(gpus)
        if not self._has_gpus:
            self._read_gpus = None
        for gpu in gpus:
            used, total = gpu.memory_used, gpu.memory_total
            for name, value in (
                ("GPUUtilization", gpu.utilization),
                ("GPUMemoryUsed", used),
                ("GPUMemoryUtilization", 100 * used / total if used is not None and total else None),
            ):
                if value is not None and self._command is None:
                    self._metrics.record(name, ("Host", str(gpu.index)), value)
        usage.gpus = {gpu.index: gpu for gpu in gpus}


def _of_workers(memory: Mapping[int, int], pids: Sequence[int]) -> dict[int, int]:
    """Return memory by worker. A worker's ranks and engines are processes that it, or its launcher, has started."""
    of_workers: dict[int, int] = {}
    for pid, size in memory.items():
        worker = next((each for each in _with_parents(pid) if each in pids), None)
        if worker is not None:
            of_workers[worker] = of_workers.get(worker, 0) + size
    return of_workers


def _with_parents(pid: int) -> Iterator[int]:
    """Yield a process id, that of its parent, and so on."""
    import psutil

    yield pid
    try:
        yield from (parent.pid for parent in psutil.Process(pid).parents())
    except psutil.Error:  # it has ended, or is one of another container
        return
