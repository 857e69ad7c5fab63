"""Sequences that leave a worker, because they are over or go on elsewhere: the store is told of many at once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from ts.sequence.stores.store import Lease, Store, StoreError

logger = logging.getLogger(__name__)

#: Between two writes for nothing but departures (seconds): many leave at the same moment.
_INTERVAL = 0.1


class Departures:
    """What a store is still to be told.

    Args:
        store: The store.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ended: list[tuple[Lease, str]] = []
        self._released: list[Lease] = []
        self._next = 0.0

    def ended(self, lease: Lease, reason: str) -> None:
        """A sequence is over: its state may go."""
        self._ended.append((lease, reason))

    def released(self, leases: Iterable[Lease]) -> None:
        """These go on elsewhere, or later: let anybody have them."""
        self._released += leases

    def tell(self) -> None:
        """Tell the store.

        Raises:
            StoreError: It cannot be told now; some of it may be next time.
        """
        if self._ended:
            self._store.end(self._ended)
            self._ended = []
        if self._released:
            self._store.release(self._released)
            self._released = []

    def tell_soon(self) -> None:
        """The same unless it was done a moment ago; the store's own deadlines do what cannot be told."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _INTERVAL
            quietly(self.tell)


def quietly(action: Callable[[], None]) -> None:
    """Do with a store what nobody waits for; if it cannot be done, that is logged."""
    try:
        action()
    except StoreError as error:
        logger.error("The sequence store: %s", error)
