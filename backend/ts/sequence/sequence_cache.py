"""`SequenceCache`: a handler's state of each sequence, in bounded memory, optionally backed by a durable store.

    def initialize(self, context):
        self.cache = SequenceCache(context)

    def handle(self, data, context):
        for idx, row in enumerate(data):
            sequence_id = context.get_sequence_id(idx)
            self.cache[sequence_id] = self.cache.get(sequence_id, 0) + int(row["body"])

A mapping from sequence id to state with the interface of ``lru.LRU``: when it holds more states than its capacity, it
evicts the least recently used ones. `model-config.yaml` selects the store (``handler: cache:``, see
docs/durable-sequences.md).

With a store, the worker reads a sequence's state before it calls the handler for a step of the sequence, and writes the
state before it answers the step, even if the handler changed the state in place. The store has every evicted state, and
the sequence's next step reads it. Without a store an evicted state is lost; the sequence's next step is then refused
and never runs with an empty state.

Handlers use a cache as ``context.state`` (`ts.row_states.RowStates`), by the row of the batch. Only a handler that has
classes of its own in its states has to make the cache itself, to name their encoders.
"""

import copy
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping
from typing import Any, Final

from ts.protocol.frames import Buffer
from ts.sequence.encoding import Decoder, Encoder, StateEncoding
from ts.sequence.log_state import LogState
from ts.sequence.state_size import size_of
from ts.sequence.state_tiers import DEVICE, HOST, LOST, STORE, TierContent, Tiers

logger = logging.getLogger(__name__)

#: A handler's method: states as they were stored whole, or None, and the entries since then; returns the states now.
Rebuild = Callable[[list[Any], list[list[Any]]], list[Any]]
#: How many sequences with a lost state the cache remembers, at least: else as many as may be open.
_REMEMBERED_LOSSES: Final = 100_000
#: A state in memory with more bytes is not copied before a step that may change it.
LARGEST_COPY: Final = 1 << 20

_NOTHING: Final = object()
_NO_COPY: Final = object()
_UNTOUCHED: Final = object()
_IMMUTABLE: Final = frozenset((int, float, str, bool, bytes, type(None)))


