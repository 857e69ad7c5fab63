"""A running total per sequence that survives: workers that are killed, restarts of the server, machines that fail.

A request carries a whole number; the response is the total of its sequence so far. ``0`` ends the sequence. The totals
are in ``context.state``; ``handler: cache:`` in model-config.yaml selects the store beneath it. The handler does
nothing else for durability: the server stores the states before the responses leave, and a request sent twice counts
once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ts.context import Context


class DurableHandler:
    """Adds each number to the total of the sequence that it came with."""

    def initialize(self, context: Context) -> None:
        """There is nothing to load."""

    def handle(self, data: list[dict[str, Any]], context: Context) -> list[str]:
        """Answer one batch, which has at most one request of each sequence."""
        return [self._step(idx, context) for idx in range(len(data))]

    def _step(self, idx: int, context: Context) -> str:
        body = context.body(idx)
        try:
            number = int(body.decode() if isinstance(body, bytes | bytearray) else body)
        except (TypeError, ValueError):
            context.fail(idx, "Expected a whole number, such as 5, as the body. Send it with Content-Type: text/plain.")
            return ""
        total: int = context.state.get(idx, 0) + number
        context.state[idx] = total
        if number == 0:
            context.end_sequence(idx)
        return str(total)
