"""The worker's claim to a batch that it was sent ahead: the server can take such a batch back until the worker begins.

Each frame that is sent ahead has a token in a pipe that the server reads from, too. The frame belongs to the one that
reads the token first.
"""

import os


class BatchClaims:
    """The worker's ends of the pipes.

    Args:
        pipes: Their file descriptors, separated by commas, in the order of the numbers that frames carry.
    """

    def __init__(self, pipes: str) -> None:
        self._pipes = [int(pipe) for pipe in pipes.split(",") if pipe]
        for pipe in self._pipes:
            os.set_inheritable(pipe, False)  # not for processes that the handler starts

    def claim(self, pipe: int) -> bool:
        """Begin a frame: return whether it is the worker's, or was taken back."""
        try:
            return len(os.read(self._pipes[pipe], 1)) == 1
        except BlockingIOError:
            return False
