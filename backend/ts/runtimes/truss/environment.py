"""The deployment's environment (``{"name": "staging"}``): a file that may change while the model serves.

The model gets it when it is constructed, and again through ``setup_environment`` whenever it changes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

logger = logging.getLogger(__name__)

_DEFAULT_FOLDER: Final = "/etc/b10_dynamic_config"
_FOLDER_VARIABLE: Final = "TRUSS_DYNAMIC_CONFIG_DIR"
_FILE_NAME: Final = "environment"
_PERIOD_VARIABLE: Final = "TRUSS_ENVIRONMENT_POLL_SECONDS"
_DEFAULT_PERIOD: Final = "30"

#: Tells the model of an environment; None: there is none any longer.
Apply = Callable[[dict[str, Any] | None], Awaitable[None]]


class Environment:
    """The file that says in which environment the model runs.

    Attributes:
        period: Seconds between two looks at it.
    """

    def __init__(self) -> None:
        self.path = Path(os.environ.get(_FOLDER_VARIABLE, _DEFAULT_FOLDER)) / _FILE_NAME
        self.period = float(os.environ.get(_PERIOD_VARIABLE, _DEFAULT_PERIOD))
        self._seen: int | None = None
        self._applied: Any = None

    def read(self) -> dict[str, Any] | None:
        """Return what the file says; None if it is missing or empty, or says ``null``.

        Raises:
            ValueError: It is no JSON.
            OSError: It cannot be read.
        """
        try:
            self._seen = self.path.stat().st_mtime_ns
            text = self.path.read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            self._seen = None
            text = ""
        self._applied = json.loads(text) if text.strip() else None
        return self._applied  # type: ignore[no-any-return]

    async def watch(self, apply: Apply) -> None:
        """Look at the file again and again; ``apply`` what it says when that is something else than before."""
        while True:
            await asyncio.sleep(self.period)
            await self.look(apply)

    async def look(self, apply: Apply) -> None:
        """Read the file if it was changed since, and ``apply`` what it says if that is something else.

        What goes wrong is logged; it is tried again when the file changes again.
        """
        try:
            changed = self.path.stat().st_mtime_ns
        except OSError:
            return  # a file that vanishes says nothing new, as in Truss
        if changed == self._seen:
            return
        before = self._applied
        try:
            now = self.read()
            if now != before:
                await apply(now)
        except Exception:
            self._seen = changed
            logger.exception("The environment in %s cannot be applied", self.path)
