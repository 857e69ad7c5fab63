"""What scripts import of Amazon's package ``sagemaker_inference``, for workers that do not have that package."""

import importlib
import importlib.util
import sys
from typing import Final

_PACKAGE: Final = "sagemaker_inference"
_MODULES: Final = ("content_types", "decoder", "encoder", "errors", "utils")


def stand_in() -> None:
    """Let ``import sagemaker_inference`` find this package, unless Amazon's own is installed."""
    if _PACKAGE in sys.modules or importlib.util.find_spec(_PACKAGE) is not None:
        return
    sys.modules[_PACKAGE] = sys.modules[__name__]
    for name in _MODULES:
        sys.modules[f"{_PACKAGE}.{name}"] = importlib.import_module(f"{__name__}.{name}")
