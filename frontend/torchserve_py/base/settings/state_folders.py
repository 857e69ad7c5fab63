"""Where files of states are: in the data folder, and of earlier releases with the logs."""

from pathlib import Path
from typing import NamedTuple, Self

from torchserve_py.base.settings.table import Settings


class StateFolders(NamedTuple):
    """Where files of states are, unless a model names another place."""

    data: Path
    #: Where earlier releases had them, with the logs.
    logs: Path

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return those of a server."""
        return cls(settings.data_folder, settings.log_location)
