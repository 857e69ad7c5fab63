"""Takes the code of a Truss anew while it serves: for development, where the Truss's owner has allowed it.

The living model gets the class that the files have now, and keeps its state; its `load` does not run again. Calls that
run end with the code that they began with. Code that cannot be taken changes nothing.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from ts.runtimes.truss.answers import JSON_HEADERS, Answer
from ts.runtimes.truss.class_file import import_class
from ts.runtimes.truss.config import TrussConfig
from ts.runtimes.truss.description import Description, describe
from ts.runtimes.truss.json_payload import to_json

logger = logging.getLogger(__name__)


class HotReload:
    """Reloads one model.

    Args:
        model_dir: The Truss's folder; modules of files in it are imported anew.
    """

    def __init__(self, model: Any, model_dir: Path, config: TrussConfig) -> None:
        self._model = model
        self._model_dir = model_dir
        self._config = config

    def reload(self) -> tuple[Answer, Description | None]:
        """Reload the code from its files; return the answer for the client, and the new description or None."""
        class_before, modules_before = type(self._model), self._forget_modules()
        try:
            class_name = self._config.values["model_class_name"]
            self._model.__class__ = import_class(self._model_dir, self._config.class_file, class_name)
            description = describe(self._model)
        except (Exception, SystemExit) as error:
            logger.exception("The model cannot be reloaded; it keeps its present code")
            self._model.__class__ = class_before
            self._forget_modules()
            sys.modules.update(modules_before)
            return Answer(422, JSON_HEADERS, to_json({"error": f"{type(error).__name__}: {error}"})), None
        logger.info("The model's code was reloaded from its files.")
        return Answer(200, JSON_HEADERS, to_json({"msg": "Hot reload complete"})), description

    def _forget_modules(self) -> dict[str, ModuleType]:
        """Remove the Truss's modules from ``sys.modules``, so that they are imported again; return them by name."""
        importlib.invalidate_caches()
        forgotten = {name: module for name, module in sys.modules.items() if self._is_own(module)}
        for name, module in forgotten.items():
            del sys.modules[name]
            if module.__file__ is not None:
                # Compiled code is told apart by seconds and size, and a developer may be quicker.
                Path(importlib.util.cache_from_source(module.__file__)).unlink(missing_ok=True)
        return forgotten

    def _is_own(self, module: ModuleType) -> bool:
        file = getattr(module, "__file__", None)
        return isinstance(file, str) and file.endswith(".py") and self._model_dir in Path(file).parents
