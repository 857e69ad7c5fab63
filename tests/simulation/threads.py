"""What the real code takes from `threading` and `connection`, for the greenlets of a simulated world."""

import selectors
from collections.abc import Callable, Sequence
from typing import Any, Final

from tests.simulation.world import Process, World

#: Between two looks at a lock that is taken (seconds).
_LOOK: Final = 0.001


class Ears:
    """Blocking code that listens for something that may come.

    Args:
        slowness: How many times as long as it asks for it listens at a time.
    """

    def __init__(self, world: World, slowness: float) -> None:
        self._world, self._slowness = world, slowness
        self._listening: list[tuple[Process, Callable[[], None], Callable[[], bool]]] = []

    def listen(self, limit: float, hears: Callable[[], bool] = lambda: True) -> None:
        """Wait until somebody rings and ``hears`` returns true, for at most so many seconds."""
        process, is_over = self._world.current, False
        resume = self._world.here()

        def wake() -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                self._listening = [each for each in self._listening if each[1] is not wake]
                resume()

        self._listening.append((process, wake, hears))
        process.chore(limit * self._slowness, wake)
        self._world.wait()

    def ring(self) -> None:
        """Wake all who listen and hear it."""
        for each in [each for each in self._listening if not each[0].is_dead and each[2]()]:
            self._listening.remove(each)
            each[0].soon(each[1])

    def wait(self, readers: Sequence[Any], limit: float) -> Any:
        """Do what `multiprocessing.connection.wait` does for sockets to which nobody writes without ringing."""

        def look() -> Any:
            with selectors.DefaultSelector() as selector:
                for each in readers:
                    selector.register(each, selectors.EVENT_READ)
                return [key.fileobj for key, _ in selector.select(0.0)]

        if limit > 0.0 and not look():
            self.listen(limit, lambda: bool(look()))
        return look()


class Lock:
    """A lock between the greenlets of one process."""

    def __init__(self, world: World, ears: Ears) -> None:
        self._world, self._ears = world, ears
        self._is_taken = False

    def __enter__(self) -> None:
        while self._is_taken:
            self._ears.ring()
            self._world.sleep(_LOOK)
        self._is_taken = True

    def __exit__(self, *_: object) -> None:
        self._is_taken = False


class Event:
    """A flag; whoever waits for it waits for as long as it may."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, limit: float) -> bool:
        if not self._is_set:
            self._world.sleep(limit)
        return self._is_set
