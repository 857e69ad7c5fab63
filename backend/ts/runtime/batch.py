"""One call of a handler with a batch of rows; ensures that every row is answered exactly once.

A single row that fails (its result cannot be sent, its client left) never affects the other rows of the batch. An
exception from the handler answers all rows that are still open, with TorchServe's statuses and messages.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from ts.connection.frontend_connection import FrontendConnection, FrontendGone
from ts.context import RowError
from ts.jobs import device_loss
from ts.jobs.errors import HandlerFailed, JobsCancelled, RowFailure, device_failure, text_of, too_large, users_traceback
from ts.jobs.row import Row
from ts.protocol.log_records import Ids, no_requests, running
from ts.protocol.messages import STATUS_CANCELLED, InferRow, ResultRow
from ts.protocol.request_names import REQUEST_NAME, usable_name
from ts.runtime.result_bodies import encode_body, error_status, failed_row
from ts.service import PredictionException, Service

logger = logging.getLogger(__name__)

#: Makes a named tuple of its fields: on the hot path, since calling its class takes more than twice as long.
_new: Final = tuple.__new__
#: The types of results that go out as they are.
_BODIES: Final = (bytes, bytearray)
#: The response header that states whether a further part follows.
STREAM_NEXT = "ts_stream_next"


class Batch:
    """The rows of one handler call, which become the current ones of the service's context.

    Args:
        max_response_size: The largest body in bytes that one row may have.
    """

    def __init__(
        self, service: Service, rows: list[Row], connection: FrontendConnection, max_response_size: int
    ) -> None:
        self.rows = rows
        self._service = service
        self._steps = service.steps
        self._connection = connection
        self._cancelled = connection.cancelled
        self._max_response_size = max_response_size
        #: Reads the cancellations that arrive while the handler runs.
        self._look = connection.look
        #: Whether a row whose client has left may fail although the handler has returned: its step is undone then.
        self._can_undo = self._steps is None or self._steps.undoes
        self._answers: list[ResultRow] = []
        #: Whether nobody is answered, since all steps were undone.
        self.is_undone = False
        self._seconds = 0.0
        context = service.context
        context.request_ids = {index: row.job_id for index, row in enumerate(rows)}
        context.request_processor = list(rows)
        context.row_values = [row.data for row in rows]
        if (metrics := context.metrics_in_use) is not None:
            metrics.request_ids = context.request_ids
        context.send_part = self.send_part
        context.parts_sent = False

    def run(self, sent: Sequence[InferRow] = ()) -> list[Any] | None:
        """Call the handler and return its results, one per row; None if it failed and all rows are answered.

        Args:
            sent: What these rows were read from, perhaps among others, if they can be read again: then all may be
                undone instead, to begin again with more room. `is_undone` says so.
        """
        running.set(self._ids)
        started = time.perf_counter()
        try:
            return self.checked(self._service.entry_point([row.data for row in self.rows], self._service.context))
        except (FrontendGone, KeyboardInterrupt):
            raise
        except SystemExit as error:
            logger.error("The handler called sys.exit(%r), which ends this worker.", error.code)
            raise
        except BaseException as error:  # a panic of Rust code, as tokenizers have it, is no Exception
            steps, is_fresh = self._service.steps, not any(row.done or row.streaming for row in self.rows)
            self.is_undone = bool(sent) and is_fresh and steps is not None and steps.undo_for_room(error, sent)
            if not self.is_undone:
                self.fail_all(failure_of(error))
            return None
        finally:
            self._seconds = time.perf_counter() - started
            # The handler must not send a part after its call, and the context must not keep the rows alive.
            self._service.context.send_part = None

    def checked(self, results: Any) -> list[Any]:
        """Return the handler's results. Raises Failure: they are no list, or a list of another length than the rows."""
        return checked_results(results, len(self.rows), self._service.context.model_name)

    def answer(self, row: Row, value: Any, stream_next: str | None) -> None:
        """Answer ``row`` with a result, or with `STATUS_CANCELLED` if it was cancelled; a row that is done is ignored.

        ``stream_next`` is "true" if parts follow, "false" for the last of several, None for a response of one part.
        """
        if row.done:
            return
        more = stream_next == "true"
        try:
            if row.error is not None:
                raise own_failure(row.error)
            if row.job_id in self._cancelled and (more or self._can_undo):
                raise RowFailure(STATUS_CANCELLED, "cancelled")
            encode = row.encode
            if encode is not None:
                body = encode(row, value, more)
            else:
                body = value if type(value) in _BODIES else encode_body(value)
            if len(body) > self._max_response_size:
                raise RowFailure(500, too_large(len(body), self._max_response_size))
            if stream_next is not None and encode is None:
                row.get_response_headers()[STREAM_NEXT] = stream_next
            headers: Sequence[Sequence[str]]
            status, reason, headers = row.response_head()
        except RowFailure as failure:
            self.fail(row, failure)
            return
        except ValueError as error:
            about = {"request_id": row.job_id}
            logger.warning("Cannot send the response of request %s: %s", row.job_id, error, extra=about)
            self.fail(row, RowFailure(500, str(error)))
            return
        except Exception as error:
            # The headers are the handler's objects, whose methods may raise anything; or memory ran out.
            self.fail(row, failure_of(error))
            return
        if row.streaming or more:
            # The head of the response left with the first part: send headers again only if they changed.
            nothing_new = len(headers) <= 1 if row.encode is None else headers == row.sent_headers
            row.sent_headers = headers
            if row.streaming and nothing_new:
                headers = ()
        news = None
        if self._steps is not None:
            headers, news = self._steps.tell(row, headers)
        row.streaming, row.done = more, not more
        self._answers.append(_new(ResultRow, (row.job_id, more, status, reason, headers, body, None, news)))

    def fail(self, row: Row, failure: RowFailure) -> None:
        """Answer ``row`` with an error, unless it is done."""
        if row.done:
            return
        row.done = True
        if row.job_id in self._cancelled:
            failure = RowFailure(STATUS_CANCELLED, "cancelled")
        elif row.encode is not None and isinstance(failure, HandlerFailed):
            failure = RowFailure(500, failure.message)
        self._answers.append(failed_row(row.job_id, failure))

    def _ids(self) -> Ids:
        """Return the request and sequence ids of the open rows, for log records that are written now."""
        name = self._service.context.header_key_sequence_id
        asked = [(row, row.get_request_property) for row in self.rows if not row.done]
        return [(usable_name(header(REQUEST_NAME)) or row.job_id, header(name) or "") for row, header in asked]

    def fail_all(self, failure: RowFailure) -> None:
        for row in self.rows:
            own = row.error
            self.fail(row, failure if own is None else own_failure(own))

    def flush(self, *, meanwhile: bool = False) -> None:
        """Send the collected answers, with the handler's time and metrics.

        If the model has a sequence store, the steps are committed to the store before their answers leave.

        Args:
            meanwhile: Whether a thread may do that while the next batch runs.
        """
        answers, self._answers = self._answers, []
        steps, metrics = self._service.steps, self._service.context.metrics_in_use
        records = metrics.take_records() if metrics is not None and metrics.pending else ()
        if steps is None:
            self._send(records, answers)
        else:
            steps.wait_for_commit()
            # The handler may go on with a body that can change.
            meanwhile = meanwhile and not device_loss.loss.reason and all(type(each.body) is bytes for each in answers)
            send = partial(self._send, records)
            steps.complete_and_send(answers, send, self._seconds, meanwhile=meanwhile)
            if device_loss.loss.reason:
                steps.wait_for_commit()
        if device_loss.loss.reason:
            device_loss.end(self._connection)
        if steps is not None:
            steps.rest()

    def _send(self, metrics: Sequence[list[Any]], answers: list[ResultRow]) -> None:
        if device_loss.loss.reason:
            device_loss.announce(self._connection)
        if len(answers) > 1 and sum([len(answer.body) for answer in answers]) > self._max_response_size:
            # The frontend refuses frames that are much larger than the largest response it allows.
            while len(answers) > 1:
                self._connection.send_results([answers.pop(0)], 0.0)
        if answers or metrics:
            self._connection.send_results(answers, self._seconds, metrics)

    def finish(self, *, meanwhile: bool = False) -> None:
        """Send the last answers of this call, as `flush` does; later log records do not carry these rows' ids."""
        self.flush(meanwhile=meanwhile)
        running.set(no_requests)

    def send_part(
        self, ret: Any, req_id_map: Mapping[int, str], message: str, code: int, kind: str = "", details: Any = None
    ) -> None:
        """Send one part of the response of every row in ``req_id_map``; the handler calls this while it runs.

        A ``code`` other than 200 ends those rows with ``message`` as the error, of this ``kind`` and with
        these ``details``. Raises JobsCancelled: every row of the batch is done, so no client waits for further results.
        """
        self._service.context.parts_sent = True
        self._look()
        some_done = False
        for index in req_id_map:
            row = self.rows[index]
            if code == 200:
                self.answer(row, ret[index], "true")
            else:
                self.fail(row, RowFailure(error_status(code), message, details=details, kind=kind))
            some_done |= row.done
        self.flush()
        if some_done and all(row.done for row in self.rows):
            raise JobsCancelled("no client waits for this batch any longer")


