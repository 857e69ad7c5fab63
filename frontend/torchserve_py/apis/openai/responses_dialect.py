"""How failures of Responses and Conversations look."""

import json
from typing import Final

from torchserve_py.apis.openai.openai_endpoints import OpenAIDialect
from torchserve_py.base.causes import Cause
from torchserve_py.endpoints.client_call import ClientCall, HttpCall
from torchserve_py.endpoints.failures import Failure
from torchserve_py.endpoints.responses import Answer
from ts.protocol.messages import REQUEST_ID

#: The header by which OpenAI's clients name a request that they may send again.
IDEMPOTENCY: Final = "Idempotency-Key"
#: How many characters of its value a message repeats.
_MOST_SHOWN: Final = 100
#: The field that names the response which a new one continues.
PREVIOUS: Final = "previous_response_id"
#: Causes that say that a sequence is over: for OpenAI's clients what they ask for is not there.
GONE: Final = frozenset({"sequence_unknown", "sequence_ended", "sequence_expired", "sequence_lost", "version_gone"})


class ResponsesDialect(OpenAIDialect):
    """As of all paths of OpenAI's, but that what is over is not found."""

    def ended(self, call: ClientCall, cause: Cause) -> Failure:
        failure = super().ended(call, cause)
        name = call.header(IDEMPOTENCY.lower())
        if cause is not Cause.step_differs or not name or call.header(REQUEST_ID):
            return failure
        return failure._replace(message=f"The {IDEMPOTENCY} {name[:_MOST_SHOWN]!r} was used with another request.")

    def failure(self, failure: Failure, call: HttpCall | None = None) -> Answer:
        if failure.cause in GONE:
            failure = failure._replace(status=404)
        return super().failure(failure, call)


DIALECT: Final = ResponsesDialect()


def no_previous(name: object) -> Failure:
    """Return the failure for a request that continues a response which is not there."""
    return bad_field(f"Previous response with id {name!r} not found.", PREVIOUS, "previous_response_not_found")


def bad_field(message: str, param: str | None, code: str | None = None) -> Failure:
    """Return the failure for a request that is wrong in a field."""
    details = json.dumps({"param": param, "code": code}).encode()
    return Failure(400, "BadRequestException", message, details=details)
