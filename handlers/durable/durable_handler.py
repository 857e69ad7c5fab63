"""A running total per sequence that survives: workers that are killed, restarts of the server, machines that fail.

A request carries a whole number; the response is the total of its sequence so far. ``0`` ends the sequence. The totals
are in a `SequenceCache`; ``handler: cache:`` in model-config.yaml selects its store. The handler does nothing else for
durability: the server stores the cache's states before the responses leave, and a request sent twice counts once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ts.sequence import SequenceCache

if TYPE_CHECKING:
    from ts.context import Context


class DurableHandler:
    """Adds each number to the total of the sequence that it came with."""

    def initialize(self, context: Context) -> None:
        """Open the cache that the model's configuration describes."""
        self.totals = SequenceCache(context)

    def handle(self, data: list[dict[str, Any]], context: Context) -> list[str]:
        """Answer one batch, which has at most one request of each sequence."""
        return [self._step(idx, row, context) for idx, row in enumerate(data)]

    def _step(self, idx: int, row: dict[str, Any], context: Context) -> str:
        sequence_id = context.get_sequence_id(idx)
        assert sequence_id is not None, "every request of a model with sequenceBatching has one"
        body = row.get("data", row.get("body"))
        try:
            number = int(body.decode() if isinstance(body, bytes | bytearray) else body)
        except (TypeError, ValueError):
            context.set_response_status(400, "Bad Request", idx)
            return "Expected a whole number, such as 5, as the body. Send it with Content-Type: text/plain."
        total: int = self.totals.get(sequence_id, 0) + number
        self.totals[sequence_id] = total
        if number == 0:
            context.set_response_header(idx, context.header_key_sequence_end, sequence_id)
        return str(total)
