"""Moves sequences of other versions of the model to this one, by the handler's ``migrate``.

``migrate(state, from_version)`` gets a state as another version has stored it, and returns this version's. What is in
the log since then, ``rebuild`` adds as ever; a ``migrate`` with a third parameter, ``entries``, gets the log as well,
and returns the state after it. A sequence that has neither a state nor a log moves without a call.

Nothing of that is stored before the step that has asked for the state is committed: the same commit writes the migrated
state, whole, and the version. So a migration that fails, or whose worker dies, leaves all as it was.
"""

import inspect
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from ts.jobs.errors import LoadError, users_traceback
from ts.metrics.metric_type_enum import MetricTypes
from ts.protocol.messages import NOT_MIGRATED
from ts.sequence.sequence_cache import SequenceCache
from ts.sequence.state_error import StateError
from ts.sequences.steps.rebuilding import MakeRoom, StoredLog, check_rebuilt, stored_log
from ts.sequences.steps.state_log import LogEntry
from ts.sequences.steps.step import MIGRATION_FAILED, MOVED, StepRefusal
from ts.sequences.steps.stores.store import Lease, OtherVersion, StoreSettings
from ts.sequences.steps.time_limit import limited_to

logger = logging.getLogger(__name__)

_PARAMETERS: Final = "migrate(state, from_version), or migrate(state, from_version, entries) if it reads logs as well"


class Migration:
    """Makes states of this version of those of other ones.

    Raises LoadError: the handler's ``migrate`` cannot be called.

    Args:
        encode: Returns the state of a sequence as it is stored. Raises StateError: it is too large, or none.
        metrics: Those of the model, a `ts.metrics.metrics_cache.MetricsCache`.
    """

    def __init__(
        self, cache: SequenceCache, encode: Callable[[str], object], settings: StoreSettings, metrics: Any
    ) -> None:
        self._cache, self._encode, self._metrics = cache, encode, metrics
        self._version, self._state_version = settings.version, settings.state_version
        #: A migration takes no longer (seconds), so that no other server takes the sequence over meanwhile.
        self._limit = self._left = settings.lease / 2
        self._takes_entries = False
        if cache.migrate is not None:
            self._takes_entries = takes_entries(cache.migrate)

    def begin_batch(self) -> None:
        """Migrate states for another batch: of those of one, each that takes too long halves the time of the others."""
        self._left = self._limit

    def move(self, lease: Lease, whole: bytes | None, log: Sequence[LogEntry], make_room: MakeRoom) -> None:
        """Put the migrated state of a sequence into memory, and note in its lease what the next commit writes.

        Raises whatever decoders or the handler's code raise; StateError: the result is no state; TimeoutError.
        """
        sequence_id, record = lease.sequence_id, lease.record
        began = time.monotonic()
        if whole is not None or log:
            self._cache.put(sequence_id, self._migrated(sequence_id, record.version, whole, log, make_room))
            self._cache.before_commit([sequence_id])
            self._encode(sequence_id)
        lease.migrated_from = record.version
        record.version, record.state_version = self._version, self._state_version
        self._metrics.add_time("MigrationTime", time.monotonic() - began, unit="s", metric_type=MetricTypes.HISTOGRAM)

    def _migrated(
        self, sequence_id: str, version: str, whole: bytes | None, log: Sequence[LogEntry], make_room: MakeRoom
    ) -> Any:
        """Return a migrated state; it is made once more, of all that is stored, if there is room only then."""
        try:
            return self._made(stored_log(self._cache.encoding, sequence_id, whole, log), version)
        except Exception as error:  # it is the handler's code
            if not make_room(error):
                raise
        return self._made(stored_log(self._cache.encoding, sequence_id, whole, log), version)

    def _made(self, stored: StoredLog, version: str) -> Any:
        migrate, rebuild, state = self._cache.migrate, self._cache.rebuild, stored.state
        assert migrate is not None
        try:
            with limited_to(self._left):
                if self._takes_entries:
                    return checked(migrate(state, version, stored.entries))
                if stored.whole is not None:
                    state = checked(migrate(state, version))
                if stored.log:
                    if rebuild is None:
                        raise StateError(f"it was stored as a log, and the handler has no rebuild, nor {_PARAMETERS}")
                    (state,) = check_rebuilt(rebuild([state], [stored.entries]), 1)
        except TimeoutError:
            self._left /= 2
            raise
        return state

    def moved(self, lease: Lease) -> None:
        """Note that a commit has made the sequence one of this version, whose state is stored whole."""
        lease.migrated_from = ""

    def refusal(self, lease: Lease, other: OtherVersion, error: Exception) -> StepRefusal:
        """Say why the sequence stays with its version."""
        sequence_id, version = lease.sequence_id, other.version
        logger.warning(
            "The state of %r cannot be migrated from version %s: it stays there",
            *(sequence_id, version),
            exc_info=(type(error), error, users_traceback(error)),
            extra={"sequence_id": sequence_id},
        )
        text = f"Sequence {sequence_id!r} belongs to version {version} of the model, and its state cannot be migrated"
        text += f" to version {self._version}: {str(error) or type(error).__name__}"
        reason = MOVED if other.is_served else MIGRATION_FAILED
        return StepRefusal(reason, text, needs_state=True, version=version, migration=NOT_MIGRATED)


def checked(state: Any) -> Any:
    """Return what ``migrate`` has returned. Raises StateError: it is no state, which ``rebuild`` would begin anew."""
    if state is None:
        raise StateError("migrate returned None; it returns the state as this version has it")
    return state


def takes_entries(migrate: Callable[..., Any]) -> bool:
    """Whether it has a parameter for a log. Raises LoadError: it cannot be called as migrations are."""
    if inspect.iscoroutinefunction(inspect.unwrap(migrate)):
        raise LoadError("migrate is a coroutine; it is called before a step of its sequence runs: write 'def migrate'")
    try:
        signature = inspect.signature(migrate)
    except (TypeError, ValueError):  # a callable of C code, which does not tell
        return False
    for count in (3, 2):
        try:
            signature.bind(*[None] * count)
        except TypeError:
            continue
        return count == 3
    raise LoadError(f"migrate{signature} cannot be called; it is {_PARAMETERS}")
