"""Tokens for what a worker is sent ahead: whoever reads a token first, the worker or the server, has its frame.

The worker takes a frame's token to begin the frame, the server takes it back to send the jobs elsewhere. Reading a pipe
is atomic, so both know at once who was first, without asking each other. There are two pipes, used in turn by the
batches that are sent ahead: the worker may not have reached the last batch when the next one is sent.
"""

import os
from typing import Final

_TOKEN: Final = b"."
_PIPES: Final = 2
#: More than the frames of a batch, of which each has at least one job.
_ALL: Final = 65536


class BatchTokens:
    """The server's end; it keeps both ends of the pipes open, so that tokens outlive their worker.

    Raises OSError: the process has too many open files.
    """

    def __init__(self) -> None:
        self._pipes: list[tuple[int, int]] = []
        self._current = 0
        self._left: int | None = None
        try:
            for _ in range(_PIPES):
                self._pipes.append(os.pipe())
        except OSError:
            self._close_pipes()
            raise
        for ends in self._pipes:
            for end in ends:
                os.set_blocking(end, False)

    @property
    def worker_ends(self) -> tuple[int, ...]:
        """The file descriptors that the worker reads from."""
        return tuple(read_end for read_end, _ in self._pipes)

    def pipe_of(self, *, joins: bool) -> int:
        """Return the number of the pipe for a frame; ``joins`` tells that it belongs to the batch sent ahead last."""
        return self._current if joins else (self._current + 1) % _PIPES

    def add(self, pipe: int) -> None:
        """Make a token for a frame, right before that is sent."""
        if self._left is None:
            os.write(self._pipes[pipe][1], _TOKEN)
        else:  # the worker is gone: it will not begin the frame
            self._left = self._left + 1 if pipe == self._current else 1
        self._current = pipe

    def take_back(self) -> int:
        """Return how many frames of the batch that was sent ahead last the worker has not begun, and now never will."""
        if self._left is not None:
            left, self._left = self._left, 0
            return left
        try:
            return len(os.read(self._pipes[self._current][0], _ALL))
        except BlockingIOError:
            return 0

    def close(self) -> None:
        """Close the pipes once the worker is gone; what it has not begun can still be taken back."""
        if self._left is None:
            self._left = self.take_back()
            self._close_pipes()

    def _close_pipes(self) -> None:
        for ends in self._pipes:
            for end in ends:
                os.close(end)
