"""Rows that are made ready once their sequences are in memory, some of which need no handler; see `ts.jobs.row.Row`."""

import logging
from collections.abc import Callable, Sequence

from ts.jobs.errors import RowFailure, device_failure
from ts.jobs.row import Row
from ts.protocol.frames import Buffer
from ts.protocol.messages import ResultRow, SequenceNews
from ts.runtime.result_bodies import failed_row

logger = logging.getLogger(__name__)

#: `Steps.tell`.
Tell = Callable[[Row, Sequence[Sequence[str]]], tuple[Sequence[Sequence[str]], SequenceNews | None]]


def prepare(row: Row, make: Callable[[], Buffer | None], tell: Tell) -> ResultRow | None:
    """Let a row prepare itself with its `Row.prepare`; return its answer if the handler is not to see it, or None."""
    try:
        body = make()
        if body is None:
            return None
        _, _, set_headers = row.response_head()
        headers, news = tell(row, set_headers)
        answer = ResultRow(row.job_id, False, 200, "", headers, body, None, news)
    except RowFailure as failure:
        answer = failed_row(row.job_id, failure)
    except Exception as error:
        logger.exception("Request %s cannot be prepared", row.job_id, extra={"request_id": row.job_id})
        answer = failed_row(row.job_id, device_failure(error) or RowFailure(500, "The request cannot be read."))
    row.done = True
    return answer
