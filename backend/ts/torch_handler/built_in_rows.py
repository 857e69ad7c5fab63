"""How built-in handlers answer a batch: each row succeeds or fails by itself.

`answer_rows` calls a handler with all rows, and again without those that turn out to be bad, or that cannot be computed
together with the others. A row that fails is answered through `Context.fail`, so over every protocol and as a step
that does not count.
"""

import contextlib
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Final

from ts.jobs import device_loss
from ts.jobs.errors import BAD_REQUEST, JobsCancelled, PredictionException
from ts.runtime.batch import checked_results, row_error

#: For so long the rows of a batch that failed are tried one by one; the rest then gets the failure of the batch.
_SECONDS_ALONE: Final = 5.0


class BadRowError(PredictionException):
    """Row number ``row`` of a batch cannot be answered; its client gets ``message`` with the HTTP ``status``."""

    def __init__(self, row: int, message: str, status: int = 400) -> None:
        super().__init__(message, status)
        self.row = row
        self.kind = BAD_REQUEST if status == 400 else ""


class RowsApartError(PredictionException):
    """The rows of a batch cannot be computed together; those of each of the ``groups``, by their indexes, can."""

    def __init__(self, message: str, groups: list[list[int]]) -> None:
        super().__init__(message, 503)
        self.groups = groups


def row_value(row: Any) -> Any:
    """Return a row's value: its ``data``, else its ``body``; the row itself where an envelope has unwrapped it."""
    if not isinstance(row, dict):
        return row
    value = row.get("data")
    return row.get("body") if value is None else value


def check_sent(row: int, value: Any) -> None:
    """Raise BadRowError: row number ``row`` has no value, as where a client calls its body a form, but it is none."""
    if value is None:
        raise BadRowError(
            row,
            "The request's body is missing, or null. Of a form, only the field 'data' is read; curl labels a body as a "
            "form unless it has a content type, such as application/json, text/plain or application/octet-stream.",
        )


def check_shapes(tensors: Sequence[Any]) -> None:
    """Raise RowsApartError: not all tensors have the same shape."""
    groups: dict[Hashable, list[int]] = {}
    for index, tensor in enumerate(tensors):
        groups.setdefault(tensor.shape, []).append(index)
    if len(groups) > 1:
        shapes = ", ".join(str(list(tensors[rows[0]].shape)) for rows in groups.values())
        raise RowsApartError(f"Rows of the shapes {shapes} are no batch.", list(groups.values()))


@contextlib.contextmanager
def only_rows(context: Any, rows: Sequence[int]) -> Iterator[None]:
    """Restrict the context to some rows of the batch, in that order, for a call with only these rows."""
    processors, ids, values = context.request_processor, context.request_ids, context.row_values
    context.request_processor = [processors[row] for row in rows]
    context.request_ids = ids and {position: ids[row] for position, row in enumerate(rows)}
    context.row_values = values and [values[row] for row in rows]
    try:
        yield
    finally:
        context.request_processor, context.request_ids, context.row_values = processors, ids, values


def answer_rows(answer: Callable[[Any], list[Any]], data: Any, context: Any, *, one_by_one: bool = False) -> list[Any]:
    """Return one result for each row of a batch, None for those that have failed.

    Args:
        answer: Answers the rows that it is called with, which are those of the context then.
        one_by_one: Whether it takes one row at a time.

    Raises:
        Exception: What ``answer`` raised for the only row; or for others, if the device has failed, or rows cannot run
            again since they have sent a part of their answer or belong to sequences.
    """
    processors = getattr(context, "request_processor", None)
    if len(data) <= 1 or processors is None or len(processors) != len(data):
        return answer(data)
    return _Rows(answer, data, context).answered(one_by_one=one_by_one)


class _Rows:
    """The rows of a batch while they are answered."""

    def __init__(self, answer: Callable[[Any], list[Any]], data: Any, context: Any) -> None:
        self._answer = answer
        self._data = data
        self._context = context
        self._results: list[Any] = [None] * len(data)
        #: What is to be called together, in turn.
        self._groups: list[list[int]] = []
        #: When no more rows are tried one by one; 0 before the first is.
        self._alone_until = 0.0

    def answered(self, *, one_by_one: bool) -> list[Any]:
        rows = range(len(self._data))
        alone = [row for row in rows if one_by_one or self._asks(row, "explain")]
        if self._asks(0, "describe") and 0 not in alone:  # what handlers ask of the first row, they do for all
            alone.append(0)
        together = [row for row in rows if row not in alone]
        self._groups = [group for group in (together, *[[row] for row in alone]) if group]
        while self._groups:
            self._call(self._groups.pop(0))
        return self._results

    def _call(self, rows: list[int]) -> None:
        try:
            with only_rows(self._context, rows):
                answers = self._answer([self._data[row] for row in rows])
            answers = checked_results(answers, len(rows), self._context.model_name)
        except RowsApartError as error:
            if len(error.groups) < 2:
                raise
            self._groups[:0] = [[rows[each] for each in group] for group in error.groups]
        except BadRowError as error:
            row = rows.pop(error.row)
            if rows and self._asks(row, "describe"):  # it has no values
                self._groups.insert(0, [row])
            else:
                self._refuse([row], error)
            if rows:
                self._groups.insert(0, rows)
        except Exception as error:
            self._failed(rows, error)
        else:
            for row, value in zip(rows, answers, strict=True):
                self._results[row] = value

    def _failed(self, rows: list[int], error: Exception) -> None:
        """Try the rows of a call that failed one by one. Raises Exception: the error, if they cannot run again."""
        device_failed = device_loss.memory_ran_out(error) or device_loss.note_loss(error)
        if device_failed or isinstance(error, JobsCancelled) or not self._may_run_again():
            raise error
        now = time.monotonic()
        self._alone_until = self._alone_until or now + _SECONDS_ALONE
        if now > self._alone_until:
            rest, self._groups = [row for group in self._groups for row in group], []
            self._refuse([*rows, *rest], error)
        elif len(rows) == 1:
            self._refuse(rows, error)
        else:
            self._groups[:0] = [[row] for row in rows]

    def _refuse(self, rows: list[int], error: Exception) -> None:
        told = row_error(error)
        for row in rows:
            self._context.request_processor[row].error = told

    def _asks(self, row: int, header: str) -> bool:
        return bool(self._context.request_processor[row].get_request_property(header) == "True")

    def _may_run_again(self) -> bool:
        context = self._context
        return not context.parts_sent and not any(map(context.get_sequence_id, range(len(self._data))))
