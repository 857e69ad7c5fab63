"""The client of one call: whether it has left, and who is to know at once when it does."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


class Client:
    """Whoever waits for the answer of one call.

    `leave` is called by the event loop; everything else from any thread.

    Attributes:
        left: Whether nobody waits for the answer any longer.
        was_asked_for: Whether the model has looked for it, and so reacts in its own way when it leaves.
    """

    __slots__ = ("_callbacks", "left", "was_asked_for")

    def __init__(self) -> None:
        self.left = False
        self.was_asked_for = False
        self._callbacks: dict[object, Callable[[], None]] = {}

    def leave(self) -> None:
        """Tell everybody that it has left; once."""
        if not self.left:
            self.left = True
            for tell in tuple(self._callbacks.values()):
                tell()

    @contextlib.contextmanager
    def telling(self, tell: Callable[[], None]) -> Iterator[None]:
        """Call ``tell`` if it leaves inside the ``with`` block; at once if it has left already."""
        key = object()
        # In this order no departure is missed, and one that comes between the two is told twice: nobody minds.
        self._callbacks[key] = tell
        try:
            if self.left:
                tell()
            yield
        finally:
            del self._callbacks[key]

    @contextlib.contextmanager
    def watch(self) -> Iterator[threading.Event]:
        """Give the model an event that is set when the client leaves; for code in threads."""
        self.was_asked_for = True
        event = threading.Event()
        with self.telling(event.set):
            yield event
