"""Starts workers of this machine: those that can be are forked. Which modules their warm parent is to import for them.

A wrong guess of these imports costs time or memory, and changes nothing else: see `core.forking.forking`.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import re
from pathlib import Path
from typing import Final

from torchserve_py.core.archive.built_in_handlers import BUILT_IN_HANDLERS
from torchserve_py.core.forking.forking import Forking
from torchserve_py.core.workers.batch_tokens import BatchTokens
from torchserve_py.core.workers.launch_command import Launch
from torchserve_py.core.workers.local_launcher import LocalLauncher
from torchserve_py.core.workers.process import WorkerProcess
from ts.protocol.regular_files import open_regular

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


class ForkingLauncher(LocalLauncher):
    """Forks processes, and starts those that cannot be forked."""

    def __init__(self, forking: Forking) -> None:
        self._forking = forking
        #: What the files of a model's folder and its handler share with other models.
        self._imports: dict[tuple[Path, str], tuple[str, ...]] = {}

    async def close(self) -> None:
        """End what the workers were forked from."""
        await self._forking.close()

    async def start(
        self, launch: Launch, socket: Path, token: str, worker_id: str, label: str, tokens: BatchTokens | None
    ) -> WorkerProcess:
        """Fork or start a process, as `Launcher.start` says."""
        model = launch.working_dir, launch.handler
        if model not in self._imports:
            self._imports[model] = await asyncio.to_thread(shared_imports, *model)
        claims = () if tokens is None else tokens.worker_ends
        forked = await self._forking.fork(launch, self._imports[model], socket, token, label, claims)
        if forked is not None:
            return WorkerProcess(forked, label, worker_id, is_child=False)
        return await super().start(launch, socket, token, worker_id, label, tokens)

    def forget_files(self, model_dir: Path) -> None:
        """Forget what the files of a model import."""
        for model in [model for model in self._imports if model[0] == model_dir]:
            del self._imports[model]


def shared_imports(model_dir: Path, handler: str) -> tuple[str, ...]:
    """Return the modules that are worth importing for a model. Blocks."""
    if importlib.util.find_spec("torch") is None:
        return ()
    uses_torch = handler.partition(":")[0] in BUILT_IN_HANDLERS
    for _, file in zip(range(_MOST_FILES), model_dir.rglob("*.py"), strict=False):
        try:
            with os.fdopen(open_regular(file), "rb") as opened:
                source = opened.read(_MOST_BYTES)
        except OSError as error:
            logger.debug("%s is not looked at: %s", file, error)
            continue
        if _NAMES_READ_EARLY.search(source):
            return ()
        uses_torch = uses_torch or _IMPORTS_TORCH.search(source) is not None
    return _TORCH if uses_torch else ()
