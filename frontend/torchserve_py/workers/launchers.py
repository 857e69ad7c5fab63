"""Launchers that come before a worker's own command line: torchrun for several processes, Intel's for CPU cores.

Each runs in a process that dies with the server (`ts.parent_death`), and starts the worker's command as it is.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Torchrun:
    """How torchrun starts the processes of one worker, its ranks.

    processes       how many
    every_rank      whether all of them get the requests, or only rank 0
    job_id          what tells this worker from all others (`--rdzv-id`)
    log_dir         where torchrun keeps logs of its own
    rdzv_backend    how the processes find each other
    rdzv_endpoint   where they do; a free port of this machine unless given
    """

    processes: int
    every_rank: bool
    job_id: str
    log_dir: Path
    rdzv_backend: str = "c10d"
    rdzv_endpoint: str = "localhost:0"

    def wrap(self, python: str, command: Sequence[str]) -> list[str]:
        """Return the command line that runs ``command`` once per rank. Raises FileNotFoundError: torch is missing."""
        return [
            *_launcher(python, "torch.distributed.run", "a model with parallelType"),
            *("--nnodes", "1"),
            *("--nproc-per-node", str(self.processes)),
            *("--log-dir", str(self.log_dir)),
            *("--rdzv-backend", self.rdzv_backend),
            *("--rdzv-endpoint", self.rdzv_endpoint),
            *("--rdzv-id", self.job_id),
            # A rank that dies takes the worker with it, and the server replaces it as any dead worker.
            *("--max-restarts", "0"),
            "--no-python",
            *command,
        ]


@dataclass(frozen=True)
class CpuLauncher:
    """How `torch.backends.xeon.run_cpu` binds one worker to its share of the cores.

    arguments   further arguments of the launcher
    index       which of the model's workers this is, from 0
    count       how many workers the model has; the cores are shared by them
    """

    arguments: tuple[str, ...] = ()
    index: int = 0
    count: int = 1

    def wrap(self, python: str, command: Sequence[str]) -> list[str]:
        """Return the command line that runs ``command`` on this worker's cores.

        Raises FileNotFoundError: torch, or what the launcher binds processes with, is missing.
        """
        needed_by = "cpu_launcher_enable"
        if not shutil.which("numactl") and not shutil.which("taskset"):
            raise FileNotFoundError(f"{needed_by} needs numactl or taskset, and neither is on PATH")
        share = ("--ninstances", str(self.count), "--rank", str(self.index)) if self.count > 1 else ()
        launcher = _launcher(python, "torch.backends.xeon.run_cpu", needed_by)
        return [*launcher, *self.arguments, *share, "--no-python", *command]


def _launcher(python: str, module: str, needed_by: str) -> list[str]:
    # Of another interpreter only that itself can tell; it then says so in the model log.
    if python == sys.executable and importlib.util.find_spec("torch") is None:
        raise FileNotFoundError(f"{needed_by} needs torch, which is not installed: pip install torch")
    return [python, "-P", "-m", "ts.parent_death", module]
