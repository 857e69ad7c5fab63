"""Ending blocking work from another thread: the work looks, between two pieces, whether it is still wanted."""

from __future__ import annotations

import threading


class Cancelled(Exception):
    """The work was given up; nothing of it is left behind."""


class Cancellation:
    """One piece of work that somebody else may give up."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def cancel(self) -> None:
        """Give the work up. It ends at its next `check`."""
        self._event.set()

    def check(self) -> None:
        """Raise Cancelled if the work was given up."""
        if self._event.is_set():
            raise Cancelled
