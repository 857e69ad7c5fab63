"""Which modules a model's code imports that take long and that other models' code imports, too: a look at its files.

A wrong guess costs time or memory, and changes nothing else: see `torchserve_py.workers.forking`.
"""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path
from typing import Final

from torchserve_py.archive.handler_name import BUILT_IN_HANDLERS

logger = logging.getLogger(__name__)

#: What is imported for a model whose files have the word.
_MODULES: Final = {"torch": ("torch", "ts.torch_handler.base_handler"), "torchvision": ("torchvision",)}
#: Files of a model that are looked at, and bytes of each.
_MOST_FILES: Final = 200
_MOST_BYTES: Final = 1 << 20


def shared_imports(model_dir: Path, handler: str) -> tuple[str, ...]:
    """Return the modules that are worth importing for a model. Blocks."""
    words = [b"torch"] if handler.partition(":")[0] in BUILT_IN_HANDLERS else []
    for _, file in zip(range(_MOST_FILES), model_dir.rglob("*.py"), strict=False):
        try:
            with file.open("rb") as opened:
                words.append(opened.read(_MOST_BYTES))
        except OSError as error:
            logger.debug("%s is not looked at: %s", file, error)
    return tuple(
        module
        for word, modules in _MODULES.items()
        if any(word.encode() in text for text in words) and importlib.util.find_spec(word) is not None
        for module in modules
    )
