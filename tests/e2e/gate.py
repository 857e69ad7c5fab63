"""A gate that a handler waits at until the test opens it: order without sleeping.

The gate is a file. Handlers get `WAITING` in front of their source and call ``wait_for(path)``.
"""

from pathlib import Path

from tests.e2e.running_server import eventually

#: Source for handlers: says that it waits, and returns when the file exists.
WAITING = """
import os
import time


def wait_for(path):
    open(f"{path}.reached", "w").close()
    end = time.monotonic() + 60
    while not os.path.exists(path):
        if time.monotonic() > end:
            raise TimeoutError(f"nobody opened {path}")
        time.sleep(0.002)
"""


class Gate:
    """A gate in ``directory``; closed when it is made."""

    def __init__(self, directory: Path, name: str = "gate") -> None:
        self.path = directory / name
        self._reached = directory / f"{name}.reached"

    def open(self) -> None:
        """Let everybody through who waits, and who comes later."""
        self.path.touch()

    @property
    def is_reached(self) -> bool:
        """Whether a handler has come to the gate."""
        return self._reached.exists()

    def wait_until_reached(self) -> None:
        """Return when a handler has come to the gate."""
        eventually(lambda: self.is_reached, f"a handler waits at {self.path.name}")
