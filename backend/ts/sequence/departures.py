"""Sequences that leave a worker, because they have ended or move elsewhere; the store is told of many at once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from ts.sequence.stores.store import Lease, Store, StoreError

logger = logging.getLogger(__name__)

#: The least time between two writes of departures while the worker has other work (seconds).
_INTERVAL = 0.1


class Departures:
    """The departures that have yet to be written to a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ended: list[Lease] = []
        self._released: list[tuple[Lease, float]] = []
        self._next = 0.0
        self._failed = False

    def ended(self, lease: Lease) -> None:
        """Record that a sequence has ended, so that the store can drop its state."""
        self._ended.append(lease)
        self._failed = False

    def released(self, leases: Iterable[Lease], idle_at: float) -> None:
        """Record leases that other workers may take.

        Args:
            idle_at: The moment (monotonic seconds) at which their sequences have been idle for too long.
        """
        self._released += [(lease, idle_at) for lease in leases]
        self._failed = False

    @property
    def wait(self) -> bool:
        """Whether departures have yet to be written, and the last attempt has not failed."""
        return bool(self._ended or self._released) and not self._failed

    def tell(self) -> None:
        """Write the departures to the store.

        Raises:
            StoreError: The store cannot be written; the departures that remain are kept for the next attempt.
        """
        if not self._ended and not self._released:
            return
        self._next = time.monotonic() + _INTERVAL
        self._failed = True
        if self._ended:
            self._store.end(self._ended)
            self._ended = []
        if self._released:
            self._store.release(self._released)
            self._released = []
        self._failed = False

    def tell_now_and_then(self) -> None:
        """Write the departures if the last attempt was long enough ago; log it if that fails."""
        if self.wait and time.monotonic() >= self._next:
            quietly(self.tell)


def quietly(action: Callable[[], None]) -> None:
    """Run an action on a store that no answer depends on; log a `StoreError`."""
    try:
        action()
    except StoreError as error:
        logger.error("The sequence store: %s", error)
