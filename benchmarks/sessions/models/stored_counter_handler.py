"""The model as a handler of torchserve-py whose states are in a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ts.context import Context

FACTOR, MODULUS = 31, 2**31 - 1


class StoredCounterHandler:
    """Counts the steps of each sequence, with a checksum."""

    def initialize(self, context: Context) -> None:
        """There is nothing to load."""

    def handle(self, data: list[dict[str, Any]], context: Context) -> list[str]:
        """Answer a batch, which has at most one step of each sequence."""
        return [self._step(idx, context) for idx in range(len(data))]

    def _step(self, idx: int, context: Context) -> str:
        number = int(context.body(idx))
        count, checksum = context.state.get(idx, (0, 0))
        state = count + 1, (checksum * FACTOR + number) % MODULUS
        context.state[idx] = state
        return f"{state[0]} {state[1]}"
