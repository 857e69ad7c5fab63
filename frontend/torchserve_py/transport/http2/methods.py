"""The methods of a gRPC server, and its limits."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from grpc import StatusCode

from torchserve_py.transport.http2.grpc_messages import MessageLimit
from torchserve_py.transport.http2.request_head import Metadata

if TYPE_CHECKING:
    from torchserve_py.transport.http2.call import Call

logger = logging.getLogger(__name__)

#: The return value of a handler that answers later, by `Call.follow`, `Call.raised` or `Call.end`.
LATER: Final = object()


class Limits(NamedTuple):
    """Limits per client."""

    #: Calls of a connection, and seconds that a stalled call is kept.
    streams: int
    stall: float = 120.0
    #: The maximum age of a connection, and how long its calls may then continue (seconds; None: no limit).
    age: float | None = None
    grace: float | None = None


class Denied(NamedTuple):
    """The status of a call that is not served."""

    code: StatusCode
    details: str
    metadata: Metadata = ()


def _unexpected(error: Exception) -> Denied:
    logger.error("A handler of gRPC calls has failed.", exc_info=error)
    return Denied(StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}")


class Method(NamedTuple):
    """A method.

    The handler, ``serve``, gets the request and the call. It returns a response (None for no message), `LATER`, or what
    runs in a task: an awaitable that gives a response, or an asynchronous iterator of responses.
    """

    serve: Callable[[Any, Call], Any]
    limit: MessageLimit
    #: Makes a request of the bytes of a message, and bytes of a response; None for handlers of bytes.
    read: Callable[[bytes], Any] | None = None
    write: Callable[[Any], bytes] | None = None
    #: Whether a call has any number of requests; then the handler gets the call, to iterate over, as its request.
    takes_stream: bool = False
    #: Gets the metadata of a call and the client's address as gRPC writes it, before anything else of the call is kept;
    #: returns None to let the call pass.
    admit: Callable[[Metadata, str], Denied | None] | None = None
    #: Returns the status of a call whose handler raises.
    refuse: Callable[[Exception], Denied] = _unexpected
