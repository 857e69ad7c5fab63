"""What the files of a model for SageMaker say about how it is to be served: the packages that its script needs."""

from pathlib import Path
from typing import Final

from torchserve_py.contracts.sagemaker.sagemaker_kind import CODE
from torchserve_py.core.plans.config import ModelConfig
from torchserve_py.core.plans.contracts import Configured

_REQUIREMENTS: Final = f"{CODE}/requirements.txt"


def configure(model_dir: Path, yaml: ModelConfig, _store: Path | None = None) -> Configured:
    """Return the configuration of `model-config.yaml`, with the requirements file beside the script if there is one."""
    has_requirements = (model_dir / _REQUIREMENTS).is_file()
    return Configured(yaml, requirements_file=_REQUIREMENTS if has_requirements else None)
