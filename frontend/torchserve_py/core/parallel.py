"""The torchrun options of a parallel worker, from the model's configuration."""

from __future__ import annotations

from pathlib import Path

from torchserve_py.core.effective import EffectiveConfig
from torchserve_py.settings.schemas.model_config import TorchrunConfig
from torchserve_py.workers.launchers import Torchrun

_LOG_FOLDER = "torchelastic_ts"  # TorchServe's name


def torchrun_of(config: EffectiveConfig, job_id: str, log_location: Path) -> Torchrun:
    """Return how torchrun starts one worker; ``job_id`` must be unique on this machine."""
    options = config.torchrun or TorchrunConfig()
    chosen = {"rdzv_backend": options.rdzv_backend, "rdzv_endpoint": options.rdzv_endpoint}
    return Torchrun(
        config.ranks,
        every_rank=config.parallel_type != "pp",
        job_id=job_id,
        log_dir=log_location / _LOG_FOLDER,
        **{name: value for name, value in chosen.items() if value is not None},
    )


def torchrun_environment(config: EffectiveConfig) -> dict[str, str]:
    """Return environment variables for torchrun and for the processes that it starts."""
    options = config.torchrun or TorchrunConfig()
    return {"LOGLEVEL": "INFO", "OMP_NUM_THREADS": str(options.omp_num_threads or 1)}
