"""The request that closes a stored session of SageMaker's: the last step of a sequence, which no handler sees."""

from collections.abc import Mapping
from typing import Any

from ts.context import Context
from ts.jobs.row import Row, RowReader
from ts.protocol.messages import InferRow


def row_reader(context: Context, declared: Mapping[str, Any], envelope: str | None) -> RowReader:
    """Return what reads such a request, for any handler."""
    return read_closing


def read_closing(wire_row: InferRow) -> Row:
    """Return the row, whose answer is empty."""
    row = Row(wire_row.job_id, {}, wire_row.headers)
    row.prepare = bytes
    return row
