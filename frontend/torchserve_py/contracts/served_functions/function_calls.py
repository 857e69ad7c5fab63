"""Calls between the functions of one file: each becomes a request to the model that runs the called function.

The request is one of the caller's client: its key is charged, its trace goes on. Only a model of the same file can be
called, whatever other models are named.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Final

from torchserve_py.base.settings.model_spec import fallback_name
from torchserve_py.core.archive.file_function import FileFunction
from torchserve_py.core.jobs.call import Call
from torchserve_py.core.jobs.function_call import CallModel, CallOutcome, ModelCall
from torchserve_py.core.jobs.parts import JobFailed, Part
from torchserve_py.core.serving.errors import ModelError
from torchserve_py.core.serving.serving import ServedModel, Serving
from torchserve_py.endpoints.failures import Failure, failure_of, failure_of_job
from torchserve_py.endpoints.own_words import in_own_words
from ts.protocol.messages import CALL_DEPTH

#: How many calls lie between a client's request and the last one that it leads to.
_MOST_DEPTH: Final = 16
#: How much of a name that a worker sends is shown.
_SHOWN: Final = 80


def calls_of(serving: Serving, max_size: int) -> Callable[[FileFunction], CallModel]:
    """Return what makes the calls of a function's model: each runs the function that it names in the caller's file."""

    def of_function(caller: FileFunction) -> CallModel:
        return partial(_call, serving, max_size, caller)

    return of_function


async def _call(
    serving: Serving, max_size: int, caller: FileFunction, by: Call, call: ModelCall
) -> AsyncGenerator[CallOutcome]:
    depth = by.depth + 1
    try:
        model = serving.get(fallback_name(call.function))
    except ModelError as error:
        yield _failed(failure_of(error))
        return
    if (refusal := _refusal(model, max_size, caller, call, depth)) is not None:
        yield refusal
        return
    more_headers = ("accept", call.accept), (CALL_DEPTH, str(depth))
    called = by.within(call.body, call.content_type, "call", more_headers)
    try:
        serving.submit(model, called)
    except ModelError as error:
        yield _failed(failure_of(error))
        return
    content_type, more = "", True
    try:
        while more:
            part = await called.next()
            content_type = content_type or _content_type(part)
            outcome = _outcome(part, content_type)
            more = outcome.more
            yield outcome
    except JobFailed as error:
        failure = failure_of_job(error.cause, model.name, None, None, model)
        yield _failed(in_own_words(failure, error.cause, model, called.worker_end))
    finally:
        called.cancel()  # without effect on a job that has ended


def _refusal(
    model: ServedModel, max_size: int, caller: FileFunction, call: ModelCall, depth: int
) -> CallOutcome | None:
    """Return why a call is not made; None if it is."""
    if depth > _MOST_DEPTH:
        return _refused(508, f"a request may lead to {_MOST_DEPTH} calls that lie within each other, and not to more")
    if len(call.body) > max_size:
        return _refused(413, f"the values have {len(call.body)} bytes; a request may have {max_size}")
    if model.function != FileFunction(caller.file, call.function):
        return _refused(404, f"the model {call.function[:_SHOWN]} is not the function of that name in the same file")
    if model.is_stateful:
        return _refused(400, "it has a state, so that other functions cannot call it")
    return None


def _outcome(part: Part, content_type: str) -> CallOutcome:
    if part.error is not None:
        return _refused(part.status, part.error)
    if part.status >= 400:
        return _refused(part.status, bytes(part.body[:200]).decode("utf-8", "replace"))
    return CallOutcome(part.status, content_type, part.body, more=part.more)


def _content_type(part: Part) -> str:
    return next((value for name, value in part.headers if name.lower() == "content-type"), "")


def _failed(failure: Failure) -> CallOutcome:
    return _refused(failure.status, failure.message)


def _refused(status: int, message: str) -> CallOutcome:
    return CallOutcome(status, "", b"", message)
