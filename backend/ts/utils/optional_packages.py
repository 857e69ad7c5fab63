"""Packages that only some models need, and the extras of the server that install them."""

from collections.abc import Mapping
from typing import Final

#: The extra that installs what models import, by the name of the module.
EXTRA_OF: Final[Mapping[str, str]] = {
    "captum": "explain",
    "numpy": "torch",
    "onnxruntime": "onnx",
    "PIL": "vision",
    "safetensors": "safetensors",
    "torch": "torch",
    "transformers": "huggingface",
}


def missing_package(error: ModuleNotFoundError, what: str, extra: str) -> ModuleNotFoundError:
    """Return the error to raise instead of ``error``: ``what`` (plural) needs the package, which ``extra`` installs."""
    package = (error.name or str(error)).partition(".")[0]
    text = f"{what} need the package {package}, which is not installed: pip install 'torchserve-py[{extra}]'"
    return ModuleNotFoundError(text, name=error.name)
