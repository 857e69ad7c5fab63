"""`SequenceCache`: what a handler keeps of each sequence, bounded in memory, with a store beneath it.

    def initialize(self, context):
        self.cache = SequenceCache(context)

    def handle(self, data, context):
        for idx, row in enumerate(data):
            sequence_id = context.get_sequence_id(idx)
            self.cache[sequence_id] = self.cache.get(sequence_id, 0) + int(row["body"])

A mapping from sequence id to state, to be used as ``lru.LRU``: the least recently used states make room when there are
more than its capacity. `model-config.yaml` says what is beneath it (``handler: cache:``, see
docs/durable-sequences.md).

With a store the worker reads a sequence's state before the handler is called for one of its steps, and writes it,
changed in place or not, before the step is answered. A state that makes room is in the store and comes back with the
sequence's next step. Without one it is lost; the sequence's next step is refused then and never sees an empty state.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, MutableMapping
from typing import Any

from ts.sequence.encoding import Decoder, Encoder, StateEncoding

#: How many lost sequences are remembered.
_REMEMBERED_LOSSES = 100_000


class SequenceCache(MutableMapping[str, Any]):
    """States by sequence id.

    Args:
        context: The handler's context, as ``initialize`` gets it. A handler has one cache at most.
        encoders: For each further class that states hold, a function that turns its value into plain values and one
            that makes it again. Needed only with a store, and only for what is not a plain value (None, numbers, text,
            bytes, lists, tuples, sets, dicts, deques), a numpy array or a torch tensor.

    Raises:
        ValueError: The handler has made one before.
    """

    def __init__(self, context: Any, *, encoders: Mapping[type, tuple[Encoder, Decoder]] | None = None) -> None:
        settings = getattr(context, "cache_settings", None) or {}
        if getattr(context, "sequence_cache", None) is not None:
            raise ValueError(
                "a handler has one SequenceCache: keep several things of a sequence in one state, as a dict"
            )
        context.sequence_cache = self
        self.encoding = StateEncoding(encoders, context.system_properties.get("gpu_id"))
        self._capacity = settings.get("capacity") or default_capacity(getattr(context, "model_yaml_config", None) or {})
        #: Whether a store holds what makes room here.
        self._stored = settings.get("store", "memory") != "memory"
        self._states: OrderedDict[str, Any] = OrderedDict()  # the least recently used first
        self._running: Collection[str] = ()
        self._lost: OrderedDict[str, None] = OrderedDict()

    def __repr__(self) -> str:
        return f"SequenceCache({len(self)} of {self._capacity})"

    # The mapping

    def __getitem__(self, sequence_id: str) -> Any:
        state = self._states[sequence_id]
        self._states.move_to_end(sequence_id)
        return state

    def __setitem__(self, sequence_id: str, state: Any) -> None:
        if self._stored and sequence_id not in self._running:
            raise ValueError(
                f"the state of {sequence_id!r} cannot be set now: with a store beneath the cache a state belongs to a"
                " sequence, by the id that context.get_sequence_id returns, and changes in the steps of that sequence"
            )
        self._states[sequence_id] = state
        self._states.move_to_end(sequence_id)
        if not self._stored:
            self._lost.pop(sequence_id, None)
            self._make_room()

    def __delitem__(self, sequence_id: str) -> None:
        del self._states[sequence_id]

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
        """Return the most recently used id and state.

        Raises:
            KeyError: The cache is empty.
        """
        return self._peek(reversed(self._states))

    def peek_last_item(self) -> tuple[str, Any]:
        """Return the least recently used id and state.

        Raises:
            KeyError: The cache is empty.
        """
        return self._peek(iter(self._states))

    def _peek(self, ids: Iterator[str]) -> tuple[str, Any]:
        for sequence_id in ids:
            return sequence_id, self._states[sequence_id]
        raise KeyError("the cache is empty")

    def get_size(self) -> int:
        """Return how many states there is room for."""
        return self._capacity

    def set_size(self, size: int) -> None:
        """Make room for ``size`` states.

        Raises:
            ValueError: It is not at least 1.
        """
        if size < 1:
            raise ValueError(f"the size of a SequenceCache is {size}; it must be at least 1")
        self._capacity = size
        if not self._stored:
            self._make_room()

    # What the worker does, see `ts.sequence.steps`. Handlers have no use for it.

    def run(self, sequence_ids: Collection[str]) -> None:
        """The handler runs steps of the sequences that are in there at the moment."""
        self._running = sequence_ids

    def put(self, sequence_id: str, state: Any) -> None:
        """Take in a state from the store."""
        self._states[sequence_id] = state

    def drop(self, sequence_id: str) -> None:
        """Have no state of the sequence, and no memory of having lost it."""
        self._states.pop(sequence_id, None)
        self._lost.pop(sequence_id, None)

    def peek(self, sequence_id: str, default: Any) -> Any:
        """Return a state without using it."""
        return self._states.get(sequence_id, default)

    def has_lost(self, sequence_id: str) -> bool:
        """Whether the sequence's state was dropped to make room, and nothing holds it."""
        return sequence_id in self._lost

    def shrink(self, keep: Collection[str]) -> list[str]:
        """Drop the least recently used states that are too many, but none of ``keep``; return whose they were."""
        excess = len(self._states) - self._capacity
        if excess <= 0:
            return []
        dropped = [sequence_id for sequence_id in self._states if sequence_id not in keep][:excess]
        for sequence_id in dropped:
            del self._states[sequence_id]
        return dropped

    def _make_room(self) -> None:
        while len(self._states) > self._capacity:
            sequence_id, _ = self._states.popitem(last=False)
            self._lost[sequence_id] = None
            if len(self._lost) > _REMEMBERED_LOSSES:
                self._lost.popitem(last=False)


def default_capacity(config: Mapping[str, Any]) -> int:
    """Return how many states a worker keeps where nobody says: as many as the model may have sequences."""
    cache = ((config.get("handler") or {}) if isinstance(config.get("handler"), Mapping) else {}).get("cache") or {}
    if isinstance(cache, Mapping) and cache.get("capacity"):
        return int(cache["capacity"])
    rows = int(config.get("maxWorkers") or 1) * int(config.get("batchSize") or 1)
    return max(int(config.get("maxNumSequence") or 1), rows)
