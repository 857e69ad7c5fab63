"""How built-in handlers read rows, so that an invalid row does not fail the other rows of its batch."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ts.jobs.errors import BAD_REQUEST, PredictionException


class BadRowError(PredictionException):
    """Row number ``row`` of a batch cannot be answered; its client gets ``message`` with the HTTP ``status``."""

    def __init__(self, row: int, message: str, status: int = 400) -> None:
        super().__init__(message, status)
        self.row = row
        self.kind = BAD_REQUEST if status == 400 else ""


def row_value(row: Any) -> Any:
    """Return a row's value: its ``data``, else its ``body``; the row itself where an envelope has unwrapped it."""
    if not isinstance(row, dict):
        return row
    value = row.get("data")
    return row.get("body") if value is None else value


def check_shape(row: int, tensor: Any, first: Any) -> None:
    """Refuse a row of another shape than the batch's first: with 503, for in another batch it could be answered."""
    if tensor.shape != first.shape:
        shapes = f"{list(tensor.shape)} is not that of the batch, {list(first.shape)}"
        raise BadRowError(row, f"The shape {shapes}.", 503)


def refuse(context: Any, row: int, error: BadRowError) -> dict[str, Any]:
    """Give one row the status of ``error``; return the body of its response."""
    context.request_processor[row].report_status(error.error_code)
    return {"code": error.error_code, "type": error.kind or "InternalServerException", "message": error.message}


@contextlib.contextmanager
def only_rows(context: Any, rows: Sequence[int]) -> Iterator[None]:
    """Restrict the context to some rows of the batch, in that order, for a call with only these rows."""
    processors, ids = context.request_processor, context.request_ids
    context.request_processor = [processors[row] for row in rows]
    context.request_ids = ids and {position: ids[row] for position, row in enumerate(rows)}
    try:
        yield
    finally:
        context.request_processor, context.request_ids = processors, ids


def answer_good_rows(handle: Callable[[Any, Any], Any], data: list[Any], context: Any) -> list[Any]:
    """Return the results of ``handle`` for rows without `BadRowError`. Raises BadRowError: the only row is bad."""
    try:
        answers: list[Any] = handle(data, context)
    except BadRowError as error:
        if len(data) == 1:
            raise
        return _answer_the_others(error, handle, data, context)
    return answers


def _answer_the_others(
    error: BadRowError, handle: Callable[[Any, Any], Any], data: list[Any], context: Any
) -> list[Any]:
    results: list[Any] = [None] * len(data)
    good = list(range(len(data)))
    bad: BadRowError | None = error
    answers: list[Any] = []
    while bad is not None:
        row = good.pop(bad.row)
        results[row] = refuse(context, row, bad)
        bad = None
        if good:
            with only_rows(context, good):
                try:
                    answers = handle([data[index] for index in good], context)
                except BadRowError as next_error:
                    bad = next_error
    for row, answer in zip(good, answers, strict=True):
        results[row] = answer
    return results


def answer_explanations_apart(answer: Callable[[Any], list[Any]], data: Any, context: Any) -> list[Any]:
    """Return the results of ``answer``, which answers all rows as the first asks: separately for explanations."""
    processors = getattr(context, "request_processor", None)
    if processors is None or len(processors) != len(data):
        return answer(data)
    explained = [row for row in range(len(data)) if processors[row].get_request_property("explain") == "True"]
    predicted = [row for row in range(len(data)) if row not in explained]
    if not explained or not predicted:
        return answer(data)
    results: list[Any] = [None] * len(data)
    for rows in (predicted, explained):
        with only_rows(context, rows):
            try:
                answers = answer([data[row] for row in rows])
            except BadRowError as error:
                raise BadRowError(rows[error.row], error.message, error.error_code) from error
        for row, value in zip(rows, answers, strict=True):
            results[row] = value
    return results
