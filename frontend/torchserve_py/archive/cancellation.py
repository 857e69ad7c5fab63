"""Cancels blocking work from another thread: the work checks between its steps whether it was cancelled."""

import threading


class Cancelled(Exception):
    """The work was cancelled, and has removed its files."""


class Cancellation:
    """One piece of work that another thread may cancel."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def cancel(self) -> None:
        """Cancel the work; it ends at its next `check`."""
        self._event.set()

    def check(self) -> None:
        """Raise Cancelled if the work was cancelled."""
        if self._event.is_set():
            raise Cancelled
