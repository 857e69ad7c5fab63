"""The sequences that one worker holds: their leases in the store, and their states in memory."""

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from ts.jobs.device_loss import device_is_full
from ts.jobs.errors import device_failure
from ts.protocol.boot_clock import boot_time
from ts.protocol.messages import ENDED, EXPIRED_REASONS, EndedSequence
from ts.sequence.sequence_cache import SequenceCache
from ts.sequence.state_tiers import HOST, STORE
from ts.sequences.steps.migration import Migration
from ts.sequences.steps.rebuilding import MakeRoom, Rebuilding, StoredLog, stored_log
from ts.sequences.steps.state_log import latest_whole
from ts.sequences.steps.step import (
    DAMAGED,
    DEVICE,
    HELD,
    MOVED,
    NOT_STORED,
    UNREADABLE,
    VERSION_GONE,
    Step,
    StepRefusal,
)
from ts.sequences.steps.stores.store import (
    Acquired,
    HeldElsewhere,
    Lease,
    OtherVersion,
    Store,
    StoreError,
    StoreSettings,
    Unreadable,
)

logger = logging.getLogger(__name__)

_SWEEP_INTERVAL: Final = 60.0


class Holdings:
    """Leases and states of one worker's sequences.

    Args:
        store: Returns the store, once no commit is under way.
        on_drop: Called with the id of a sequence before the worker drops its lease and state.
        metrics: Those of the model.
        migration: Makes states of those of other versions, if the handler can.
    """

    def __init__(
        self,
        cache: SequenceCache,
        store: Callable[[], Store],
        settings: StoreSettings,
        on_drop: Callable[[str], None],
        metrics: Any,
        migration: Migration,
    ) -> None:
        self.leases: dict[str, Lease] = {}
        #: Why the states of some of them cannot be read. Their leases are released behind the batch, unless a step of
        #: the batch begins the sequence anew.
        self.unreadable: dict[str, StepRefusal] = {}
        self._cache = cache
        self._store = store
        self._settings = settings
        self._on_drop = on_drop
        #: For each sequence that the server's scheduler has open at this worker (it ends idle ones itself): the moment
        #: since which the sequence is known not to have been idle for too long.
        self._active_since: dict[str, float] = {}
        self.departures = Departures(store)
        self._migration = migration
        self._rebuilding = Rebuilding(cache, metrics, settings.rebuilt_at_once)
        self._next_sweep = 0.0

    def take(self, steps: Sequence[Step]) -> Mapping[str, StepRefusal]:
        """Acquire the leases of the steps' sequences and read their states; return refusals by sequence id."""
        # Renew leases that expire soon together with reading the sequences that are not in memory.
        now, leases = boot_time(), self.leases
        moment = now + self._settings.lease / 2
        active_since: dict[str, float] = {}
        for step in steps:
            sequence_id = step.sequence_id
            lease = leases.get(sequence_id)
            if lease is None or lease.fresh_until < moment or not lease.resident:
                # A sequence requested for the first time counts as active from now on, even if the store fails now.
                since = min(step.history.active_since, now)
                active_since[sequence_id] = self._active_since.setdefault(sequence_id, since)
        self._cache.tiers.looked(HOST, len(steps) - len(active_since), 0)
        if not active_since:
            return {}
        try:
            self.departures.write()
            missing = self._missing(list(active_since))
            fresh_until = boot_time() + self._settings.lease
            acquired = self._store().acquire(missing, active_since) if missing else []
        except StoreError as error:
            logger.error("Sequences cannot be read: %s", error)
            text = f"The sequence store cannot be read, so nothing was done: {error}"
            return dict.fromkeys(active_since, StepRefusal(NOT_STORED, text))

        def make_room(failure: Exception) -> bool:
            return self.make_room(failure, {step.sequence_id for step in steps})

        acquired, doubtful = self._with_care(steps, acquired)
        stored = sum(each.state is not None or bool(each.log) for each in acquired)
        self._cache.tiers.looked(HOST, len(active_since) - len(missing), stored)
        self._cache.tiers.moved(STORE, HOST, stored)
        refusals = {}
        logged: list[StoredLog] = []
        self._migration.begin_batch()
        for sequence_id, each in zip(missing, acquired, strict=True):
            refusal = self._install(sequence_id, each, fresh_until, logged, make_room)
            if refusal is not None:
                refusals[sequence_id] = refusal
        for sequence_id, made in self._rebuilding.states_of(logged, make_room).items():
            if isinstance(made, Exception):
                refusal = refusals[sequence_id] = self._unusable(self.leases[sequence_id], made)
                self._installed(self.leases[sequence_id], refusal)
            else:
                self._cache.put(sequence_id, made)
        if doubtful:
            quietly(lambda: self._store().end_reading(doubtful))
        return refusals

    def _with_care(self, steps: Sequence[Step], acquired: list[Acquired]) -> tuple[list[Acquired], list[Lease]]:
        """Return what was acquired, and the leases of the sequences whose states may be what has ended a worker.

        A step that was with a worker that died may have ended it by what the store has of its sequence. The store knows
        while that is read once more, so that no third worker reads it. A step that only asks for its outcome needs no
        state.
        """
        sent = [step for step in steps if step.history.was_sent or step.history.asks_after]
        if not sent:
            return acquired, []
        runs = {step.sequence_id for step in steps if not step.history.asks_after}
        asks = {step.sequence_id for step in sent} - runs
        doubtful: list[Lease] = []
        for place, each in enumerate(acquired):
            lease = each.lease
            if lease is None or each.refusal is not None or (each.state is None and not each.log):
                continue
            if lease.sequence_id in asks:
                lease.resident = False
                acquired[place] = each._replace(state=None, log=())
            elif any(step.sequence_id == lease.sequence_id for step in sent):
                doubtful.append(lease)
        if doubtful:
            quietly(lambda: self._store().begin_reading(doubtful))
        return acquired, doubtful

    def _missing(self, ids: Iterable[str]) -> list[str]:
        """Renew the leases of sequences in memory; return the ids of those that must be read from the store."""
        missing, old = [], []
        for sequence_id in ids:
            lease = self.leases.get(sequence_id)
            if lease is None or not lease.resident:
                missing.append(sequence_id)
            else:
                old.append(lease)
        if old:
            fresh_until = boot_time() + self._settings.lease
            for lease, held in zip(old, self._store().renew(old), strict=True):
                if held:
                    lease.fresh_until = fresh_until
                else:  # another holder has taken the lease
                    self.drop_from_memory(lease.sequence_id)
                    missing.append(lease.sequence_id)
        return missing

    def _install(
        self,
        sequence_id: str,
        acquired: Acquired,
        fresh_until: float,
        logged: list[StoredLog],
        make_room: MakeRoom,
    ) -> StepRefusal | None:
        """Take over what was acquired; add to ``logged`` what has yet to be made of a log."""
        lease, refusal = acquired.lease, self._refusal(sequence_id, acquired)
        if lease is None:
            return refusal
        lease.fresh_until = fresh_until
        place = latest_whole(acquired.log)
        if place is not None:
            latest, log_from = acquired.log[place], lease.record.checkpoint.log_from
            lease.whole_at = (*(each for each in latest.earlier if each >= log_from), latest.number)
        lease.has_appended = bool(acquired.log) and not acquired.log[-1].is_whole
        self.leases[sequence_id] = lease
        self.unreadable.pop(sequence_id, None)
        self._cache.drop(sequence_id)
        if isinstance(acquired.refusal, OtherVersion) and self._settings.migrates:
            refusal = self._move(lease, acquired, acquired.refusal, make_room)
        elif refusal is None and (acquired.state is not None or acquired.log):
            try:
                decoded = self._decoded(sequence_id, acquired, make_room)
                if decoded.log:
                    logged.append(decoded)
                else:
                    self._cache.put(sequence_id, decoded.state)
            except Exception as error:  # a decoder is the handler's code
                refusal = self._unusable(lease, error)
        self._installed(lease, refusal)
        return refusal

    def _move(self, lease: Lease, acquired: Acquired, other: OtherVersion, make_room: MakeRoom) -> StepRefusal | None:
        """Let this version continue a sequence of another one; say why, if it cannot."""
        try:
            self._migration.move(lease, acquired.state, acquired.log, make_room)
        except Exception as error:  # it is the handler's code
            self._cache.drop(lease.sequence_id)
            if device_failure(error) is not None:
                return self._unusable(lease, error)
            return self._migration.refusal(lease, other, error)
        return None

    def _decoded(self, sequence_id: str, acquired: Acquired, make_room: MakeRoom) -> StoredLog:
        """Decode what was acquired, once more if there is room only then; raise what a decoder raises."""
        encoding, whole, log = self._cache.encoding, acquired.state, acquired.log
        try:
            return stored_log(encoding, sequence_id, whole, log)
        except Exception as error:  # a decoder is the handler's code
            if not make_room(error):
                raise
        return stored_log(encoding, sequence_id, whole, log)

    def _unusable(self, lease: Lease, error: Exception) -> StepRefusal:
        """Say why what the store has of a sequence cannot be made a state, which the handler's code has refused."""
        sequence_id, failure = lease.sequence_id, device_failure(error)
        if failure is not None:  # the state itself is good: it stays in the store, and the lease here
            lease.resident = False
            text = f"The state of sequence {sequence_id!r} was not read, so nothing was done: {failure.message}"
            return StepRefusal((failure.status, DEVICE), text)
        about = {"sequence_id": sequence_id}
        logger.error("The state of %r cannot be read", sequence_id, exc_info=error, extra=about)
        text = f"The stored state of sequence {sequence_id!r} cannot be read: {error}"
        return StepRefusal(UNREADABLE, text, needs_state=True)

    def _installed(self, lease: Lease, refusal: StepRefusal | None) -> None:
        sequence_id = lease.sequence_id
        if refusal is not None and not lease.resident:
            return
        if refusal is not None:
            self.unreadable[sequence_id] = refusal
        if lease.record.closed or refusal is not None:
            self._active_since.pop(sequence_id, None)
        else:
            self.begun(sequence_id)

    def _refusal(self, sequence_id: str, acquired: Acquired) -> StepRefusal | None:
        """Say why a sequence could not be acquired, or not its state; None if it was acquired whole."""
        match acquired.refusal:
            case HeldElsewhere():
                return StepRefusal(HELD, f"Sequence {sequence_id!r} is run by another server now. Try again later.")
            case OtherVersion(version, is_served):
                text = f"Sequence {sequence_id!r} belongs to version {version} of the model"
                reason = MOVED if is_served else VERSION_GONE
                text += ", which another server has." if is_served else ", which no server has any more."
                return StepRefusal(reason, text, needs_state=acquired.lease is not None, version=version)
            case Unreadable(problem):
                logger.error(
                    "The store has damaged data of sequence %r of model %s: %s; see 'torchserve-py store'",
                    *(sequence_id, self._settings.model, problem),
                    extra={"sequence_id": sequence_id},
                )
                text = f"What the store has of sequence {sequence_id!r} is damaged: {problem}."
                return StepRefusal(DAMAGED, text, needs_state=acquired.lease is not None)
        return None

    def committed(self, lease: Lease, fresh_until: float) -> None:
        """A commit has prolonged a lease; it may have been the first one after a migration."""
        lease.fresh_until = fresh_until
        if lease.migrated_from:
            self._migration.moved(lease)

    def begun(self, sequence_id: str) -> None:
        """Record that the sequence continues at this worker, so it counts as never having been idle for too long."""
        self._active_since[sequence_id] = -math.inf

    def drop_from_memory(self, sequence_id: str) -> None:
        """Drop a sequence's lease and state from memory; the sequence's next step reads the stored state."""
        self._on_drop(sequence_id)
        self._cache.drop(sequence_id)
        self.leases.pop(sequence_id, None)
        self.unreadable.pop(sequence_id, None)

    def roll_back(self, sequence_id: str) -> None:
        """Drop a sequence after a step that does not count.

        The lease is given back, and the sequence's next step takes another one and reads the stored state. If the
        sequence has not begun or is over, any server may begin it: the store hears of that before the answer leaves.
        """
        lease = self.leases.get(sequence_id)
        self.drop_from_memory(sequence_id)
        if lease is not None:
            self.departures.add_released([lease], self._idle_at())
            if lease.record.closed or not lease.record.has_begun:
                quietly(self.departures.write)

    def _idle_at(self) -> float:
        """Return the moment at which a sequence that becomes idle now has been idle for too long."""
        return boot_time() + self._settings.lifetime

    def release_closed(self, sequence_ids: Iterable[str]) -> None:
        """Release those of the sequences that have ended and were not begun anew, before their steps are answered."""
        held = [self.leases[each] for each in set(sequence_ids) if each in self.leases]
        closed = [
            lease
            for lease in held
            if lease.record.closed or not lease.record.has_begun or lease.sequence_id in self.unreadable
        ]
        for lease in closed:
            self.drop_from_memory(lease.sequence_id)
        if closed:
            self.departures.add_released(closed, self._idle_at())
            quietly(self.departures.write)

    def end(self, ended: Iterable[EndedSequence]) -> None:
        """Drop sequences that the server's scheduler has closed, and end or release them in the store."""
        for sequence_id, reason, moment in ended:
            self._active_since.pop(sequence_id, None)
            lease = self.leases.get(sequence_id)
            self.drop_from_memory(sequence_id)
            if lease is None:
                continue
            if reason == ENDED:
                self.departures.add_ended(lease)
            else:  # an expired sequence continues if another server had a step queued in time; others may just move
                self.departures.add_released([lease], moment if reason in EXPIRED_REASONS else self._idle_at())
        self.departures.write_if_due()

    def rest(self, keep: Collection[str]) -> None:
        """Do the deferred work after answers have left: evict states, except those in ``keep``, and tidy the store."""
        self.evict(keep)
        quietly(self._store().tidy)
        self.departures.write_if_due()
        if time.monotonic() >= self._next_sweep:
            self._next_sweep = time.monotonic() + _SWEEP_INTERVAL
            quietly(self._store().sweep)

    def evict(self, keep: Collection[str]) -> None:
        """Evict states beyond the cache's capacity from memory, except those in ``keep``."""
        self._note_evicted(self._cache.shrink(keep))

    def make_room(self, error: BaseException, keep: Collection[str]) -> bool:
        """Evict all states that no running step uses, but ``keep``, if an error says that the device is full.

        Return whether there were any, so that what has failed may be tried once more.
        """
        evicted = self._cache.evict_idle(keep) if device_is_full(error) else []
        if evicted:
            logger.warning("The device's memory is exhausted: %d idle states leave it", len(evicted))
        self._note_evicted(evicted)
        return bool(evicted)

    def _note_evicted(self, sequence_ids: Iterable[str]) -> None:
        for sequence_id in sequence_ids:
            if sequence_id in self.leases:
                self.leases[sequence_id].resident = False

    @property
    def has_chores(self) -> bool:
        """Whether `rest` would use the store for more than to tidy it."""
        return self.departures.are_due_now or time.monotonic() >= self._next_sweep

    def close(self) -> None:
        """Release all leases, so that other workers and servers can continue the sequences; close the store."""
        self.departures.add_released(self.leases.values(), self._idle_at())
        quietly(self.departures.write)
        quietly(self._store().close)


