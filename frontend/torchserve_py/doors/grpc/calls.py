"""What every gRPC call goes through: its token, errors that become statuses, and the access log."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from grpc import StatusCode
from grpc.aio import AbortError, ServicerContext

from torchserve_py.archive.errors import ArchiveError
from torchserve_py.core.errors import ModelError
from torchserve_py.doors.errors import DoorError
from torchserve_py.doors.grpc.refusals import Refusal
from torchserve_py.logs import access_log as access
from torchserve_py.transport.http2.methods import Admit, Denied
from torchserve_py.transport.http2.request_head import Metadata

if TYPE_CHECKING:
    from torchserve_py.doors.token_authorization import TokenAuthorization, TokenType

logger = logging.getLogger(__name__)

Context = ServicerContext[Any, Any]
#: Gets the request (or the iterator of requests) and the call's context; returns the response, or writes it.
Behaviour = Callable[[Any, Context], Awaitable[Any]]

_AUTHORIZATION: Final = "authorization"


class Guard:
    """Lets calls of one service pass.

    Args:
        service: The service's full name.
        refuse: What a client is told about an exception.
        tokens: None while token authorization is off.
        token: The token that opens the service.
        access_log: Whether each call is logged.
    """

    def __init__(
        self,
        service: str,
        refuse: Callable[[Exception], Refusal],
        tokens: TokenAuthorization | None,
        token: TokenType,
        *,
        access_log: bool,
    ) -> None:
        self._service = service
        self._refuse = refuse
        self._tokens = tokens
        self._token = token
        self._access_log = access_log

    def admission(self, method: str) -> Admit | None:
        """What is asked about each call of a method when its head is there; None where every call may pass."""
        tokens = self._tokens
        if tokens is None:
            return None
        name = f"{self._service}/{method}"

        def admit(metadata: Metadata, peer: str) -> Denied | None:
            try:
                tokens.check(self._token, _authorization(metadata))
            except DoorError as error:
                refusal = self._refuse(error)
                if self._access_log:
                    _note(name, peer, refusal.code.value[0], 0.0)
                return Denied(refusal.code, refusal.description, refusal.metadata)
            return None

        return admit

    def around(self, method: str, behaviour: Behaviour) -> Behaviour:
        """What gRPC calls for a method."""
        name = f"{self._service}/{method}"

        async def call(request: Any, context: Context) -> Any:
            try:
                return await behaviour(request, context)
            except AbortError:
                raise
            except Exception as error:
                if not isinstance(error, (DoorError, ArchiveError, ModelError)):
                    logger.error("%s failed.", name, exc_info=error)
                refusal = self._refuse(error)
                await context.abort(refusal.code, refusal.description, refusal.metadata)

        return _logged(name, call) if self._access_log else call


def _authorization(metadata: Metadata) -> str | None:
    for key, value in metadata:
        if key == _AUTHORIZATION:
            return value if isinstance(value, str) else None
    return None


def _logged(name: str, call: Behaviour) -> Behaviour:
    async def logged(request: Any, context: Context) -> Any:
        started = time.monotonic()
        code = StatusCode.OK.value[0]
        try:
            return await call(request, context)
        except AbortError:
            code = _number(context.code())
            raise
        except asyncio.CancelledError:
            code = StatusCode.CANCELLED.value[0]
            raise
        finally:
            _note(name, context.peer(), code, time.monotonic() - started)

    return logged


def _note(name: str, peer: str, code: int, seconds: float) -> None:
    """``/<ip>:<port> "gRPC <full.method/Name> HTTP/2.0" <grpc code> <ms>``."""
    access.note(_client(peer), "gRPC", name, "HTTP/2.0", code, seconds)


def _number(code: Any) -> int:
    number: int = code.value[0] if isinstance(code, StatusCode) else int(code)
    return number


def _client(peer: str) -> str:
    """``ipv4:127.0.0.1:5`` as ``127.0.0.1:5``."""
    return unquote(peer.partition(":")[2])
