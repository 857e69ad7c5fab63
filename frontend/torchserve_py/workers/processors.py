"""How many processors this process may really use: what a container was given, not what its host has."""

import math
import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def available_processors(cgroup: Path = _CGROUP) -> int:
    """At least 1: the processors that this process may run on, or the container's share of time if that is less."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota(cgroup)
    return max(1, processors if quota is None else min(processors, math.ceil(quota)))


def _quota(cgroup: Path) -> float | None:
    """Processor seconds per second that the control group (version 2, else 1) is limited to."""
    for files in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            fields = " ".join((cgroup / file).read_text() for file in files).split()
        except OSError:
            continue
        if len(fields) == 2 and all(field.isdigit() for field in fields) and int(fields[1]):
            return int(fields[0]) / int(fields[1])
    return None
