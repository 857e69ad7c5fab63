"""Which modules a model's code imports that take long and that other models' code imports, too: a look at its files.

A wrong guess costs time or memory, and changes nothing else: see `torchserve_py.workers.forking`.
"""

import importlib.util
import logging
import re
from pathlib import Path
from typing import Final

from torchserve_py.archive.handler_name import BUILT_IN_HANDLERS

logger = logging.getLogger(__name__)

#: What is imported for a model whose files import one of these.
_TORCH: Final = ("torch", "ts.torch_handler.base_handler")
_IMPORTS_TORCH: Final = re.compile(
    rb"^[ \t]*(?:import|from)[ \t].*\b(?:torch|torch_handler|torchvision|transformers)\b", re.MULTILINE
)
#: Variables that libraries read while torch is imported: a model that names one may set it before.
_NAMES_READ_EARLY: Final = re.compile(
    rb"""["'](ATEN|GOMP|KMP|MKL|NCCL|NUMEXPR|OMP|OPENBLAS|PYTORCH|TORCH)[A-Z]*_[A-Z]"""
)
#: Files of a model that are looked at, and bytes of each.
_MOST_FILES: Final = 200
_MOST_BYTES: Final = 1 << 20


def shared_imports(model_dir: Path, handler: str) -> tuple[str, ...]:
    """Return the modules that are worth importing for a model. Blocks."""
    if importlib.util.find_spec("torch") is None:
        return ()
    uses_torch = handler.partition(":")[0] in BUILT_IN_HANDLERS
    for _, file in zip(range(_MOST_FILES), model_dir.rglob("*.py"), strict=False):
        try:
            with file.open("rb") as opened:
                source = opened.read(_MOST_BYTES)
        except OSError as error:
            logger.debug("%s is not looked at: %s", file, error)
            continue
        if _NAMES_READ_EARLY.search(source):
            return ()
        uses_torch = uses_torch or _IMPORTS_TORCH.search(source) is not None
    return _TORCH if uses_torch else ()
