"""How workers are kept apart from the rest of the machine: here not at all; `core.confinement` can do more."""

from pathlib import Path


class ConfinementError(OSError):
    """Workers cannot be started as the settings say; the message says why and what would be right."""


class Confinement:
    """How workers are confined. ``group`` is the one that they run in, None: the server's own."""

    group: int | None = None

    def wrap(self, command: list[str]) -> list[str]:
        """Return the command line that runs ``command`` so."""
        return command

    def give(self, folder: Path) -> None:
        """Let workers write to a folder. Blocks. Raises OSError: the file system does not allow it."""

    def share(self, *folders: Path | None) -> None:
        """Let workers read what was unpacked or installed for a model, but not change it. Blocks.

        Raises OSError: a file system does not allow it.
        """
