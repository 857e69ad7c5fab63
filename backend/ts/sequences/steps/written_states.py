"""What commits write of the states of sequences: a state whole, or what the steps have appended to its log.

A step that has appended writes its entries. Now and then it writes the state whole instead, a **checkpoint**, so that
the log stays short. A step that has only set the state writes it whole; in a model with logs, one that has done neither
has changed nothing.

Where earlier states are kept, a state that is written whole does not end the log but is a piece of it, and the log
begins with the earliest one that is kept.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from ts.sequence.sequence_cache import SequenceCache
from ts.sequence.state_error import StateError
from ts.sequences.steps.record import NO_STATE, checkpoint_of
from ts.sequences.steps.state_log import LogEntry, gap, whole_entry
from ts.sequences.steps.stores.store import Commit, Lease, StoreSettings

logger = logging.getLogger(__name__)


class KeptLog(NamedTuple):
    """What a commit writes to a log of which a state is a piece; the fields are those of `Commit`."""

    log: Sequence[LogEntry]
    has_log: bool
    dropped: int


class WrittenStates:
    """Decides and encodes what commits write.

    Args:
        states: The states in memory.
        most: The limit in bytes beyond which a state is refused.

    Attributes:
        keeps_states: Whether earlier states are kept.
    """

    def __init__(self, states: SequenceCache, settings: StoreSettings, most: int) -> None:
        self._states = states
        self._kept = settings.kept_states
        self.keeps_states = self._kept > 1
        self._every = settings.checkpoint_steps
        self._most = most
        self._empty = states.encoding.encode([])
        self._is_warned = False
        #: What the log has of the last steps of sequences that have a step which still runs, but is counted already: it
        #: may have more to append.
        self._tails: dict[str, list[Any]] = {}

    @property
    def are_whole(self) -> bool:
        """Whether all states are written whole, and end the log: nothing has logs, and no earlier state is kept."""
        return self._states.rebuild is None and not self.keeps_states

    @property
    def are_ready(self) -> bool:
        """Whether `prepare` has nothing to do: all states are written whole, and are in the host's memory."""
        return self.are_whole and not self._states.has_arena

    def prepare(self, changed: Iterable[Lease], counted: Callable[[str], int]) -> set[str]:
        """Return which states are written whole, and copy what is on a device of these to the host, all at once.

        Args:
            changed: The sequences of a commit.
            counted: Returns how many steps of a sequence the commit counts first.
        """
        if self.are_whole:
            whole = {lease.sequence_id for lease in changed}
        else:
            whole = {lease.sequence_id for lease in changed if self._is_whole(lease, counted(lease.sequence_id))}
        self._states.before_commit(whole)
        return whole

    def _is_whole(self, lease: Lease, steps: int) -> bool:
        states, checkpoint = self._states, lease.record.checkpoint
        if lease.migrated_from:
            return True  # what is stored, the log included, is of another version
        if states.rebuild is None:
            return True
        if states.is_log(lease.sequence_id) and not states.entries(lease.sequence_id):
            return states.is_replaced(lease.sequence_id)
        if not steps and (not checkpoint.log_from or self._is_whole_at_last(lease)):
            return True  # a log has no place for what comes after a checkpoint at the last step
        if states.entries(lease.sequence_id):
            return self._is_checkpoint_due(lease, steps)
        return states.is_replaced(lease.sequence_id) or not (states.has_logs or lease.has_appended)

    def _is_checkpoint_due(self, lease: Lease, steps: int) -> bool:
        if self._states.is_log(lease.sequence_id):
            return False
        log_from, last = lease.record.checkpoint.log_from, lease.record.last + steps
        if lease.whole_at:
            log_from = lease.whole_at[-1] + 1
        return bool(self._every and log_from) and last >= max(log_from + self._every, lease.checkpoint_from)

    def _is_whole_at_last(self, lease: Lease) -> bool:
        return bool(lease.whole_at) and lease.whole_at[-1] == lease.record.last

    def encode(self, lease: Lease, *, whole: bool) -> tuple[bytes | None, bytes | None]:
        """Return the encoded state, or else the encoded entries of the steps; both are None if there is no state.

        Raises StateError: a state or an entry cannot be encoded, or is too large; or whatever an encoder raises.
        """
        sequence_id = lease.sequence_id
        entries = self._states.entries(sequence_id)
        can_wait = not lease.migrated_from and not self._is_whole_at_last(lease)
        if whole and entries and can_wait:
            try:
                return self.state(sequence_id), None
            except StateError as error:
                self._put_off(lease, error)
        elif whole:
            return self.state(sequence_id), None
        return None, self._encoded_entries(entries)

    def state(self, sequence_id: str) -> bytes | None:
        """Return the encoded state, None if there is none. Raises as `encode`."""
        encoded = self._states.encoded(sequence_id)
        if encoded is not None and len(encoded) > self._most:
            self._check_size(encoded)
        return encoded

    def _encoded_entries(self, entries: Sequence[Any]) -> bytes:
        if not entries:
            return self._empty
        encoded = self._states.encoding.encode(list(entries))
        self._check_size(encoded)
        return encoded

    def _check_size(self, encoded: bytes) -> None:
        if len(encoded) > self._most:
            raise StateError(f"it has {len(encoded)} bytes; handler.cache.maxStateSize allows {self._most}")

    def _put_off(self, lease: Lease, error: StateError) -> None:
        lease.checkpoint_from = lease.record.last + self._every
        if not self._is_warned:
            self._is_warned = True
            logger.warning(
                "No checkpoint of the state of %r can be written, so its log grows: %s",
                *(lease.sequence_id, error),
                extra={"sequence_id": lease.sequence_id},
            )

    def log(self, lease: Lease, first: int, entries: bytes, *, runs_on: bool) -> list[LogEntry]:
        """Return what a commit writes to the log, and note in the record that it has been written.

        Args:
            first: The number of the first step that the commit counts; its record counts all of them.
            entries: What these steps have appended, encoded.
            runs_on: Whether one of them still runs.
        """
        record, sequence_id = lease.record, lease.sequence_id
        appended = self._states.entries(sequence_id)
        tail = self._tails.pop(sequence_id, [])
        if first > record.last:  # no step is counted: what comes is of the last one, too
            appended = [*tail, *appended]
            entries = self._encoded_entries(appended)
            first = record.last
        if runs_on:
            self._tails[sequence_id] = appended
        lease.has_appended = True
        if not record.checkpoint.log_from:
            record.checkpoint = record.checkpoint._replace(log_from=first)
        earlier = [LogEntry(number, self._empty) for number in range(first, record.last)]
        return [*earlier, LogEntry(record.last, entries)]

    def kept(self, lease: Lease, first: int, state: bytes) -> KeptLog:
        """Return what a commit writes that keeps earlier states, and note it in the record and the lease.

        Args:
            first: The number of the first step that the commit counts; its record counts all of them.
        """
        record = lease.record
        last, (step, _, log_from) = record.last, record.checkpoint
        if step >= 0 or not log_from or lease.migrated_from:  # what there is cannot stand before a kept state
            record.checkpoint = NO_STATE._replace(log_from=last)
            lease.whole_at, lease.has_appended = (last,), False
            return KeptLog([whole_entry(last, state, ())], has_log=False, dropped=0)
        whole_at = (*(each for each in lease.whole_at if each < last), last)
        lease.whole_at, lease.has_appended = whole_at[-self._kept :], False
        begins = lease.whole_at[0] if len(whole_at) >= self._kept else log_from
        record.checkpoint = NO_STATE._replace(log_from=begins)
        entry = whole_entry(last, state, lease.whole_at[:-1])
        return KeptLog([*map(gap, range(first, last)), entry], has_log=True, dropped=begins - log_from)

    def all_of(self, commit: Commit) -> Commit:
        """Return a commit that writes all that there is of its sequence, instead of one that changes what is stored.

        Raises as `encode`.
        """
        lease, record = commit.lease, commit.lease.record
        ids = bytes(record.ids or b"")
        state = None if commit.closed else self.state(lease.sequence_id)
        record.checkpoint, lease.whole_at = NO_STATE, ()
        self._tails.pop(lease.sequence_id, None)
        commit = commit._replace(state=state, new_ids=ids, begins=True, log=None, has_log=True, dropped=0)
        if state is None or not self.keeps_states:
            self.note_whole(lease, state)
            return commit
        log, has_log, dropped = self.kept(lease, record.last, state)
        return commit._replace(state=None, log=log, has_log=has_log, dropped=dropped)

    def note_whole(self, lease: Lease, state: bytes | None) -> None:
        """Note that a state was written whole, and has ended the log."""
        lease.record.checkpoint = checkpoint_of(state, lease.record.last)
        lease.whole_at, lease.has_appended = (), False
