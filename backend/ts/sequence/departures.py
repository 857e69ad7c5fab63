"""Sequences that leave a worker, because they are over or go on elsewhere: the store is told of many at once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from ts.sequence.stores.store import Lease, Store, StoreError

logger = logging.getLogger(__name__)

#: Between two writes for nothing but departures while there is other work (seconds).
_INTERVAL = 0.1


class Departures:
    """What a store is still to be told.

    Args:
        store: The store.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ended: list[Lease] = []
        self._released: list[tuple[Lease, float]] = []
        self._next = 0.0
        self._failed = False

    def ended(self, lease: Lease) -> None:
        """A sequence has ended: its state may go."""
        self._ended.append(lease)
        self._failed = False

    def released(self, leases: Iterable[Lease], idle_at: float) -> None:
        """Let anybody have these, which are idle for too long at that moment (monotonic seconds)."""
        self._released += [(lease, idle_at) for lease in leases]
        self._failed = False

    @property
    def wait(self) -> bool:
        """Whether the store is still to be told of some, and has not refused to be."""
        return bool(self._ended or self._released) and not self._failed

    def tell(self) -> None:
        """Tell the store.

        Raises:
            StoreError: It cannot be told now; some of it may be next time.
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
        """The same while there is other work, unless it was done a moment ago."""
        if self.wait and time.monotonic() >= self._next:
            quietly(self.tell)


def quietly(action: Callable[[], None]) -> None:
    """Do with a store what nobody waits for; if it cannot be done, that is logged."""
    try:
        action()
    except StoreError as error:
        logger.error("The sequence store: %s", error)