#: The least time between two writes of departures while the worker has other work (seconds).
_INTERVAL = 0.1


class Departures:
    """Leases of sequences that have ended, and leases that are given back, until a store has been told.

    Args:
        store: Returns the store, once no commit is under way.

    Attributes:
        are_due: Whether there are any, and the last attempt to write them has not failed.
    """

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store
        self._ended: list[Lease] = []
        self._released: list[tuple[Lease, float]] = []
        self._next = 0.0
        self.are_due = False

    def add_ended(self, lease: Lease) -> None:
        """Record that a sequence has ended, so that the store can drop its state."""
        self._ended.append(lease)
        self.are_due = True

    def add_released(self, leases: Iterable[Lease], idle_at: float) -> None:
        """Record leases that other workers may take; at the moment ``idle_at`` they are idle for too long."""
        released = [(lease, idle_at) for lease in leases]
        self._released += released
        self.are_due = self.are_due or bool(released)

    @property
    def are_due_now(self) -> bool:
        """Whether the departures are due although the worker has other work."""
        return self.are_due and time.monotonic() >= self._next

    def write(self) -> None:
        """Write the departures to the store.

        Raises StoreError: the store cannot be written; the departures that remain are kept for the next attempt.
        """
        if not self._ended and not self._released:
            return
        store = self._store()  # first, because the commit that it waits for may add departures
        self._next = time.monotonic() + _INTERVAL
        self.are_due = False
        if self._ended:
            store.end(self._ended)
            self._ended = []
        if self._released:
            store.release(self._released)
            self._released = []

    def write_if_due(self) -> None:
        """Write the departures if the last attempt was long enough ago; log it if that fails."""
        if self.are_due_now:
            quietly(self.write)


def quietly(action: Callable[[], None]) -> None:
    """Run an action on a store that no answer depends on; log a `StoreError`."""
    try:
        action()
    except StoreError as error:
        logger.error("The sequence store: %s", error)
