"""The secrets of a Truss: declared in its configuration, looked up when the model asks for them.

A secret is what the file in the secrets folder says, else the environment variable ``TRUSS_SECRET_<name>``, else the
default in ``config.yaml``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

#: Where the files are; the environment variable names another folder.
_DEFAULT_FOLDER: Final = "/secrets"
_FOLDER_VARIABLE: Final = "TRUSS_SECRETS_DIR"
_VARIABLE_PREFIX: Final = "TRUSS_SECRET_"


class SecretNotFound(KeyError):
    """A secret is not declared, or nothing says what it is."""

    def __str__(self) -> str:
        return str(self.args[0])


class Secrets(Mapping[str, str]):
    """The declared secrets; those that have a value are what the mapping holds.

    Args:
        declared: The default of each, by name; None where there is none.
    """

    def __init__(self, declared: Mapping[str, str | None]) -> None:
        self._declared = declared
        self._folder = Path(os.environ.get(_FOLDER_VARIABLE, _DEFAULT_FOLDER))

    def __getitem__(self, name: str) -> str:
        if name not in self._declared:
            raise SecretNotFound(f"The secret {name!r} is not declared: add it to secrets in config.yaml.")
        value = self._find(name)
        if not value:
            raise SecretNotFound(
                f"The secret {name!r} has no value: give it one in the file {self._folder / name}, or in the "
                f"environment variable {_VARIABLE_PREFIX}{name}."
            )
        return value

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._declared if self._find(name))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _find(self, name: str) -> str | None:
        try:
            return (self._folder / name).read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return os.environ.get(_VARIABLE_PREFIX + name, self._declared[name])

    def __repr__(self) -> str:
        return f"Secrets({', '.join(sorted(self._declared))})"
