"""Reads the GPUs and their usage from `nvidia-smi`. A host without this tool counts as one without GPUs.

The server asks the tool instead of torch or NVML: importing torch would cost the frontend 200 MB, and the tool comes
with every driver.
"""

import logging
import re
import subprocess
from dataclasses import dataclass

from torchserve_py.core.serving.usage import GpuUsage

logger = logging.getLogger(__name__)

#: Seconds; a driver that hangs must not hang the server.
TIMEOUT = 15.0

_GPU_LINE = re.compile(r"GPU (\d+): .*\(UUID: (GPU-[^)\s]+)\)")
_MIG_LINE = re.compile(r"\s+MIG .*\(UUID: (MIG-[^)\s]+)\)")
_USAGE_FIELDS = "index,utilization.gpu,utilization.memory,memory.used,memory.total"


@dataclass(frozen=True, slots=True)
class Gpu:
    """A physical GPU; `mig_uuids` are the instances that it is divided into, if it is."""

    index: int
    uuid: str
    mig_uuids: tuple[str, ...] = ()


def list_gpus() -> tuple[Gpu, ...]:
    """The GPUs in the order of their numbers. Blocks until the tool has answered: call it once, at start-up."""
    gpus: list[Gpu] = []
    for line in _ask("-L").splitlines():
        if gpu := _GPU_LINE.match(line):
            gpus.append(Gpu(int(gpu[1]), gpu[2]))
        elif (instance := _MIG_LINE.match(line)) and gpus:
            last = gpus.pop()
            gpus.append(Gpu(last.index, last.uuid, (*last.mig_uuids, instance[1])))
    return tuple(gpus)


def read_usage() -> tuple[GpuUsage, ...]:
    """How busy each GPU is now. Blocks until the tool has answered, which takes tens of milliseconds or more."""
    usages = []
    for line in _ask(f"--query-gpu={_USAGE_FIELDS}", "--format=csv,noheader,nounits").splitlines():
        index, *values = (field.strip() for field in line.split(","))
        if index.isdigit() and len(values) == 4:
            usages.append(GpuUsage(int(index), *(_number(value) for value in values)))
    return tuple(usages)


def _ask(*arguments: str) -> str:
    try:
        return subprocess.run(
            ["nvidia-smi", *arguments], capture_output=True, text=True, timeout=TIMEOUT, check=True
        ).stdout
    except FileNotFoundError:
        return ""
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning("GPUs are not seen because nvidia-smi failed: %s", error)
        return ""


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # "[N/A]", "[Not Supported]"
        return None
