"""Where a worker looks for modules: Python's standard library first, then the model's folder, then installed packages.

A model may have a file ``types.py`` or ``random.py``. If its folder came first, as it does in PYTHONPATH, the worker
and every library would import that file in place of Python's module.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from ts.jobs.errors import LoadError

#: The folder that this package is in: that of its sources, or with other packages.
OWN_ROOT: Final = __file__.rpartition("/ts/")[0]
#: The names of Python's modules; it does not list its own tests.
_TAKEN: Final = sys.stdlib_module_names | {"test"}
#: The extra of the server that installs what models import, by the name of the module.
EXTRA_OF: Final[Mapping[str, str]] = {
    "captum": "explain",
    "numpy": "torch",
    "onnxruntime": "onnx",
    "PIL": "vision",
    "safetensors": "safetensors",
    "torch": "torch",
    "transformers": "huggingface",
}
_STANDARD_LIBRARY: Final = os.path.dirname(os.__file__)  # noqa: PTH120 - pathlib would cost every worker its import


def search_in(folders: Sequence[str]) -> None:
    """Look for modules in these folders, in this order, before installed packages and after the standard library."""
    first = sys.path[: _place()]  # those of PYTHONPATH are among them
    sys.path[: _place()] = [path for path in first if path not in folders and path != OWN_ROOT]
    behind = [*folders, OWN_ROOT] if OWN_ROOT in first else folders
    sys.path[_place() : _place()] = behind


def _place() -> int:
    """Return where in ``sys.path`` the standard library ends."""
    return 1 + max((index for index, path in enumerate(sys.path) if _is_standard(path)), default=-1)


def _is_standard(path: str) -> bool:
    return path in (_STANDARD_LIBRARY, f"{_STANDARD_LIBRARY}/lib-dynload") or path.endswith(
        f"/python{sys.version_info.major}{sys.version_info.minor}.zip"
    )


def hidden_modules(folder: str) -> list[str]:
    """Return the modules of a model's folder that cannot be imported, as Python has modules of their names."""
    try:
        found = os.listdir(folder)  # noqa: PTH208
    except OSError:
        return []
    names = [name.removesuffix(".py") for name in found if name.endswith(".py") or "." not in name]
    return sorted(name for name in names if name in _TAKEN and _is_module(folder, name))


def _is_module(folder: str, name: str) -> bool:
    path = os.path.join(folder, name)  # noqa: PTH118
    return os.path.isfile(f"{path}.py") or os.path.isfile(os.path.join(path, "__init__.py"))  # noqa: PTH113, PTH118


def refuse_taken_name(name: str, folders: Sequence[str], what: str) -> None:
    """Raise LoadError: Python has, or has imported, another module under the name of the file ``{name}.py``."""
    taken = getattr(sys.modules.get(name), "__file__", None)
    for folder in folders:
        path = os.path.join(folder, f"{name}.py")  # noqa: PTH118
        is_taken = name in _TAKEN or name in sys.modules
        if is_taken and taken != path and os.path.isfile(path):  # noqa: PTH113
            raise LoadError(f"{what} {name}.py has the name of a module that Python itself uses; rename it.")


def missing(name: str | None) -> str:
    """Return where a module was looked for that is missing, and what installs it if an extra does."""
    extra = EXTRA_OF.get(name or "")
    brought = "" if extra is None else f": pip install 'torchserve-py[{extra}]'"
    return f"it is neither beside the model nor installed for {sys.executable}{brought}"


def hint(error: BaseException, folder: str) -> str:
    """Return what may be behind an error of the model's code: that it has imported Python's module for its own."""
    if not isinstance(error, ImportError | AttributeError):
        return ""
    text = str(error)
    for name in hidden_modules(folder):
        if f"'{name}'" in text or f"'{name}." in text:
            return (
                f"; the model's own {name}.py has the name of a module of Python's, which is imported in its place:"
                " rename it"
            )
    return ""
