"""An exception of a model's code as an event of its job's span, where a contract's runtime answers it itself."""

import sys
from contextlib import suppress
from typing import Any


def name_of(error: BaseException) -> str:
    """Return the name of an exception's type as OpenTelemetry wants it, with its module unless it is Python's own."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def note_on(span: Any, error: BaseException) -> None:
    """Note on a span that the code within has raised an exception."""
    from opentelemetry.trace import StatusCode

    span.record_exception(error)
    span.set_attribute("error.type", name_of(error))
    span.set_status(StatusCode.ERROR, type(error).__name__)


def note_error(error: BaseException) -> None:
    """Note an exception on the span of the running job, if it is traced; call this in the job's task."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    if trace is not None:
        with suppress(Exception):  # the text of an exception may be the model's own code, which may raise anything
            note_on(trace.get_current_span(), error)
