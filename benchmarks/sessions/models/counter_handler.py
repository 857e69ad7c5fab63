"""The model as a handler, for TorchServe and torchserve-py: states are in the worker's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ts.context import Context

FACTOR, MODULUS = 31, 2**31 - 1


class CounterHandler:
    """Counts the steps of each sequence, with a checksum."""

    def initialize(self, context: Context) -> None:
        """Start with no sequence."""
        self.states: dict[str, tuple[int, int]] = {}

    def handle(self, data: list[dict[str, Any]], context: Context) -> list[str]:
        """Answer a batch, which has at most one step of each sequence."""
        return [self._step(idx, row, context) for idx, row in enumerate(data)]

    def _step(self, idx: int, row: dict[str, Any], context: Context) -> str:
        sequence = str(context.get_sequence_id(idx))
        number = int(row.get("data", row.get("body")))
        if self._is_set(idx, context.header_key_sequence_start, context):
            self.states.pop(sequence, None)
        count, checksum = self.states.get(sequence, (0, 0))
        state = count + 1, (checksum * FACTOR + number) % MODULUS
        self.states[sequence] = state
        if self._is_set(idx, context.header_key_sequence_end, context):
            del self.states[sequence]
            context.set_response_header(idx, context.header_key_sequence_end, sequence)
        return f"{state[0]} {state[1]}"

    def _is_set(self, idx: int, header: str, context: Context) -> bool:
        return str(context.get_request_header(idx, header)).strip().lower() == "true"
