"""The client of one call: records whether the client has left, and calls registered callbacks when it leaves."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


class Client:
    """The client that waits for the answer of one call.

    Only the event loop calls `leave`; any thread may call the other methods.

    Attributes:
        left: Whether the client has left, or the call is over.
        was_asked_for: Whether the model's code has checked for the client, and so handles its departure itself.
    """

    __slots__ = ("_callbacks", "left", "was_asked_for")

    def __init__(self) -> None:
        self.left = False
        self.was_asked_for = False
        self._callbacks: dict[object, Callable[[], None]] = {}

    def leave(self) -> None:
        """Record that the client has left and call the callbacks; further calls do nothing."""
        if not self.left:
            self.left = True
            for tell in tuple(self._callbacks.values()):
                tell()

    @contextlib.contextmanager
    def telling(self, tell: Callable[[], None]) -> Iterator[None]:
        """Call ``tell`` when the client leaves inside the ``with`` block; immediately if it has left before."""
        key = object()
        # Registering before checking misses no departure; one between the two steps calls ``tell`` twice, harmlessly.
        self._callbacks[key] = tell
        try:
            if self.left:
                tell()
            yield
        finally:
            del self._callbacks[key]

    @contextlib.contextmanager
    def watch(self) -> Iterator[threading.Event]:
        """Yield an event, for model code in threads, that is set when the client leaves."""
        self.was_asked_for = True
        event = threading.Event()
        with self.telling(event.set):
            yield event
