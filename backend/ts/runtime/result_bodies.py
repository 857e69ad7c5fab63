"""Encodes the results of a TorchServe handler as response bodies, and errors as result rows."""

import io
import logging
import sys
from collections.abc import Sequence
from typing import Any

from ts.jobs.errors import HandlerFailed, RowFailure, wire_text
from ts.jobs.json_values import json_text
from ts.protocol.frames import Buffer
from ts.protocol.messages import ResultRow

logger = logging.getLogger(__name__)

_BODIES = (bytes, bytearray)
_SCALARS = frozenset((str, int, float, bool, type(None)))


def encode_body(value: Any) -> Buffer:
    """Return one element of a handler's result as the bytes of a response body.

    ``bytes`` and ``bytearray`` go out as they are, ``str`` as UTF-8, a ``torch.Tensor`` as ``torch.save`` writes it,
    any other value as JSON indented by two spaces, see `ts.jobs.json_values`. Raises HandlerFailed: the value cannot be
    encoded.
    """
    if isinstance(value, _BODIES):
        return value
    try:
        if isinstance(value, str):
            return value.encode()
        # A value can be a tensor only if the handler has imported torch; importing it here would be a waste.
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            file = io.BytesIO()
            torch.save(value, file)
            return file.getvalue()
        return _json(value).encode()
    except MemoryError:
        raise
    # The value's conversion to text or bytes may be the handler's own code, which may raise anything.
    except Exception as error:
        logger.warning("Unable to serialize model output.", exc_info=True)
        raise HandlerFailed("Unsupported model output data type.") from error


def error_row(
    job_id: str,
    status: int,
    message: str,
    headers: Sequence[tuple[str, str]] = (),
    details: Buffer = b"",
    kind: str = "",
) -> ResultRow:
    """Return the last row of a job that failed.

    Args:
        details: JSON, for endpoints whose errors have some.
        kind: TorchServe's name of the error, in the place of a reason; empty for that of errors that handlers raise.
    """
    return ResultRow(job_id, False, status, kind, headers, details, message)


def failed_row(job_id: str, failure: RowFailure) -> ResultRow:
    """Return the last row of a job with this failure."""
    details = failure_details(failure)
    return error_row(job_id, failure.status, wire_text(failure.message), details=details, kind=failure.kind)


def failure_details(failure: RowFailure) -> bytes:
    """Return the details of a failure in JSON; nothing if there are none, or JSON cannot say them."""
    if failure.details is None:
        return b""
    try:
        return json_text(failure.details, _detail).encode()
    except (TypeError, ValueError, RecursionError):
        logger.warning("The details of a failure cannot be said in JSON: %.200r", failure.details)
        return b""


def _detail(value: Any) -> Any:
    """Return what stands in details for a value that is not of JSON's types, such as an exception."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _json(value: Any) -> str:
    """Return ``json.dumps(value, indent=2)``, with what `json_text` adds.

    The standard encoder falls back to slow Python code when it has to indent. For flat lists and dicts, which most
    results are, its fast code with other separators gives the same text.
    """
    if type(value) in _SCALARS:
        return json_text(value)
    flat_list = isinstance(value, list)
    if (flat_list or isinstance(value, dict)) and value:
        members = value if flat_list else [*value.values(), *value]
        if all(type(member) in _SCALARS for member in members):
            text = json_text(value, separators=(",\n  ", ": "))
            return f"{text[0]}\n  {text[1:-1]}\n{text[-1]}"
    return json_text(value, indent=2)


def error_status(code: Any) -> int:
    """Return the HTTP status for a handler's error code; 413 becomes 507, as in TorchServe."""
    if code == 413:
        return 507
    if not isinstance(code, int) or not 200 <= code <= 599:
        logger.warning("The handler failed with error code %r, which is no HTTP status: answering 500", code)
        return 500
    return int(code)
