"""Makes states of the logs of their sequences, by the handler's ``rebuild``: several in one call, up to a limit.

A call that finds the device full is made once more with room, and one that fails for several sequences is made for each
alone: always with states and entries that are decoded anew, since the one before may have changed them in place. All is
counted in the model's metrics.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ts.jobs.device_loss import device_is_full
from ts.jobs.errors import device_failure
from ts.metrics.metric_type_enum import MetricTypes
from ts.sequence.encoding import StateEncoding
from ts.sequence.sequence_cache import SequenceCache
from ts.sequence.state_error import StateError
from ts.sequences.steps.state_log import LogEntry, since_latest_state

#: Called with what a decoder or ``rebuild`` has raised; returns whether there is room now on a device that was full.
MakeRoom = Callable[[Exception], bool]


class StoredLog(NamedTuple):
    """What a store has of a sequence with a log.

    Attributes:
        state: As it was stored whole; None if it never was.
        entries: What steps have appended since then.
        whole: The state, encoded.
        log: The entries, encoded.
    """

    sequence_id: str
    state: Any
    entries: list[Any]
    whole: bytes | None
    log: Sequence[LogEntry]


def stored_log(encoding: StateEncoding, sequence_id: str, whole: bytes | None, log: Sequence[LogEntry]) -> StoredLog:
    """Decode what a store has of a sequence; raise what a decoder raises."""
    whole, log = since_latest_state(whole, log)
    state = None if whole is None else encoding.decode(whole)
    entries = [entry for each in log for entry in encoding.decode(each.entries)]
    return StoredLog(sequence_id, state, entries, whole, log)


class Rebuilding:
    """Makes states of logs.

    Args:
        metrics: Those of the model, a `ts.metrics.metrics_cache.MetricsCache`.
        most: How many in one call.
    """

    def __init__(self, cache: SequenceCache, metrics: Any, most: int) -> None:
        self._cache = cache
        self._metrics = metrics
        self._most = most

    def states_of(self, logs: Sequence[StoredLog], make_room: MakeRoom) -> Mapping[str, Any]:
        """Return the states, or the error where there is none, by sequence."""
        made: dict[str, Any] = {}
        for first in range(0, len(logs), self._most):
            some = logs[first : first + self._most]
            began = time.monotonic()
            try:
                states: Sequence[Any] = self._rebuilt(some)
            except Exception as error:  # it is the handler's code
                states = self._tried_again(some, error, make_room)
            made.update(zip((each.sequence_id for each in some), states, strict=True))
            self._count(some, time.monotonic() - began)
        return made

    def _count(self, logs: Sequence[StoredLog], seconds: float) -> None:
        metrics = self._metrics
        metrics.add_counter("SequencesRebuilt", len(logs))
        metrics.add_counter("RebuiltEntries", sum(len(each.entries) for each in logs))
        metrics.add_counter("RebuiltBytes", sum(len(step.entries) for each in logs for step in each.log))
        metrics.add_time("RebuildTime", seconds, unit="s", metric_type=MetricTypes.HISTOGRAM)

    def _tried_again(self, logs: Sequence[StoredLog], error: Exception, make_room: MakeRoom) -> Sequence[Any]:
        """Return the states, or errors, of sequences for which a call has failed."""
        if make_room(error):
            try:
                return self._rebuilt_anew(logs)
            except Exception as second:  # it is the handler's code
                error = second
        return [self._alone(each, error) for each in logs] if len(logs) > 1 else [error]

    def _alone(self, log: StoredLog, error: Exception) -> Any:
        """Return the state of one of several sequences that could not be rebuilt together, or an error."""
        if device_failure(error) is not None and not device_is_full(error):
            return error
        try:
            return self._rebuilt_anew([log])[0]
        except Exception as own_error:  # it is the handler's code
            return own_error

    def _rebuilt_anew(self, logs: Sequence[StoredLog]) -> list[Any]:
        encoding = self._cache.encoding
        return self._rebuilt([stored_log(encoding, each.sequence_id, each.whole, each.log) for each in logs])

    def _rebuilt(self, logs: Sequence[StoredLog]) -> list[Any]:
        if self._cache.rebuild is None:
            raise StateError("it was stored as a log, and the handler has no method rebuild(states, entries)")
        return check_rebuilt(
            self._cache.rebuild([each.state for each in logs], [each.entries for each in logs]), len(logs)
        )


def check_rebuilt(states: Any, count: int) -> list[Any]:
    """Return what ``rebuild`` has returned for so many sequences. Raises StateError: these are no states."""
    if not isinstance(states, list) or len(states) != count:
        returned = len(states) if isinstance(states, list) else type(states).__name__
        raise StateError(f"rebuild returned {returned} for {count} sequences; it returns a list of states")
    if any(state is None for state in states):
        raise StateError("rebuild returned None for a sequence; it returns the state that its steps have made")
    return states
