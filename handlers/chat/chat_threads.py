"""How many threads compute a step of the model: all that the worker has, or one.

Threads wait for each other many times in a step. Where a step is small, or other programs use the processors too, that
takes longer than one thread takes for all of it. Which it is depends on the machine, the model and the hour, so steps
are timed: those of one size mostly go the way that was the faster one lately, and now and then the other.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Final

import torch

#: How many of the latest steps of one size count, of each way.
_LATEST: Final = 3
#: After so many steps of one size the way that was slower lately is tried again if both are about as fast; the more
#: there is between them, the later.
_TRIED_AGAIN: Final = 50


class _Size:
    """The steps of one size: how long the latest took (seconds), by their threads."""

    def __init__(self, threads: int) -> None:
        self.seconds = {each: deque[float](maxlen=_LATEST) for each in (threads, 1)}
        self._before_other = 0

    def next_threads(self) -> int:
        """Return how many threads the next step gets."""
        for threads, seconds in self.seconds.items():
            if len(seconds) < _LATEST:
                return threads
        (fast, faster), (slow, slower) = sorted((median(seconds), each) for each, seconds in self.seconds.items())
        if self._before_other:
            self._before_other -= 1
            return faster
        self._before_other = int(_TRIED_AGAIN * (slow / fast) ** 2)
        return slower


class StepThreads:
    """Chooses the threads of each step of a model on processors.

    Args:
        is_on_cpu: Whether the model is there. Elsewhere nothing is chosen.
    """

    def __init__(self, *, is_on_cpu: bool) -> None:
        #: The threads that the worker has.
        self.most = torch.get_num_threads()
        self._chooses = is_on_cpu and self.most > 1
        self._sizes: defaultdict[tuple[int, int], _Size] = defaultdict(lambda: _Size(self.most))

    @contextmanager
    def of_step(self, tokens: int, context: int) -> Iterator[None]:
        """Have a step computed in which so many conversations read one token each, and ``context`` tokens together."""
        if not self._chooses:
            yield
            return
        size = self._sizes[tokens.bit_length(), context.bit_length()]
        threads = size.next_threads()
        torch.set_num_threads(threads)
        began = time.perf_counter()
        try:
            yield
        finally:
            size.seconds[threads].append(time.perf_counter() - began)
            torch.set_num_threads(self.most)
