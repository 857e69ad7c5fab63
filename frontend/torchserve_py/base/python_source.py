"""Python source as a tree, read while other threads read others.

Python 3.11 counts the depth of all trees that are made together, and raises SystemError if a thread makes one while
another is about to: so one is made at a time.
"""

import ast
import threading
from typing import Final

_ONE_AT_A_TIME: Final = threading.Lock()


def parse(source: str | bytes) -> ast.Module:
    """Return the tree of a source. Raises SyntaxError, ValueError, RecursionError, MemoryError: there is none."""
    with _ONE_AT_A_TIME:
        return ast.parse(source)
