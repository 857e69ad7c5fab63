"""Problem details for HTTP APIs (RFC 9457): the server's own words for failures, where no other API prescribes any.

A problem has ``type``, ``title``, ``status`` and ``detail``. ``type`` is ``about:blank`` where the status says all,
else a URN with the cause that ``ts-error-cause`` has, too. ``errors`` lists what does not fit a function's
signature, see `ts.contracts.served_functions.invalid_values`. Answers and streams are as at TorchServe's paths.
"""

import json
import os
from http import HTTPStatus
from typing import Any, ClassVar, Final

from torchserve_py.base.metrics.model_metrics import HANDLER_ERROR
from torchserve_py.endpoints.client_call import HttpCall, TorchServeDialect
from torchserve_py.endpoints.failures import INVALID_REQUEST, Failure, failure_of
from torchserve_py.endpoints.responses import Answer, to_json
from ts.serve_decorator import DEVELOPMENT_VARIABLE

PROBLEM_TYPE: Final = "application/problem+json"
_NO_MORE_THAN_THE_STATUS: Final = "about:blank"
#: What a worker reports of a handler that raised an exception, where users are not to see which.
_RAISED: Final = (503, "Prediction failed", HANDLER_ERROR)
#: What it reports of values that do not fit the signature; a status that the function sets stays as it is.
_UNFIT: Final = (400, "BadRequestException", INVALID_REQUEST)
_WRONG_METHOD: Final = "MethodNotAllowedException"


class ProblemDialect(TorchServeDialect):
    """Words failures as problem details, with the status that HTTP has for them."""

    has_torchserve_words: ClassVar[bool] = False

    def tells_exceptions(self) -> bool:
        return DEVELOPMENT_VARIABLE in os.environ

    def refusal(self, error: Exception) -> Failure:
        failure = failure_of(error)
        if (failure.status, failure.type, failure.cause) == _UNFIT:
            return failure._replace(status=422)
        if (failure.status, failure.message, failure.cause) == _RAISED:  # nothing that a later attempt would help
            return failure._replace(status=500, message="The model's code has raised an exception; its log says which.")
        return failure

    def failure(self, failure: Failure, call: HttpCall | None = None) -> Answer:
        status = HTTPStatus(failure.status) if failure.status in set(HTTPStatus) else None
        message = failure.message
        if not failure.cause and failure.type == _WRONG_METHOD:
            message = f"This path takes {failure.allow}. The page /docs shows how to send a request."
        problem: dict[str, Any] = {
            "type": f"urn:torchserve-py:{failure.cause}" if failure.cause else _NO_MORE_THAN_THE_STATUS,
            "title": "Error" if status is None else status.phrase,
            "status": failure.status,
            "detail": message,
        }
        if failure.cause == INVALID_REQUEST and failure.details:
            problem["errors"] = json.loads(bytes(failure.details))
        headers = (("content-type", PROBLEM_TYPE),)
        return Answer(failure.status, to_json(problem), headers if call is None else self._named(headers, call))
