"""What one worker holds of its store: the leases of sequences, and their states in memory."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping

from ts.protocol.messages import EXPIRED_REASONS, EndedSequence
from ts.sequence.answers import Step
from ts.sequence.cache import SequenceCache
from ts.sequence.departures import Departures, quietly
from ts.sequence.refusals import MOVED, NOT_STORED, UNREADABLE, Refusal
from ts.sequence.stores.store import ENDED, Acquired, Lease, Store, StoreError, StoreSettings

logger = logging.getLogger(__name__)

_SWEEP_INTERVAL = 60.0


class Holdings:
    """Leases and states of one worker's sequences.

    Args:
        cache: Where the handler keeps the states.
        store: What is beneath it.
        settings: What the store was told.
        on_let_go: Told the id of a sequence that is held no longer, or not as it was.
    """

    def __init__(
        self, cache: SequenceCache, store: Store, settings: StoreSettings, on_let_go: Callable[[str], None]
    ) -> None:
        self.leases: dict[str, Lease] = {}
        self._cache = cache
        self._store = store
        self._settings = settings
        self._on_let_go = on_let_go
        #: The sequences that the server's scheduler has open at this worker, and ends itself when they are idle: since
        #: when (monotonic seconds) each is known not to have been idle for too long.
        self._active_since: dict[str, float] = {}
        self._departures = Departures(store)
        self._next_sweep = 0.0

    def take(self, steps: Iterable[Step]) -> Mapping[str, Refusal]:
        """Hold the leases of the steps' sequences and have their states in memory; return why some cannot run."""
        # What others may have taken over soon is looked after as well as what is not here.
        moment, leases = time.monotonic() + self._settings.lease / 2, self.leases
        active_since: dict[str, float] = {}
        for step in steps:
            sequence_id = step.sequence_id
            lease = leases.get(sequence_id)
            if lease is None or lease.fresh_until < moment or not lease.resident:
                # What has not been asked for before is active from now on, whether the store can be read now or not.
                since = min(step.history.active_since, time.monotonic())
                active_since[sequence_id] = self._active_since.setdefault(sequence_id, since)
        if not active_since:
            return {}
        try:
            self._departures.tell()
            missing = self._missing(list(active_since))
            fresh_until = time.monotonic() + self._settings.lease
            acquired = self._store.acquire(missing, active_since) if missing else []
        except StoreError as error:
            logger.error("Sequences cannot be read: %s", error)
            text = f"The sequence store cannot be read, so nothing was done: {error}"
            return dict.fromkeys(active_since, (NOT_STORED, text))
        refusals = {}
        for sequence_id, each in zip(missing, acquired, strict=True):
            refusal = self._install(sequence_id, each, fresh_until)
            if refusal is not None:
                refusals[sequence_id] = refusal
        return refusals

    def _missing(self, ids: Iterable[str]) -> list[str]:
        """Which of the sequences are not in memory as they are stored; the leases of the others are prolonged."""
        missing, old = [], []
        for sequence_id in ids:
            lease = self.leases.get(sequence_id)
            if lease is None or not lease.resident:
                missing.append(sequence_id)
            else:
                old.append(lease)
        if old:
            fresh_until = time.monotonic() + self._settings.lease
            for lease, held in zip(old, self._store.renew(old), strict=True):
                if held:
                    lease.fresh_until = fresh_until
                else:  # another one has taken it meanwhile
                    self.let_go(lease.sequence_id)
                    missing.append(lease.sequence_id)
        return missing

    def _install(self, sequence_id: str, acquired: Acquired, fresh_until: float) -> Refusal | None:
        lease = acquired.lease
        if lease is None:
            return MOVED, f"Sequence {sequence_id!r} is run by another server now. Try again a little later."
        lease.fresh_until = fresh_until
        lease.closed = acquired.closed
        self.leases[sequence_id] = lease
        self._cache.drop(sequence_id)
        if acquired.state is not None:
            try:
                self._cache.put(sequence_id, self._cache.encoding.decode(acquired.state))
            except Exception as error:  # a decoder is the handler's code
                logger.exception("The state of %r cannot be read", sequence_id, extra={"sequence_id": sequence_id})
                self.give_back(sequence_id)
                return UNREADABLE, f"The stored state of sequence {sequence_id!r} cannot be read: {error}"
        if lease.closed:
            self._active_since.pop(sequence_id, None)
        else:
            self.begun(sequence_id)
        return None

    def begun(self, sequence_id: str) -> None:
        """The sequence goes on at this worker."""
        self._active_since[sequence_id] = -math.inf

    def let_go(self, sequence_id: str) -> None:
        """Have nothing of a sequence in memory: its next step reads what is stored."""
        self._on_let_go(sequence_id)
        self._cache.drop(sequence_id)
        self.leases.pop(sequence_id, None)

    def give_back(self, sequence_id: str) -> None:
        """Let anybody have a sequence that was taken for nothing."""
        lease = self.leases.get(sequence_id)
        self.let_go(sequence_id)
        if lease is not None:
            self._departures.released([lease], self._idle_at())
            self._departures.tell_now_and_then()

    def _idle_at(self) -> float:
        """When a sequence is idle for too long whose idle time begins now."""
        return time.monotonic() + self._settings.lifetime

    def give_back_closed(self, sequence_ids: Iterable[str]) -> None:
        """What is over and was not begun anew is nobody's, before anybody is told that it is over."""
        closed = [each for each in sequence_ids if each in self.leases and self.leases[each].closed]
        for sequence_id in set(closed):
            self._departures.released([self.leases[sequence_id]], self._idle_at())
            self.let_go(sequence_id)
        if closed:
            self.tell_departures()

    def has_ended(self, sequence_id: str) -> None:
        """The sequence is over, although what it did last is not stored."""
        self._departures.ended(self.leases[sequence_id])

    def end(self, ended: Iterable[EndedSequence]) -> None:
        """The scheduler has closed sequences."""
        for sequence_id, reason, moment in ended:
            self._active_since.pop(sequence_id, None)
            lease = self.leases.get(sequence_id)
            self.let_go(sequence_id)
            if lease is None:
                continue
            if reason == ENDED:
                self._departures.ended(lease)
            else:  # another server may have had something of it queued before that moment; or it goes on elsewhere
                self._departures.released([lease], moment if reason in EXPIRED_REASONS else self._idle_at())
        self._departures.tell_now_and_then()

    def rest(self, keep: Collection[str]) -> None:
        """The answers have left: make room in memory, but for the sequences in ``keep``, and at times in the store."""
        for sequence_id in self._cache.shrink(keep):
            if sequence_id in self.leases:
                self.leases[sequence_id].resident = False
        quietly(self._store.tidy)
        self._departures.tell_now_and_then()
        if time.monotonic() >= self._next_sweep:
            self._next_sweep = time.monotonic() + _SWEEP_INTERVAL
            quietly(self._store.sweep)

    @property
    def departures_wait(self) -> bool:
        """Whether the store is still to be told of sequences that have left."""
        return self._departures.wait

    def tell_departures(self) -> None:
        """Tell the store of them."""
        quietly(self._departures.tell)

    def close(self) -> None:
        """Let other workers and servers go on at once with what this one had."""
        self._departures.released(self.leases.values(), self._idle_at())
        quietly(self._departures.tell)
        quietly(self._store.close)
