"""A function of a Python file that has several models: how it is written, and what tells it from all others."""

from typing import Final, NamedTuple

PYTHON_SUFFIX: Final = ".py"


class FileFunction(NamedTuple):
    """A function of a file with several models: what tells the file from all others, and the function's name."""

    file: str
    name: str


def split_function(location: str) -> tuple[str, str]:
    """Return the path of a Python file, and the function behind it in ``file.py:function``; "" if there is none."""
    path, _, function = location.rpartition(":")
    return (path, function) if path.endswith(PYTHON_SUFFIX) and function.isidentifier() else (location, "")
