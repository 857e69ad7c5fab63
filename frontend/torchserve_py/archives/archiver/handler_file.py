"""What ``--handler`` says: the handler string of the manifest, and the file to pack.

`module`, `module:function`, `file.py`, `file.py:function`, each with or without folders before it, or the name of a
built-in handler. The worker splits at the first `:`, drops a trailing `.py` and any folders, and imports the module.
"""

import difflib
import sys
from pathlib import Path

from torchserve_py.archives.archiver.errors import PackError
from torchserve_py.core.archive.built_in_handlers import BUILT_IN_HANDLERS

_BUILT_IN_CPP_HANDLERS = ("BaseHandler", "TorchScriptHandler")


def packed_handler(handler: str, runtime: str) -> tuple[str, Path | None]:
    """Return the manifest's entry for `--handler handler`, and the file to copy, None for a built-in handler.

    Raises PackError, and FileNotFoundError where the file does not exist.
    """
    built_in = _BUILT_IN_CPP_HANDLERS if runtime == "LSP" else tuple(BUILT_IN_HANDLERS)
    if handler in built_in:
        return handler, None
    path, colon, function = handler.partition(":")
    if not Path(path).name or (colon and not function):
        raise PackError(f'Handler "{handler}" must be a built-in name, a Python file, or <module>:<function>.')
    file = Path(path.removesuffix(_suffix(runtime)) + _suffix(runtime))
    if not file.is_file():
        close = difflib.get_close_matches(path, built_in, n=1, cutoff=0.8)
        suggestion = f" (did you mean the built-in {close[0]}?)" if close else ""
        raise FileNotFoundError(f"Handler file does not exist: {file}{suggestion}")
    return Path(path).name + colon + function, file


def _suffix(runtime: str) -> str:
    if runtime != "LSP":
        return ".py"
    return ".dylib" if sys.platform == "darwin" else ".so"
