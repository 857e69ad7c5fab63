"""Makes this package importable as ``mlserver`` where that is not installed.

``mlserver.types`` is then the very module ``ts.mlserver.types``, so that classes are the same under both names.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

_NAME = "mlserver"
_OURS = "ts.mlserver"


def provide() -> bool:
    """Make ``import mlserver`` work; return whether it is this package that will be imported."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return True
    if importlib.util.find_spec(_NAME) is not None:
        return False
    sys.meta_path.insert(0, _Finder())  # before the finder that would import the same files once more
    return True


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds ``mlserver…``, and imports ``ts.mlserver…`` for it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != _NAME:
            return None
        ours = importlib.util.find_spec(_OURS + fullname.removeprefix(_NAME))
        return None if ours is None else importlib.util.spec_from_loader(fullname, self, origin=ours.origin)

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        # What is in sys.modules after a loader has run is what the import gives; the empty module is dropped.
        sys.modules[name] = importlib.import_module(_OURS + name.removeprefix(_NAME))
