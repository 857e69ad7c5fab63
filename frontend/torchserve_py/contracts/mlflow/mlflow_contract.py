"""What the files of a model in MLflow's format say about how it is to be served: nothing, beside `requirements.txt`."""

from pathlib import Path

from torchserve_py.core.plans.config import ModelConfig
from torchserve_py.core.plans.contracts import Configured


def configure(_model_dir: Path, yaml: ModelConfig, _store: Path | None = None) -> Configured:
    """Return the configuration of `model-config.yaml`."""
    return Configured(yaml)
