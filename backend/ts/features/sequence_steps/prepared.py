"""Rows that are made ready once their sequences are in memory, some of which need no handler; see `ts.jobs.row.Row`."""

import logging
from collections.abc import Callable, Sequence

from ts.jobs.errors import Failure, device_failure
from ts.jobs.row import Row
from ts.protocol.messages import ResultRow, SequenceNews
from ts.runtime.result_bodies import failed_row

logger = logging.getLogger(__name__)


def prepare(row: Row, news_of: Callable[[Sequence[Sequence[str]]], SequenceNews | None]) -> ResultRow | None:
    """Let a row prepare itself; return its answer if the handler is not to see it, None otherwise."""
    try:
        body = None if row.prepare is None else row.prepare()
        if body is None:
            return None
        _, _, headers = row.response_head()
        answer = ResultRow(row.job_id, False, 200, "", headers, body, None, news_of(headers))
    except Failure as failure:
        answer = failed_row(row.job_id, failure)
    except Exception as error:
        logger.exception("Request %s cannot be prepared", row.job_id, extra={"request_id": row.job_id})
        answer = failed_row(row.job_id, device_failure(error) or Failure(500, "The request cannot be read."))
    row.done = True
    return answer
