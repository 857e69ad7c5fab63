"""What the console shows of the server itself: the machine's load and memory, GPUs, and settings with their origins."""

import os
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from torchserve_py.base.settings.properties import written
from torchserve_py.base.settings.server_settings import sources
from torchserve_py.base.settings.table import Settings
from torchserve_py.base.url_secrets import without_secrets
from torchserve_py.core.serving.serving import Serving

_HIDDEN: Final = "********"


def settings_shown(settings: Settings) -> list[dict[str, str]]:
    """Return the name, value and origin of every setting; secrets are not shown."""
    return [
        {"name": name, "value": _value(name, getattr(settings, name, None)), "origin": settings.origins.get(name, "")}
        for name in sources()
    ]


def _value(name: str, value: Any) -> str:
    if value is None or value == ():
        return "none"
    return _HIDDEN if sources()[name].secret else without_secrets(str(written(value)))


class Machine:
    """Measures the machine and this process; the first measurement of processor use is since the server's start."""

    def __init__(self, serving: Serving) -> None:
        import psutil  # it takes 40 ms, which a server without a visitor need not wait for

        self._psutil, self._serving = psutil, serving
        self._process = psutil.Process()
        psutil.cpu_percent()
        self._process.cpu_percent()

    def measure(self) -> Mapping[str, Any]:
        """Return the use of processors, memory and GPUs now."""
        memory, disk = self._psutil.virtual_memory(), self._psutil.disk_usage("/")
        usage = self._serving.usage
        return {
            "cpu": self._psutil.cpu_percent(),
            "cpus": os.cpu_count(),
            "load": os.getloadavg()[0],
            "memory": memory.total - memory.available,
            "memory_total": memory.total,
            "disk": disk.used,
            "disk_total": disk.total,
            "frontend_cpu": self._process.cpu_percent(),
            "frontend_memory": self._process.memory_info().rss,
            "workers_memory": sum(usage.worker_memory.values()),
            "workers": len(self._serving.worker_pids()),
            "gpus": [asdict(usage.gpus[index]) for index in sorted(usage.gpus)],
            "uptime": time.time() - self._process.create_time(),
            "pid": self._process.pid,
        }
