"""What workers take of the machine, as far as anybody measures it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class GpuUsage:
    """How busy a GPU is. Utilizations in percent, memory in MiB; None where the GPU does not tell (a divided one)."""

    index: int
    utilization: float | None
    memory_utilization: float | None
    memory_used: float | None
    memory_total: float | None

    def __str__(self) -> str:
        """Return TorchServe's ``gpuUsage``."""
        busy, moved, used = (
            "N/A" if value is None else f"{value:.0f}"
            for value in (self.utilization, self.memory_utilization, self.memory_used)
        )
        return (
            f"gpuId::{self.index} utilization.gpu [%]::{busy} % utilization.memory [%]::{moved} %"
            f" memory.used [MiB]::{used} MiB"
        )


class Budget(NamedTuple):
    """How many bytes the workers of all models have of those that they may have."""

    used: int
    total: int


class KeyTotals(NamedTuple):
    """What a key has used since the server's start.

    Attributes:
        requests: Its requests that have ended.
        failed: How many of them without an answer, or with an error.
        refused: How many others its limits have refused.
        tokens: Those of its answers.
        seconds: How long its requests were with workers, together.
    """

    requests: int = 0
    failed: int = 0
    refused: int = 0
    tokens: int = 0
    seconds: float = 0.0


@dataclass
class Usage:
    """Memory and GPU usage at the latest collection, and that of keys; all models of a server share it."""

    worker_memory: Mapping[int, int] = field(default_factory=dict)  # resident bytes by process id
    #: Bytes on GPUs by the process id of a worker, with those of processes that the worker has started.
    worker_gpu_memory: Mapping[int, int] = field(default_factory=dict)
    gpus: Mapping[int, GpuUsage] = field(default_factory=dict)  # by nvidia-smi's number
    keys: Mapping[str, KeyTotals] = field(default_factory=dict)  # by the names of keys
    #: How workers rest ("falling asleep", "asleep" or "waking"), and since when (seconds since 1970), by process id.
    rests: Mapping[int, tuple[str, float]] = field(default_factory=dict)
    budgets: Mapping[str, Budget] = field(default_factory=dict)  # of memory: of the `host`, of `gpu 0` and so on
