"""The worker's claim to a batch that it was sent ahead: the server can take such a batch back until the worker begins.

Each frame that is sent ahead has a token in a pipe that the server reads from, too. The frame belongs to the one that
reads the token first.
"""

import os


class BatchClaims:
    """The worker's ends of the pipes; ``pipes`` are their file descriptors, by the number that frames carry."""

    def __init__(self, pipes: list[int]) -> None:
        self._pipes = pipes
        for pipe in pipes:
            os.set_inheritable(pipe, False)  # not for processes that the handler starts

    def claim(self, pipe: int) -> bool:
        """Begin a frame: return whether it is the worker's, or was taken back."""
        try:
            return len(os.read(self._pipes[pipe], 1)) == 1
        except BlockingIOError:
            return False


def claims_of(variable: str | None) -> BatchClaims | None:
    """Return the claims that the server has passed on in an environment variable, if it has."""
    return BatchClaims([int(pipe) for pipe in variable.split(",")]) if variable else None
