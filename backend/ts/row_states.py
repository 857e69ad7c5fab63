"""`context.state`: the state of each row's sequence, by the row's index in the batch."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ts.context import Context


class RowStates(MutableMapping[int, Any]):
    """The states of the sequences that the rows of the running batch belong to.

        def handle(self, data, context):
            totals = []
            for index in range(len(data)):
                total = context.state.get(index, 0) + int(context.body(index))
                context.state[index] = total
                totals.append(total)
            return totals

    A row has no state before a step of its sequence has set one. If a row fails, its sequence has the state again that
    it had before, even if the handler has changed that in place.

    A handler with a method ``rebuild(states, entries)`` may `append` to the log of a sequence: then a step stores what
    is new, not the whole state.

    Every call raises KeyError for an index without a row, and RuntimeError: the row belongs to no sequence.
    """

    __slots__ = ("_context",)

    def __init__(self, context: Context) -> None:
        self._context = context

    def __getitem__(self, index: int) -> Any:
        sequence_id = self._sequence_of(index)
        cache = self._context.sequence_cache
        if sequence_id not in cache:
            raise KeyError(
                f"the sequence of row {index}, {sequence_id!r}, has no state yet: use context.state.get({index}) or"
                f" context.is_start({index})"
            )
        cache.copy_before_step(sequence_id)
        return cache[sequence_id]

    def __setitem__(self, index: int, state: Any) -> None:
        sequence_id, cache = self._sequence_of(index), self._context.sequence_cache
        cache.copy_before_step(sequence_id)
        cache[sequence_id] = state

    def __delitem__(self, index: int) -> None:
        sequence_id = self._sequence_of(index)
        self._context.sequence_cache.copy_before_step(sequence_id)
        del self._context.sequence_cache[sequence_id]

    def append(self, index: int, entry: Any) -> None:
        """Let this step store ``entry`` in the sequence's log, instead of the sequence's whole state.

            def handle(self, data, context):
                for index in range(len(data)):
                    words = context.state.setdefault(index, [])
                    words.append(context.body(index))
                    context.state.append(index, context.body(index))

            def rebuild(self, states, entries):
                return [(state or []) + new for state, new in zip(states, entries)]

        The step sets ``context.state[index]`` as always. When that is needed again and not in memory, the worker calls
        ``rebuild`` with lists that have one item for each sequence: the state as a step has stored it whole, or None,
        and the entries that were appended since then, in order. It returns the states, equal to those that the steps
        had set. A step may append several entries, or none.

        Args:
            entry: Whatever a state may be made of. It must not change before the step is answered.

        Raises TypeError: the handler has no method ``rebuild``.
        """
        sequence_id = self._sequence_of(index)
        self._context.sequence_cache.copy_before_step(sequence_id)
        self._context.sequence_cache.append(sequence_id, entry)

    def __contains__(self, index: object) -> bool:
        return isinstance(index, int) and self._sequence_of(index) in self._context.sequence_cache

    def __iter__(self) -> Iterator[int]:
        return (index for index in range(len(self._context.request_ids or ())) if index in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _sequence_of(self, index: int) -> str:
        context = self._context
        rows = len(context.request_ids or ())
        if not 0 <= index < rows:
            raise KeyError(f"the batch has no row {index}; it has {rows}")
        sequence_id = context.get_sequence_id(index)
        if not sequence_id or context.sequence_cache is None:
            raise RuntimeError(
                f"row {index} belongs to no sequence, so it has no state; model-config.yaml needs"
                " 'sequenceBatching: true'"
            )
        return sequence_id
