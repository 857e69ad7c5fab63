"""SageMaker's stateful sessions, at the paths that SageMaker calls: a session is a sequence of the model.

The header ``X-Amzn-SageMaker-Session-Id`` names a session, or asks for one with ``NEW_SESSION``. The answer has the id
of a new session and when it expires, or that a session is closed. The bodies ``{"requestType": "NEW_SESSION"}`` and
``{"requestType": "CLOSE"}`` are answered by the server, as by Amazon's ``model-hosting-container-standards``; all other
bodies go to the handler.
"""

import json
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

from torchserve_py.core.jobs.parts import Part
from torchserve_py.core.serving.serving import ServedModel
from torchserve_py.endpoints.client_call import HttpCall, TorchServeDialect
from torchserve_py.endpoints.content_encodings import decompressed
from torchserve_py.endpoints.failures import EndpointError, bad_request
from torchserve_py.endpoints.predictions import RequestSession
from torchserve_py.endpoints.responses import Answer
from torchserve_py.endpoints.routing import EndpointContext
from torchserve_py.endpoints.sequences import NEW_SESSION, SESSION_ID, SequenceHeaders, check_headers_once, claim_of
from torchserve_py.net.http1.errors import BodyTooLarge
from torchserve_py.net.http1.request import Request
from torchserve_py.net.running_time import running_time
from ts.jobs.charsets import in_utf8
from ts.jobs.errors import RowFailure
from ts.protocol.messages import SAGEMAKER_CLOSE

_NEW_ID: Final = "X-Amzn-SageMaker-New-Session-Id"
_CLOSED_ID: Final = "X-Amzn-SageMaker-Closed-Session-Id"
#: A body with more bytes, whatever its charset and encoding, is no request for a session.
_LONGEST_REQUEST: Final = 400
#: Sessions without a request that are remembered; the oldest are forgotten first.
_MOST_UNUSED: Final = 10_000


class _SessionDialect(TorchServeDialect):
    """Answers as TorchServe does, and says which session was opened or closed.

    ``expires`` is None if the request opens no session; ``begun`` is called when the session has got an answer.
    """

    def __init__(self, headers: SequenceHeaders, expires: str | None, begun: Callable[[], object]) -> None:
        super().__init__(headers.id_name)
        self._expires = expires
        self._begun = begun

    def answer(self, call: HttpCall, part: Part) -> Answer:
        return self._telling(call, part, super().answer(call, part))

    def opening(self, call: HttpCall, first: Part) -> Answer:
        return self._telling(call, first, super().opening(call, first))

    def _telling(self, call: HttpCall, part: Part, answer: Answer) -> Answer:
        """Add the headers about the session, except those that the handler has set itself."""
        self._begun()
        headers = tuple(answer.headers)
        sequence = call.sequence
        assert sequence is not None, "the request belongs to a session"
        told = {} if self._expires is None else {_NEW_ID: f"{sequence.id}; Expires={self._expires}"}
        news = part.news
        is_last = sequence.ends and (news is None or not news.last)
        if is_last or (news is not None and sequence.id in news.ended):
            told[_CLOSED_ID] = sequence.id
        said = {name.lower() for name, _ in headers}
        added = [(name, value) for name, value in told.items() if name.lower() not in said]
        return answer._replace(headers=(*headers, *added))


class _CloseDialect(TorchServeDialect):
    """Answers a step that closes a session."""

    def answer(self, call: HttpCall, part: Part) -> Answer:
        assert call.sequence is not None, "the request belongs to a session"
        return _closed(call.sequence.id)


