"""What one client may ask of a server, whatever the model: the limits of its key."""

from typing import Protocol

from torchserve_py.scheduling.effects import Cause


class Limits(Protocol):
    """The limits of a client; its requests of all models count together."""

    def begin(self) -> Cause | None:
        """Count a request that begins, or return why it may not."""

    def end(self) -> None:
        """Note that a request which was counted has its answer."""
