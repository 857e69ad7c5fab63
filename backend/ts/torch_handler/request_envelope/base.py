"""The base of request envelopes: code around a handler that unwraps requests and wraps results.

A custom envelope is a module of this package with one subclass of `BaseEnvelope`, as in TorchServe; the built-in ones
are subclasses of `RequestEnvelope`, which lets every request of a batch fail or succeed for itself.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from ts.torch_handler.built_in_rows import only_rows
from ts.utils.util import PredictionException

#: A handler: ``handle(data, context)``.
Handle = Callable[[Any, Any], Any]


class BaseEnvelope(ABC):
    """Calls the handler with the rows that `parse_input` returns, and answers with the results of `format_output`.

    Calls without rows, and those that ask the handler to describe the model, pass through.
    """

    #: Whether it needs the results of all rows at once; handlers that answer step by step, or as coroutines, give none.
    needs_whole_batches = True

    def __init__(self, handle_fn: Handle) -> None:
        self._handle_fn = handle_fn
        self.context: Any = None

    def handle(self, data: Any, context: Any) -> Any:
        """Do the work of the handler."""
        self.context = context
        if not data or context.get_request_header(0, "describe") == "True":
            return self._handle_fn(data, context)
        results = self._handle_fn(self.parse_input(data), context)
        return self.format_output(results) if isinstance(results, list) and results else results

    @abstractmethod
    def parse_input(self, data: list[dict[str, Any]]) -> list[Any]:
        """Return what the handler gets for the rows of a batch."""

    @abstractmethod
    def format_output(self, data: list[Any]) -> list[Any]:
        """Return one answer per row for what the handler returned."""


class RequestEnvelope(BaseEnvelope):
    """An envelope whose requests each hold any number of the handler's rows.

    All requests of a batch go to the handler in one call, and each gets its share of the results. While the handler
    runs, the context is that of its rows. A request that is invalid, or has a row that fails, affects no other.
    """

    def __init__(self, handle_fn: Handle) -> None:
        super().__init__(handle_fn)
        #: For each request of the batch: its number of rows; None if it is refused.
        self._shares: list[int | None] = []

    @abstractmethod
    def read_request(self, body: Any, index: int) -> Sequence[Any]:
        """Return the handler's rows in a request. Raises ValueError: it is invalid; its client gets the message."""

    @abstractmethod
    def write_response(self, results: list[Any], index: int) -> Any:
        """Return the answer to request number ``index``."""

    def handle(self, data: Any, context: Any) -> Any:
        """Do the work of the handler; where no request holds a row for it, without calling it."""
        self.context = context
        if not data or context.get_request_header(0, "describe") == "True":
            return self._handle_fn(data, context)
        rows = self.parse_input(data)
        results: Any = []
        if rows:
            owners = [index for index, share in enumerate(self._shares) for _ in range(share or 0)]
            with only_rows(context, owners):
                results = self._handle_fn(rows, context)
        return self.format_output(results) if isinstance(results, list) else results

    def parse_input(self, data: list[dict[str, Any]]) -> list[Any]:
        """Return the rows of all requests, one after another."""
        rows: list[Any] = []
        self._shares = []
        for index, row in enumerate(data):
            try:
                own = self.read_request(_decoded(row), index)
            except ValueError as error:
                self.context.fail(index, str(error))
                self._shares.append(None)
            else:
                self._shares.append(len(own))
                rows.extend(own)
        return rows

    def format_output(self, data: list[Any]) -> list[Any]:
        """Give each request the results of its rows. Raises PredictionException: there is not one for each row."""
        counts = [share for share in self._shares if share is not None]
        if len(counts) == 1:
            counts = [len(data)]
        if len(data) != sum(counts):
            raise PredictionException("number of batch response mismatched", 503)
        results, shares = iter(data), iter(counts)
        answers: list[Any] = []
        for index, share in enumerate(self._shares):
            own = [next(results) for _ in range(next(shares))] if share is not None else []
            failed = self.context.request_processor[index].error is not None
            answers.append(None if failed else self._written(own, index))
        return answers

    def _written(self, results: list[Any], index: int) -> Any:
        try:
            return self.write_response(results, index)
        except PredictionException as error:
            self.context.fail(index, error.message, error.error_code)
            return None


def body_of(row: dict[str, Any]) -> Any:
    """Return what a row holds: its value ``data``, or else ``body``; None if it has neither."""
    return row["data"] if "data" in row else row.get("body")


def member(body: Any, name: str) -> list[Any]:
    """Return the list ``name`` of a JSON object. Raises ValueError: the body is not an object, or has no such list."""
    if not isinstance(body, dict):
        kind = "missing, or has another Content-Type than JSON's" if body is None else f"of type {type(body).__name__}"
        raise ValueError(f'The request body must be a JSON object with the list "{name}", it is {kind}.')
    if name not in body:
        raise ValueError(f'The request body must hold the list "{name}", it holds {sorted(map(str, body))}.')
    if not isinstance(body[name], list):
        raise ValueError(f'The member "{name}" of the request body must be a list, it is {body[name]!r:.100}.')
    values: list[Any] = body[name]
    return values


def _decoded(row: dict[str, Any]) -> Any:
    """Return a row's body; text and bytes, which the client did not declare as JSON, are read as JSON."""
    body = body_of(row)
    if not isinstance(body, str | bytes | bytearray):
        return body
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"The request body is no JSON: {error}") from error
