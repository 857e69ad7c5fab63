"""Runs one request with a script: chooses what its functions get, and makes the answer of what they return.

An error is answered as by SageMaker's toolkit: the reason phrase is its message, the body its message and traceback.
"""

import importlib
import logging
import traceback
from typing import Any, Final

from ts.context import Context
from ts.contracts.sagemaker.default_functions import answer_type, default_accept, media_type
from ts.contracts.sagemaker.script import Script
from ts.contracts.sagemaker.toolkit import content_types
from ts.contracts.sagemaker.toolkit.errors import BaseInferenceToolkitError, UnsupportedFormatError
from ts.jobs.charsets import decoded
from ts.jobs.errors import HandlerFailed, JobsCancelled, RowFailure, device_failure, text_of, users_traceback, wire_text
from ts.runtime.result_bodies import encode_body

logger = logging.getLogger(__name__)

_LONGEST_PHRASE: Final = 500
_INVALID: Final = "Invalid Request"


class ScriptHandler:
    """A script and its model."""

    def initialize(self, context: Context) -> None:
        """Load the model. Raises LoadError: the script cannot be used; Exception: its own code raised it."""
        folder = context.system_properties["model_dir"]
        #: The module of errors that scripts import: Amazon's own, or this package's.
        self._errors: Any = importlib.import_module("sagemaker_inference.errors")
        self._script = Script(folder)
        self._model = self._script.load(folder, context)

    def handle(self, data: list[dict[str, Any]], context: Context) -> list[Any]:
        """Answer the only row of a batch."""
        try:
            return [self._answer(data[0]["body"], context)]
        except JobsCancelled:
            raise
        except Exception as error:
            failure = device_failure(error)
            if failure is not None:
                raise failure from error
            return [_failed(error, self._status_of(error), context)]

    def _answer(self, body: Any, context: Context) -> Any:
        content_type = context.get_request_header(0, "Content-Type")
        accept = (context.get_request_header(0, "Accept") or "").strip()
        if not accept or accept == content_types.ANY:
            accept = default_accept()
        result = self._script.transform(self._model, _given(body, content_type), content_type, accept, context)
        kind = answer_type(accept)
        if isinstance(result, tuple):
            result, kind = result[0], result[1]
        if not isinstance(kind, str):
            raise TypeError(f"The script answers with the content type {kind!r}; it must be text, such as text/plain.")
        answer = encode_body(result)
        if not context.get_response_content_type(0):
            context.set_response_content_type(0, kind)
        return answer

    def _status_of(self, error: Exception) -> int:
        if isinstance(error, HandlerFailed):
            return 500
        if isinstance(error, RowFailure):
            return error.status
        if isinstance(error, UnsupportedFormatError | self._errors.UnsupportedFormatError):
            return getattr(error, "status_code", 415)
        if isinstance(error, BaseInferenceToolkitError | self._errors.BaseInferenceToolkitError):
            status = getattr(error, "status_code", 500)
            return int(status) if isinstance(status, int) and 400 <= status <= 599 else 500
        return 500


def _given(body: Any, content_type: str | None) -> Any:
    """Return a body as ``input_fn`` gets it: JSON and CSV as text, all others as bytes that can be changed.

    Raises RowFailure: text cannot be decoded by its charset.
    """
    if media_type(content_type or "") not in content_types.UTF8_TYPES:
        return body if isinstance(body, bytearray) else bytearray(body)
    return decoded(body, content_type)


def _failed(error: Exception, status: int, context: Context) -> bytes:
    """Set the status of the answer to a failed request, and return its body."""
    message = wire_text(text_of(getattr(error, "message", None) or error)) or _INVALID
    if isinstance(error, HandlerFailed):
        message = f"The script's result cannot be sent: {message}"
    if status >= 500:
        logger.warning("The script failed.", exc_info=(type(error), error, users_traceback(error)))
    else:
        logger.info("Refused with status %d: %s", status, message)
    phrase = "".join(each if each.isprintable() else " " for each in text_of(getattr(error, "phrase", None) or message))
    context.set_response_status(status, phrase[:_LONGEST_PHRASE].encode("latin-1", "replace").decode("latin-1"), 0)
    trace = "".join(traceback.format_exception(type(error), error, users_traceback(error)))
    return f"{message}\n{wire_text(trace)}".encode("utf-8", "replace")
