"""What the server asks of torchrun as what starts the ranks of a worker."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from torchserve_py.base.settings.schemas.plugin_keys import PluginKeys
from torchserve_py.core.torchrun.torchrun_keys import TorchrunConfig, TorchrunKeys
from torchserve_py.core.workers.launch_command import RankGroup, launcher_of_torch

_LOGS: Final = "torchelastic_ts"  # TorchServe's name


@dataclass(frozen=True)
class Torchrun:
    """How torchrun starts the ranks of a model's workers."""

    options: TorchrunConfig

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables of torchrun and its processes."""
        return {"LOGLEVEL": "INFO", "OMP_NUM_THREADS": str(self.options.omp_num_threads or 1)}

    def wrap(self, ranks: RankGroup, python: str, command: Sequence[str]) -> list[str]:
        """Return the command line that runs ``command`` once per rank. Raises FileNotFoundError: torch is missing."""
        return [
            *launcher_of_torch(python, "torch.distributed.run", "a model with parallelType"),
            *("--nnodes", "1"),
            *("--nproc-per-node", str(ranks.processes)),
            *("--log-dir", str(ranks.log_dir / _LOGS)),
            *("--rdzv-backend", self.options.rdzv_backend or "c10d"),
            *("--rdzv-endpoint", self.options.rdzv_endpoint or "localhost:0"),
            *("--rdzv-id", ranks.name),
            # A rank that dies takes the worker with it, and the server replaces it as any dead worker.
            *("--max-restarts", "0"),
            "--no-python",
            *command,
        ]


def processes(keys: PluginKeys) -> int | None:
    """Return how many processes a worker is to have; 0 without a number, None without the map."""
    options = keys.of(TorchrunKeys).torchrun
    return None if options is None else options.nproc_per_node or 0


def torchrun_of(keys: PluginKeys) -> Torchrun:
    """Return what starts the ranks of a model's workers."""
    return Torchrun(keys.of(TorchrunKeys).torchrun or TorchrunConfig())