class SequenceCache(MutableMapping[str, Any]):
    """States by sequence id.

    Raises ValueError: the handler has created a cache before.

    Args:
        context: The handler's context, the argument of ``initialize``. A handler has at most one cache.
        encoders: For each further class in states, a function that turns an instance into plain values and one that
            restores the instance. Needed only with a store, and only for classes other than plain values (None,
            numbers, text, bytes, lists, tuples, sets, dicts, deques), numpy arrays and torch tensors.
    """

    def __init__(self, context: Any, *, encoders: Mapping[type, tuple[Encoder, Decoder]] | None = None) -> None:
        settings = getattr(context, "cache_settings", None) or {}
        if getattr(context, "sequence_cache", None) is not None:
            raise ValueError(
                "a handler has one SequenceCache: keep several things of a sequence in one state, as a dict"
            )
        context.sequence_cache = self
        known = getattr(context, "state_encoders", {}) | dict(encoders or {})
        self.encoding = StateEncoding(known, context.system_properties.get("gpu_id"))
        self._arena = getattr(context, "arena", None)
        #: Makes states of the entries in their logs; None if the handler cannot, and so has no logs.
        self.rebuild: Rebuild | None = getattr(context, "rebuild", None)
        self._takes_entries = self.rebuild is not None
        #: Makes states of those of other versions of the model; None if the handler cannot.
        self.migrate: Callable[..., Any] | None = getattr(context, "migrate", None)
        self._capacity = settings.get("capacity") or default_capacity(getattr(context, "model_yaml_config", None) or {})
        #: Whether a store holds the states that this cache evicts.
        self._stored = settings.get("store", "memory") != "memory"
        #: The bytes that the states in memory may have, those on the device in an arena left out; 0: any number.
        self._budget = int(settings.get("most_memory") or 0)
        self._sizes: dict[str, int] = {}
        self._size = 0
        self.tiers = Tiers()
        self._states: OrderedDict[str, Any] = OrderedDict()  # the least recently used first
        #: Whether the handler has ever set a state.
        self.is_used = False
        self._running: Collection[str] = ()
        #: The sequences whose states are lost: these had to make room for others, or a step that failed may have
        #: changed them in place, and they were too large for a copy.
        self._lost: OrderedDict[str, None] = OrderedDict()
        self._most_losses = max(_REMEMBERED_LOSSES, most_open(getattr(context, "model_yaml_config", None) or {}))
        #: States as they were before the steps that run now, if no store has them.
        self._before: dict[str, Any] = {}
        #: States of sequences that were begun anew, and whether they are lost, until a step of the new ones is applied.
        self._aside: dict[str, tuple[Any, bool]] = {}
        #: What steps have appended to the logs of their sequences, and no store has yet.
        self._entries: dict[str, list[Any]] = {}
        #: The sequences whose state steps have set or dropped, and no store has yet.
        self._replaced: set[str] = set()
        #: Sequences of which the next commit leaves nothing but their states in the store.
        self._rewritten: set[str] = set()
        #: Whether the handler has ever appended to a log.
        self.has_logs = False

    def __repr__(self) -> str:
        return f"SequenceCache({len(self)} of {self._capacity})"

    # The mapping

    def __getitem__(self, sequence_id: str) -> Any:
        if sequence_id in self._running:
            self.copy_before_step(sequence_id)
        state = self._states[sequence_id]
        self._states.move_to_end(sequence_id)
        return state

    def __setitem__(self, sequence_id: str, state: Any) -> None:
        is_running = sequence_id in self._running
        if self._stored:
            if not is_running:
                raise ValueError(
                    f"the state of {sequence_id!r} cannot be set now: with a store beneath the cache a state belongs to"
                    " a sequence, by the id that context.get_sequence_id returns, and changes in the steps of that"
                    " sequence"
                )
            self._replaced.add(sequence_id)
        elif is_running:
            self.copy_before_step(sequence_id)
        self.is_used = True
        self._states[sequence_id] = state
        self._states.move_to_end(sequence_id)
        if not self._stored:
            self._lost.pop(sequence_id, None)
            self._make_room()

    def __delitem__(self, sequence_id: str) -> None:
        if sequence_id in self._running:
            self.copy_before_step(sequence_id)
        del self._states[sequence_id]
        self._forget_size(sequence_id)
        if self._stored:
            self._replaced.add(sequence_id)

    def __contains__(self, sequence_id: object) -> bool:
        return sequence_id in self._states

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[str]:
        return reversed(self._states)

    # As in lru.LRU, these are lists, the most recently used first.

    def keys(self) -> list[str]:  # type: ignore[override]
        """Return the ids whose states are in memory."""
        return list(reversed(self._states))

    def values(self) -> list[Any]:  # type: ignore[override]
        """Return the states in memory."""
        return list(reversed(self._states.values()))

    def items(self) -> list[tuple[str, Any]]:  # type: ignore[override]
        """Return the ids and states in memory."""
        return list(reversed(self._states.items()))

    def peek_first_item(self) -> tuple[str, Any]:
        """Return the most recently used id and state. Raises KeyError: the cache is empty."""
        return self._peek(reversed(self._states))

    def peek_last_item(self) -> tuple[str, Any]:
        """Return the least recently used id and state. Raises KeyError: the cache is empty."""
        return self._peek(iter(self._states))

    def _peek(self, ids: Iterator[str]) -> tuple[str, Any]:
        for sequence_id in ids:
            return sequence_id, self._states[sequence_id]
        raise KeyError("the cache is empty")

    def get_size(self) -> int:
        """Return the capacity: the most states that the cache holds."""
        return self._capacity

    def set_size(self, size: int) -> None:
        """Set the capacity to ``size`` states. Raises ValueError: ``size`` is less than 1."""
        if size < 1:
            raise ValueError(f"the size of a SequenceCache is {size}; it must be at least 1")
        self._capacity = size
        if not self._stored:
            self._make_room()

    def append(self, sequence_id: str, entry: Any) -> None:
        """Append an entry to the log of a sequence that has a running step; see `ts.row_states.RowStates.append`.

        Raises TypeError: the handler has no method ``rebuild``.
        """
        if not (self._takes_entries or self.is_log(sequence_id)):
            raise TypeError(
                "state.append needs a handler with the method rebuild(states, entries), which returns the states that"
                " the steps with these entries have made"
            )
        if sequence_id not in self._running:
            raise ValueError(f"no step of {sequence_id!r} is running, so nothing can be appended to its log")
        self.is_used = True
        self.has_logs = self.has_logs or not self.is_log(sequence_id)
        self._entries.setdefault(sequence_id, []).append(entry)

    # For the worker (`ts.sequences.steps.steps`), not for handlers.

    def look_at(self, sequence_id: str) -> Any:
        """Return a state, None if there is none, that the caller does not change."""
        return self._states.get(sequence_id)

    def is_log(self, sequence_id: str) -> bool:
        """Whether the state has no more than its log."""
        return isinstance(self._states.get(sequence_id), LogState)

    def rewrite(self, sequence_id: str) -> None:
        """Let the next commit drop the log and the kept answers of earlier steps: they hold what is to be gone."""
        if self._stored:
            self._rewritten.add(sequence_id)

    def is_rewritten(self, sequence_id: str) -> bool:
        """Whether the next commit drops what earlier steps have left in the store."""
        return sequence_id in self._rewritten

    def run(self, sequence_ids: Collection[str]) -> None:
        """Set the live collection of sequences with running steps; `__setitem__` reads its current content."""
        self._running = sequence_ids

    def put(self, sequence_id: str, state: Any) -> None:
        """Add a state that was read from the store."""
        self._states[sequence_id] = state
        self.measure(sequence_id)

    def has_room_for(self, state: Any) -> bool:
        """Whether one more state fits without the eviction of another."""
        if len(self._states) >= self._capacity:
            return False
        return not self._budget or self.used_bytes + size_of(state, self._budget) <= self._budget

    def note_lost(self, sequence_id: str) -> None:
        """Note that the state was lost at another worker, which the sequence comes from."""
        self._lose(sequence_id)

    def drop(self, sequence_id: str) -> None:
        """Remove the sequence's state, and forget that the state was lost."""
        self._states.pop(sequence_id, None)
        self._forget_size(sequence_id)
        self._lost.pop(sequence_id, None)
        self._before.pop(sequence_id, None)
        self.forget_changes(sequence_id)

    def set_aside(self, sequence_id: str) -> None:
        """Keep the sequence's state, which `drop` then drops, until `bring_back` or `forget_aside`."""
        self._aside[sequence_id] = self._states.get(sequence_id, _NOTHING), self.is_lost(sequence_id)

    def bring_back(self, sequence_id: str) -> None:
        """Give the sequence the state again that was set aside."""
        state, was_lost = self._aside.pop(sequence_id, (_NOTHING, False))
        if state is not _NOTHING:
            self.put(sequence_id, state)
        if was_lost:
            self._lose(sequence_id)

    def forget_aside(self, sequence_id: str) -> None:
        """Forget the state that was set aside, if there is one."""
        if self._aside:
            self._aside.pop(sequence_id, None)

    def least_recent(self) -> Iterator[Any]:
        """Yield the states in memory, the least recently used first."""
        yield from (state for state, _ in self._aside.values() if state is not _NOTHING)
        yield from self._states.values()

    def before_commit(self, sequence_ids: Iterable[str]) -> None:
        """Copy what is on a device and about to be stored to the host, for all sequences of a batch at once."""
        if self._arena is not None:
            self._arena.before_commit(self._states.get(each) for each in sequence_ids)

    def encoded(self, sequence_id: str) -> bytes | None:
        """Return a state as a store has it, None if there is none. Raises StateError, or what an encoder raises."""
        state = self._states.get(sequence_id, _NOTHING)
        return None if state is _NOTHING else self.encoding.encode(state)

    def encoded_in_parts(self, sequence_id: str) -> list[Buffer]:
        """Return a state as `StateEncoding.encode_in_parts` does, empty if there is none. Raises as `encoded` does."""
        state = self._states.get(sequence_id, _NOTHING)
        return [] if state is _NOTHING else self.encoding.encode_in_parts(state)

    def entries(self, sequence_id: str) -> list[Any]:
        """Return what steps have appended to the sequence's log since the last commit."""
        return self._entries.get(sequence_id, [])

    def is_replaced(self, sequence_id: str) -> bool:
        """Whether a step has set or dropped the sequence's state since the last commit."""
        return sequence_id in self._replaced

    def committed(self, sequence_id: str) -> None:
        """Note that a commit has what steps have changed."""
        if self._budget:
            self.measure(sequence_id)
        if self._entries or self._replaced or self._rewritten:
            self.forget_changes(sequence_id)

    def forget_changes(self, sequence_id: str) -> None:
        """Forget what steps have changed: it is part of a commit, or was undone."""
        self._entries.pop(sequence_id, None)
        self._replaced.discard(sequence_id)
        self._rewritten.discard(sequence_id)

    def is_lost(self, sequence_id: str) -> bool:
        """Return whether the sequence's state is lost."""
        return sequence_id in self._lost

    def copy_before_step(self, sequence_id: str) -> None:
        """Make sure that `undo` can restore the present state, which a running step may change in place.

        A store has it anyway; a state of more than `LARGEST_COPY` bytes is not copied.
        """
        if self._stored or sequence_id in self._before:
            return
        state = self._states.get(sequence_id, _NOTHING)
        if state is not _NOTHING and type(state) not in _IMMUTABLE and not isinstance(state, LogState):
            state = self._copy(sequence_id, state)
        self._before[sequence_id] = state

    def keep(self, sequence_ids: Collection[str]) -> None:
        """Let the changes of steps of these sequences count, which no store has."""
        if not (self._before or self._entries or self._budget):
            return  # the handler keeps its states elsewhere
        if self._budget:
            for sequence_id in sequence_ids:
                self.measure(sequence_id)
        for sequence_id in sequence_ids:
            self._entries.pop(sequence_id, None)
            if self._before.pop(sequence_id, _UNTOUCHED) is not _UNTOUCHED and sequence_id in self._running:
                self.copy_before_step(sequence_id)  # another of its steps still runs
        if self._budget:
            self._make_room()

    def undo(self, sequence_id: str) -> bool:
        """Restore the state from before a step that failed; return whether the step has looked at the state."""
        before = self._before.pop(sequence_id, _UNTOUCHED)
        if before is _UNTOUCHED:
            return False
        self._states.pop(sequence_id, None)
        self._forget_size(sequence_id)
        self.forget_changes(sequence_id)
        if before is _NO_COPY:
            self._lose(sequence_id)
        elif before is not _NOTHING:
            self._states[sequence_id] = before
            self.measure(sequence_id)
        return True

    def _copy(self, sequence_id: str, state: Any) -> Any:
        if size_of(state, LARGEST_COPY) > LARGEST_COPY:
            return _NO_COPY
        try:
            return copy.deepcopy(state)
        except Exception as error:  # it is the handler's code, if the state has a class of its own
            about = {"sequence_id": sequence_id}
            logger.warning("The state of %r cannot be copied: %s", sequence_id, error, extra=about)
            return _NO_COPY

    def shrink(self, keep: Collection[str]) -> list[str]:
        """Evict the least recently used states that are too many, except ``keep``; return their sequence ids."""
        return self._evicted(self._surplus(keep))

    def evict_idle(self, keep: Collection[str]) -> list[str]:
        """Evict all states that no running step uses, except ``keep``; return their sequence ids."""
        return self._evicted([each for each in self._states if each not in keep and each not in self._running])

    def _evicted(self, sequence_ids: list[str]) -> list[str]:
        for sequence_id in sequence_ids:
            del self._states[sequence_id]
            self._forget_size(sequence_id)
            self.tiers.moved(HOST, STORE)
        return sequence_ids

    def _make_room(self) -> None:
        # The states of the batch that runs stay, even if it has more rows than there is room for.
        for sequence_id in self._surplus(self._running):
            del self._states[sequence_id]
            self._forget_size(sequence_id)
            self._lose(sequence_id)
            self.tiers.moved(HOST, LOST)

    def _surplus(self, keep: Collection[str]) -> list[str]:
        """Return the least recently used states beyond the capacity or the budget, except ``keep``."""
        surplus: list[str] = []
        count = len(self._states) - self._capacity
        if count <= 0 and not self._budget:
            return surplus
        size = self.used_bytes - self._budget if self._budget else 0
        for sequence_id, state in self._states.items():
            if count <= 0 and size <= 0:
                break
            if sequence_id not in keep:
                surplus.append(sequence_id)
                count -= 1
                size -= self._sizes.get(sequence_id, 0)
                size -= 0 if self._arena is None else self._arena.host_bytes_of(state)
        return surplus

    @property
    def has_arena(self) -> bool:
        """Whether states may be on the device, in an arena."""
        return self._arena is not None

    # Bytes

    @property
    def has_budget(self) -> bool:
        """Whether the bytes of the states in the host's memory are limited."""
        return self._budget > 0

    @property
    def used_bytes(self) -> int:
        """The bytes of the states in the host's memory; without a budget only of those in an arena."""
        return self._size + (0 if self._arena is None else self._arena.host_bytes)

    def measure(self, sequence_id: str) -> None:
        """Measure a state that has changed, if there is a budget."""
        if self._budget:
            size = self._measured(sequence_id)
            self._forget_size(sequence_id)
            if sequence_id in self._states:
                self._sizes[sequence_id] = size
                self._size += size

    def _measured(self, sequence_id: str) -> int:
        """Return how many bytes a state has; of a log, only what steps have appended is measured, not all again."""
        entries, before = self._entries.get(sequence_id), self._sizes.get(sequence_id)
        if entries and before is not None and self.is_log(sequence_id) and not self.is_rewritten(sequence_id):
            return before + size_of(entries, self._budget)
        return size_of(self._states.get(sequence_id), self._budget)

    def _forget_size(self, sequence_id: str) -> None:
        self._size -= self._sizes.pop(sequence_id, 0)

    def excess(self, sequence_id: str) -> str | None:
        """Return why a state cannot be kept in memory at all, None if it can."""
        if not self._budget or self._measured(sequence_id) <= self._budget:
            return None
        return f"Its state has more bytes than all states may have: handler.cache.maxMemorySize is {self._budget}."

    def report(self, context: Any) -> None:
        """Add where the states are to the metrics of the model, now and then; if there is a budget or an arena."""
        if not (self._budget or self._arena is not None) or not self.tiers.is_due:
            return
        on_device = 0 if self._arena is None else self._arena.sequences_on_device(self._states.values())
        held = {HOST: TierContent(len(self._states) - on_device, self.used_bytes)}
        if self._arena is not None:
            held[DEVICE] = TierContent(on_device, self._arena.used_bytes)
        self.tiers.report(context.metrics, held)

    def _lose(self, sequence_id: str) -> None:
        self._lost[sequence_id] = None
        if len(self._lost) > self._most_losses:
            self._lost.popitem(last=False)


def most_open(config: Mapping[str, Any]) -> int:
    """Return how many sequences the model may have at a time."""
    return int(config.get("maxNumSequence") or 1)


def default_capacity(config: Mapping[str, Any]) -> int:
    """Return the capacity from the model's configuration; by default as many states as the model may have sequences."""
    cache = ((config.get("handler") or {}) if isinstance(config.get("handler"), Mapping) else {}).get("cache") or {}
    if isinstance(cache, Mapping) and cache.get("capacity"):
        return int(cache["capacity"])
    rows = int(config.get("maxWorkers") or 1) * int(config.get("batchSize") or 1)
    return max(most_open(config), rows)
