"""KServe's words over HTTP: errors are ``{"error": …}``, answers JSON, and binary CloudEvents are answered as such.

A request is a binary CloudEvent if it has the header ``ce-specversion``.
"""

import os
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import ClassVar, Final

from torchserve_py.core.jobs.parts import Part
from torchserve_py.endpoints.client_call import HttpCall, TorchServeDialect
from torchserve_py.endpoints.failures import INTERNAL, Failure
from torchserve_py.endpoints.responses import JSON_TYPE, Answer, json_answer

_EVENT: Final = "ce-specversion"
#: The variables with which KServe's servers are told of the events that they answer with.
_TYPE_VARIABLE: Final = "CE_TYPE"
_SOURCE_VARIABLE: Final = "CE_SOURCE"


class KServeDialect(TorchServeDialect):
    """Answers as KServe's own servers do; handlers, sequences and streams are TorchServe's."""

    has_torchserve_words: ClassVar[bool] = False

    def failure(self, failure: Failure, call: HttpCall | None = None) -> Answer:
        is_defect = failure.status == 503 and failure.type == INTERNAL  # what TorchServe answers for a failed handler
        answer = super().failure(failure, call)
        body = json_answer({"error": failure.message}).body
        return answer._replace(status=500 if is_defect else failure.status, body=body)

    def answer(self, call: HttpCall, part: Part) -> Answer:
        answer = super().answer(call, part)
        added: list[tuple[str, str]] = []
        if part.body[:1] == b"{" and not any(name.lower() == "content-type" for name, _ in answer.headers):
            added.append(JSON_TYPE)
        if _EVENT in call.request.headers:
            added += event_headers(call.name)
        return answer._replace(headers=(*answer.headers, *added)) if added else answer


def event_headers(model: str) -> Sequence[tuple[str, str]]:
    """Return the headers that make an answer of a model an event."""
    return (
        (_EVENT, "1.0"),
        ("ce-id", str(uuid.uuid4())),
        ("ce-source", os.environ.get(_SOURCE_VARIABLE, f"io.kserve.inference.{model}")),
        ("ce-type", os.environ.get(_TYPE_VARIABLE, "io.kserve.inference.response")),
        ("ce-time", datetime.now(UTC).isoformat()),
    )


#: For refusals of requests that are no calls yet.
KSERVE_DIALECT: Final = KServeDialect()