class SageMakerSessions:
    """Opens, finds and closes the sessions of models that keep sequences."""

    def __init__(self, context: EndpointContext) -> None:
        self._context = context
        self._serving = context.serving
        self._headers = SequenceHeaders(context.settings)
        self._closing = _CloseDialect(self._headers.id_name)
        #: When the sessions expire that were opened and have had no request yet, the earliest opened one first.
        self._unused: dict[tuple[int, str], float] = {}

    def answer(self, request: Request, model: ServedModel, body: bytes) -> Answer | HttpCall | None:
        """Answer a request that is only about a session, and return None for any other.

        Raises EndpointError: the session to close is not open.
        """
        asked = _asked(body, request.headers.get("Content-Type"))
        if asked == {"requestType": NEW_SESSION}:
            session_id, expires = str(uuid.uuid4()), _expiry(model)
            self._unused[model.id, session_id] = running_time().now() + _lifetime(model)
            if len(self._unused) > _MOST_UNUSED:
                del self._unused[next(iter(self._unused))]
            return _said(f"Session {session_id} created", _NEW_ID, f"{session_id}; Expires={expires}")
        if asked == {"requestType": "CLOSE"}:
            return self._close(request, model, body)
        return None

    def of(self, request: Request, model: ServedModel) -> RequestSession | None:
        """Return the session that a request names or opens, None if it does neither.

        Raises EndpointError: the session is not open.
        """
        sent = request.headers
        session_id = sent.get(SESSION_ID)
        if not session_id:
            return None
        check_headers_once(sent, (SESSION_ID, *self._headers.more_names))
        expires = start = None
        if session_id == NEW_SESSION:
            session_id, expires, start = str(uuid.uuid4()), _expiry(model), True
        elif self._unused.get((model.id, session_id), 0.0) > running_time().now():
            # Not the second of several requests that come before the first is answered.
            start = None if self._serving.knows_sequence(model, session_id) else True
        else:
            self._check_open(model, session_id)
        sequence = self._headers.of_values(session_id, start, sent.get(self._headers.end_name), claim_of(sent))
        begun = partial(self._unused.pop, (model.id, session_id), None)
        return RequestSession(sequence, _SessionDialect(self._headers, expires, begun))

    def _close(self, request: Request, model: ServedModel, body: bytes) -> Answer | HttpCall:
        session_id = request.headers.get(SESSION_ID, "")
        if self._unused.pop((model.id, session_id), None) is None:
            self._check_open(model, session_id)
            # Another server may have it, and only a step ends what is stored.
            sequence = self._headers.of_values(session_id, None, True)
            call = self._context.call_of(request, self._closing, model, sequence.headers, SAGEMAKER_CLOSE)
            call.sequence = sequence
            return self._context.submit(call, body)
        return _closed(session_id)

    def _check_open(self, model: ServedModel, session_id: str) -> None:
        if not session_id or session_id == NEW_SESSION or not self._serving.knows_sequence(model, session_id):
            raise bad_request(
                f"Header {SESSION_ID}: session not found: {session_id!a}. It was closed or has expired, or was never"
                f" opened; {NEW_SESSION} opens one."
            )


async def short_content(request: Request, body: bytes) -> bytes:
    """Return what is in an encoded body if that may be a request for a session, else nothing.

    Raises NoRoomError: the server lacks memory now.
    """
    if len(body) > _LONGEST_REQUEST:
        return b""
    try:
        return await decompressed(request, body, _LONGEST_REQUEST)
    except (EndpointError, BodyTooLarge):  # a body of the model's own
        return b""


def _asked(body: bytes, content_type: str | None) -> object:
    """Return the JSON of a body that may be only about a session, else None."""
    if len(body) > _LONGEST_REQUEST:
        return None
    try:
        text = in_utf8(body, content_type)
        return json.loads(text) if b"requestType" in text else None
    except (ValueError, RowFailure):  # a body of the model's own
        return None


def _lifetime(model: ServedModel) -> float:
    """Return the seconds until a session that begins now expires if it gets no request."""
    return (model.config.sequence_timeout_ms or model.config.sequence_max_idle_ms) / 1000


def _expiry(model: ServedModel) -> str:
    """Return when a session that begins now expires, as SageMaker reads it."""
    return (datetime.now(UTC) + timedelta(seconds=_lifetime(model))).strftime("%Y-%m-%dT%H:%M:%SZ")


def _said(text: str, name: str, value: str) -> Answer:
    return Answer(200, text.encode(), ((name, value), ("content-type", "text/plain; charset=utf-8")))


def _closed(session_id: str) -> Answer:
    return _said(f"Session {session_id} closed", _CLOSED_ID, session_id)
