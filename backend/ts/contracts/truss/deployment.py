"""The model's view of its deployment: the environment, and the secrets that its configuration declares."""

import asyncio
import json
import logging
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ts.protocol.regular_files import read_regular_text

logger = logging.getLogger(__name__)

#: Of the file with the environment, and of one with a secret.
_MOST_BYTES = 1 << 20

#: Applies an environment to the model; None if it has been removed.
Apply = Callable[[dict[str, Any] | None], Awaitable[None]]


class Environment:
    """The deployment's environment (``{"name": "staging"}``), in a file that may change while the model serves.

    The model gets it when it is constructed, and again through ``setup_environment`` whenever it changes; ``period`` is
    the time between two looks at the file (seconds).
    """

    def __init__(self) -> None:
        self.path = Path(os.environ.get("TRUSS_DYNAMIC_CONFIG_DIR", "/etc/b10_dynamic_config")) / "environment"
        self.period = float(os.environ.get("TRUSS_ENVIRONMENT_POLL_SECONDS", "30"))
        self._seen: int | None = None
        self._applied: Any = None

    def read(self) -> dict[str, Any] | None:
        """Return the file's content, or None. Raises ValueError: it is not JSON; OSError: it cannot be read."""
        try:
            self._seen = self.path.stat().st_mtime_ns
            text = read_regular_text(self.path, _MOST_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            self._seen = None
            text = ""
        self._applied = json.loads(text) if text.strip() else None
        return self._applied  # type: ignore[no-any-return]

    async def watch(self, apply: Apply) -> None:
        """Look at the file again and again; ``apply`` the environment whenever it has changed."""
        while True:
            await asyncio.sleep(self.period)
            await self.look(apply)

    async def look(self, apply: Apply) -> None:
        """``apply`` the environment if the file has changed since the last look; log a failure."""
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


class SecretNotFound(KeyError):
    """A secret is not declared, or has no value."""

    def __str__(self) -> str:
        return str(self.args[0])


class Secrets(Mapping[str, str]):
    """The declared secrets that have a value, looked up when the model asks for them.

    A secret's value is the content of its file in the secrets folder, or else the environment variable
    ``TRUSS_SECRET_<name>``, or else its default in ``config.yaml``, which ``declared`` has.
    """

    def __init__(self, declared: Mapping[str, str | None]) -> None:
        # The name that Truss has for it: models read which secrets are declared.
        self._base_secrets = declared
        self._folder = Path(os.environ.get("TRUSS_SECRETS_DIR", "/secrets"))

    def __getitem__(self, name: str) -> str:
        if name not in self._base_secrets:
            raise SecretNotFound(f"The secret {name!r} is not declared: add it to secrets in config.yaml.")
        value = self._find(name)
        if not value:
            raise SecretNotFound(
                f"The secret {name!r} has no value: give it one in the file {self._folder / name}, or in the "
                f"environment variable TRUSS_SECRET_{name}."
            )
        return value

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._base_secrets if self._find(name))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _find(self, name: str) -> str | None:
        try:
            return read_regular_text(self._folder / name, _MOST_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            return os.environ.get(f"TRUSS_SECRET_{name}", self._base_secrets[name])

    def __repr__(self) -> str:
        return f"Secrets({', '.join(sorted(self._base_secrets))})"
