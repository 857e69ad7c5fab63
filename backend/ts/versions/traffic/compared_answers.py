"""A model's own comparison of two answers: that of a live version, and that of its shadow, whose worker compares them.

The server sends both as a request of a protocol of its own, alone in its batch. What the handler would get is compared
instead, by the function that the model names.
"""

import importlib
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ts.context import Context
from ts.jobs.errors import LoadError, RowFailure
from ts.jobs.row import Row, RowReader
from ts.protocol.messages import InferRow, Load
from ts.runtime.torchserve_handler import TorchServeHandler
from ts.service import Service

#: Gets both answers; returns True if they are the same, False, or why they are not.
Compare = Callable[[Any, Any], Any]


class Answers(dict[str, Any]):
    """The answers ``live`` and ``shadow`` to one request: decoded JSON, or bytes that are none."""


def row_reader(context: Context, declared: Mapping[str, Any], envelope: str | None) -> RowReader:
    """Return what reads the two answers, whatever the handler reads."""
    return read_answers


def read_answers(wire_row: InferRow) -> Row:
    """Return the row with the two answers. Raises Failure: it has others."""
    found = Answers((name, _decoded(bytes(value))) for name, _, value in wire_row.body)
    if found.keys() != {"live", "shadow"}:
        raise RowFailure(400, "A comparison is of two answers, live and shadow.")
    return Row(wire_row.job_id, found, wire_row.headers)


def prepare(
    service: Service,
    runtime: TorchServeHandler,
    load: Load,
    named: str,
    wait_for: Callable[[Awaitable[Any]], Any] | None = None,
) -> None:
    """Let the function that is ``named`` as file:function compare answers. Raises LoadError: there is none."""
    compare, handle = _function(named), service.entry_point

    def entry_point(data: Any, context: Context) -> Any:
        if data and type(data[0]) is Answers:
            return [outcome(compare, data[0])]
        return handle(data, context)

    async def asynchronous(data: Any, context: Context) -> Any:
        found = entry_point(data, context)
        return found if isinstance(found, list) else await found

    service.entry_point = entry_point if wait_for is None else asynchronous


def outcome(compare: Compare, answers: Answers) -> dict[str, str]:
    """Return why two answers are not the same, empty if they are."""
    try:
        found = compare(answers["live"], answers["shadow"])
    except Exception as error:  # it is the model's code
        return {"why": f"the comparison failed: {type(error).__name__}: {error}"}
    if isinstance(found, str):
        return {"why": found}
    return {"why": "" if found else "the model's comparison says so"}


def _function(named: str) -> Compare:
    file, _, name = named.partition(":")
    try:
        found = getattr(importlib.import_module(file.removesuffix(".py")), name, None)
    except ImportError as error:
        raise LoadError(f"compareAnswers names {named!r}, which cannot be imported: {error}") from error
    if not callable(found):
        raise LoadError(f"compareAnswers names {named!r}, but {file} has no function {name!r}.")
    compare: Compare = found
    return compare


def _decoded(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return body
