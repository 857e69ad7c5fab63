"""What is checked before a request becomes the WebSocket of a live session, and what its steps have in common."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from torchserve_py.doors import priorities
from torchserve_py.doors.failures import DoorError, Failure, bad_request, failure_of_job
from torchserve_py.doors.live.live_steps import MOST_STEPS, Terms
from torchserve_py.doors.responses import allows_other_origins
from torchserve_py.doors.token_authorization import TokenType
from torchserve_py.jobs.inference_request import InferenceRequest, SequenceRequest
from torchserve_py.scheduling.effects import Cause
from torchserve_py.transport.http1.websocket import WebSocket

if TYPE_CHECKING:
    from torchserve_py.core.serving import ServedModel
    from torchserve_py.doors.routing import DoorContext
    from torchserve_py.transport.http1.request import Request

SUBPROTOCOL: Final = "Sec-WebSocket-Protocol"
_BEARER: Final = "bearer."
#: The beginnings of the handshake's headers that are not passed on with steps.
_OF_HANDSHAKE: Final = (b"connection", b"upgrade", b"sec-websocket-", b"content-length")


def admit(
    context: DoorContext, request: Request, token: TokenType = TokenType.inference, key_prefix: str = _BEARER
) -> list[str]:
    """Check the client's key and its page's origin, and return the subprotocols that it offers.

    Args:
        context: The keys and the settings.
        request: The handshake.
        token: The API whose key the client must have.
        key_prefix: The beginning of the subprotocol in which a browser, which cannot set headers, sends its key.

    Raises:
        DoorError: The key is wrong, or the page is of another origin.
    """
    offered = [name.strip() for name in request.headers.get(SUBPROTOCOL, "").split(",") if name.strip()]
    if context.tokens is not None:
        key = next((name.removeprefix(key_prefix) for name in offered if name.startswith(key_prefix)), None)
        given = request.headers.get("Authorization", None if key is None else f"Bearer {key}")
        context.tokens.check(token, given)
    _check_origin(context, request)
    return [name for name in offered if not name.startswith(key_prefix)]


def _check_origin(context: DoorContext, request: Request) -> None:
    """Refuse pages of other origins, for which browsers do not ask before they open a WebSocket.

    Raises:
        DoorError: The page's origin is not one that `cors_allowed_origin` names.
    """
    origin, settings = request.headers.get("Origin"), context.settings
    if origin is None or ((host := _host_of(origin)) and host == request.headers.get("Host")):
        return
    if not (allows_other_origins(settings) and settings.cors_allowed_origin in ("*", origin)):
        message = f"Pages of {origin!a} may not open sessions; see cors_allowed_origin."
        raise DoorError(Failure(403, "OriginNotAllowedException", message))


def _host_of(origin: str) -> str:
    """Return the host and the port of an origin, empty if it has none."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def socket_of(context: DoorContext, request: Request, model: ServedModel, version: str | None = None) -> WebSocket:
    """Return the WebSocket of a session with a model.

    Raises:
        DoorError: The model keeps no sequences, the server shuts down, or the request is no handshake.
    """
    if not model.is_stateful:
        message = f'Model "{model.name}" keeps no sequences; set sequenceBatching: true in its model-config.yaml.'
        raise bad_request(message)
    if context.is_draining:
        raise DoorError(failure_of_job(Cause.draining, model.name, version))
    socket = WebSocket(request, context.settings.max_request_size, compress=False)
    if not socket.is_possible:
        raise bad_request(f"GET {request.target.partition('?')[0]} is the handshake of a WebSocket (version 13).")
    return socket


def terms_of(
    context: DoorContext,
    request: Request,
    model: ServedModel,
    version: str | None,
    sequence: Callable[[str, bool, bool, int], SequenceRequest],
) -> Terms:
    """Return what the steps of a session have in common.

    Args:
        context: The models and the settings.
        request: The handshake, whose headers the steps have.
        model: The model.
        version: The model's version, if the client named one.
        sequence: Makes a step's sequence, see `Terms`.

    Raises:
        DoorError: The content type or the priority is unusable.
    """
    content_type = request.headers.get("Content-Type") or request.parameter("content_type")
    if content_type and not (content_type.isascii() and content_type.isprintable()):
        raise bad_request(f"Content type: {content_type!a} holds other characters than the printable ones of ASCII.")
    headers = tuple(pair for pair in request.raw_headers if not pair[0].lower().startswith(_OF_HANDSHAKE))
    common = InferenceRequest(
        (*headers, ("url_path", ""), ("explain", "False")),
        b"",
        content_type,
        by_default=version is None,
        priority=priorities.of_request(request),
    )
    return Terms(
        serving=context.serving,
        model=model,
        version=version,
        request=common,
        sequence=sequence,
        end_header=context.settings.ts_header_key_sequence_end.lower(),
        window=min(MOST_STEPS, model.config.max_sequence_job_queue_size),
        max_message_size=context.settings.max_request_size,
        max_idle=model.config.sequence_max_idle_ms / 1000 or math.inf,
        read_limit=context.settings.default_response_timeout,
    )


def first_known(offered: Sequence[str], known: Sequence[str]) -> str:
    """Return the first subprotocol offered that is known, the first of all if the client offers none.

    Raises:
        DoorError: None of the offered forms is known.
    """
    for name in offered or known:
        if name in known:
            return name
    raise bad_request(f"{SUBPROTOCOL}: {', '.join(offered)!a} names none of {', '.join(known)}.")
