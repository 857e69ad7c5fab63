"""What one client may ask of a server, whatever the model: the limits of its key."""

from typing import NamedTuple, Protocol

from torchserve_py.scheduling.effects import Cause


class Exceeded(NamedTuple):
    """What the client is told whose request exceeds a limit: which, and in how many seconds it may try again."""

    message: str
    retry_after: int


class Limits(Protocol):
    """The limits of a client; its requests of all models count together."""

    @property
    def client(self) -> str:
        """What tells the client from others."""

    @property
    def weight(self) -> float:
        """How many turns it has while one with 1 has one, where requests of several clients wait."""

    def begin(self) -> Cause | None:
        """Count a request that begins, or return why it may not."""

    def exceeded(self, cause: Cause) -> Exceeded:
        """Return what to tell a client that `begin` has just refused for this cause."""

    def end(self) -> None:
        """Note that a request which was counted has its answer."""