def row_error(error: Exception) -> RowError:
    """Log what a call for one row raised, as `failure_of` does; return the error for that row."""
    failure = failure_of(error)
    return RowError(failure.status, failure.message, isinstance(failure, HandlerFailed))


def own_failure(error: RowError) -> RowFailure:
    """Return the failure with which to answer a row that the handler answers with an error."""
    return HandlerFailed(error.message) if error.is_defect else RowFailure(error.status, error.message)


def checked_results(results: Any, count: int, model_name: str) -> list[Any]:
    """Return a handler's results for so many rows. Raises Failure, and logs why: they are not a list of that length."""
    if not isinstance(results, list):
        logger.warning("model: %s, Invalid return type: %s.", model_name, type(results))
        raise HandlerFailed("Invalid model predict output")
    if len(results) != count:
        text = "model: %s, number of batch response mismatched, expect: %d, got: %d."
        logger.warning(text, model_name, count, len(results))
        raise HandlerFailed("number of batch response mismatched")
    return results


def failure_of(error: BaseException) -> RowFailure:
    """Log what a call raised, without the worker's frames; return the failure with which to answer its rows."""
    if isinstance(error, RowFailure):
        return error
    if isinstance(error, JobsCancelled):
        return RowFailure(STATUS_CANCELLED, "cancelled")
    failure = device_failure(error)
    if failure is not None:
        return failure
    if isinstance(error, PredictionException):
        # A subclass may not have called the constructor that sets these attributes.
        status, text = error_status(getattr(error, "error_code", 500)), text_of(getattr(error, "message", error))
        if status < 500:  # the request is wrong, not the handler
            logger.info("Refused with status %d: %s", status, text)
        else:
            logger.error("Prediction error", exc_info=(type(error), error, users_traceback(error)))
        return RowFailure(status, text, kind=error.kind)
    logger.warning("Invoking custom service failed.", exc_info=(type(error), error, users_traceback(error)))
    return HandlerFailed("Prediction failed")
