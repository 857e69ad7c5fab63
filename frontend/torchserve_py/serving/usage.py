"""What workers take of the machine, as far as anybody measures it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from torchserve_py.nvidia_smi import GpuUsage


class Budget(NamedTuple):
    """How many bytes the workers of all models have of those that they may have."""

    used: int
    total: int


@dataclass
class Usage:
    """Memory and GPU usage at the latest collection; all models of a server share it."""

    worker_memory: Mapping[int, int] = field(default_factory=dict)  # resident bytes by process id
    #: Bytes on GPUs by the process id of a worker, with those of processes that the worker has started.
    worker_gpu_memory: Mapping[int, int] = field(default_factory=dict)
    gpus: Mapping[int, GpuUsage] = field(default_factory=dict)  # by nvidia-smi's number
    budgets: Mapping[str, Budget] = field(default_factory=dict)  # of memory: of the `host`, of `gpu 0` and so on
