"""The credential of a request: what its one key allows, from admission until whatever the request has opened has ended.

A client may write its key into the header ``Authorization`` (gRPC: the metadata of that name) or, as a browser must
for a WebSocket, into ``Sec-WebSocket-Protocol``. Here is the only place that looks for keys, and two that differ are
refused. Admission decides on a `Credential`, which all that follows asks instead of the request: it says again and
again whether the key is still good, and refuses once it is not.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from torchserve_py.endpoints.failures import EndpointError, Failure

if TYPE_CHECKING:
    from torchserve_py.core.jobs.job_observer import Account
    from torchserve_py.net.http1.request import Request

logger = logging.getLogger(__name__)

#: How clients name the key (RFC 9110, 11.1: in any case); the second one is Baseten's and openpi's.
_SCHEMES: Final = ("bearer", "api-key")
AUTHORIZATION: Final = "authorization"
_AUTHORIZATION: Final = AUTHORIZATION.encode()
_SUBPROTOCOL: Final = b"sec-websocket-protocol"
#: What precedes a key in a subprotocol; the second one is that of OpenAI's clients.
_IN_SUBPROTOCOLS: Final = ("bearer.", "openai-insecure-api-key.")
#: Clients send few keys, each with every request: of so many headers it is kept which key they hold (not whether it is
#: good).
_KEPT_KEYS: Final = 256
#: The realm of the challenges.
_REALM: Final = 'Bearer realm="torchserve-py"'


class SentKey(NamedTuple):
    """The key that a client has sent, empty if there is none; ``given``: whether it has sent anything as a key."""

    text: str
    given: bool


NO_KEY: Final = SentKey("", given=False)


def key_of(request: Request) -> SentKey:
    """Return the key of a request over HTTP. Raises EndpointError: it has two that differ."""
    raw = request.headers.raw
    if _SUBPROTOCOL not in raw and len(raw) == len(request.raw_headers):  # no header is repeated
        sent = raw.get(_AUTHORIZATION)
        return NO_KEY if sent is None else _known_key(sent)
    headers = [(name.lower(), _text(value)) for name, value in request.raw_headers]
    return _one_of(
        [value for name, value in headers if name == _AUTHORIZATION],
        [name.strip() for key, value in headers if key == _SUBPROTOCOL for name in value.split(",")],
    )


def key_in_metadata(metadata: Iterable[tuple[str, str | bytes]]) -> SentKey:
    """Return the key in the metadata of a gRPC call. Raises EndpointError: there are two that differ."""
    return _one_of([value for name, value in metadata if name == AUTHORIZATION and isinstance(value, str)])


def without_keys(subprotocols: Iterable[str]) -> list[str]:
    """Return the subprotocols that name no key."""
    return [name for name in subprotocols if not name.startswith(_IN_SUBPROTOCOLS)]


def _one_of(authorizations: Iterable[str], subprotocols: Iterable[str] = ()) -> SentKey:
    # What is no key still differs from one.
    sent = {(key, "" if key else value) for value in authorizations for key in (_key_in(value),)}
    for name in subprotocols:
        sent |= {(name.removeprefix(prefix), "") for prefix in _IN_SUBPROTOCOLS if name.startswith(prefix)}
    if len(sent) > 1:
        challenge = f'{_REALM}, error="invalid_request"'  # RFC 6750, 3.1
        message = "The request has two keys that differ; send one."
        raise EndpointError(
            Failure(400, "UnauthorizedException", message, more_headers=(("WWW-Authenticate", challenge),))
        )
    return SentKey(sent.pop()[0], given=True) if sent else NO_KEY


def _key_in(authorization: str) -> str:
    scheme, _, key = authorization.partition(" ")
    return key.strip(" ") if scheme.lower() in _SCHEMES else ""


@lru_cache(maxsize=_KEPT_KEYS)
def _known_key(authorization: bytes) -> SentKey:
    return SentKey(_key_in(_text(authorization)), given=True)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


def unauthorized(message: str, kind: str = "UnauthorizedException", *, given: bool) -> EndpointError:
    """Return the refusal of a request whose key is missing or, if one was ``given``, wrong (RFC 6750)."""
    challenge = f'{_REALM}, error="invalid_token"' if given else _REALM
    return EndpointError(Failure(401, kind, message, more_headers=(("WWW-Authenticate", challenge),)))


def forbidden(message: str) -> EndpointError:
    """Return the refusal of a request whose key is for something else."""
    challenge = f'{_REALM}, error="insufficient_scope"'
    return EndpointError(Failure(403, "ForbiddenException", message, more_headers=(("WWW-Authenticate", challenge),)))


class Credential(ABC):
    """What a request that was admitted may do. Those of one key for one API are equal."""

    __slots__ = ()

    @abstractmethod
    def check(self, model: str | None = None) -> None:
        """Raises EndpointError: the key is not good any more (401), or not for this model (403)."""

    @abstractmethod
    def account(self, model: str) -> Account | None:
        """Return the account to which a request to a model is charged, if the key has one. Raises as `check` does."""

    @abstractmethod
    def hold(self, model: str | None, end: Callable[[Failure], None]) -> Callable[[], None]:
        """Have ``end`` called once `check` refuses, within a second; the function that is returned forgets it."""


class _NoCredential(Credential):
    """What a request to an open path may do: nothing that needs a key."""

    __slots__ = ()

    def check(self, model: str | None = None) -> None:
        raise unauthorized("This path needs no key, and reaches nothing that needs one.", given=False)

    def account(self, model: str) -> Account | None:
        self.check(model)
        return None

    def hold(self, model: str | None, end: Callable[[Failure], None]) -> Callable[[], None]:
        return lambda: None


NO_CREDENTIAL: Final = _NoCredential()


class HeldCredentials:
    """What is open at a server for as long as its key is good: live sessions, two-way calls, streams."""

    def __init__(self) -> None:
        self._ends: dict[tuple[Credential, str | None], dict[object, Callable[[Failure], None]]] = {}

    def hold(self, credential: Credential, model: str | None, end: Callable[[Failure], None]) -> Callable[[], None]:
        """See `Credential.hold`."""
        held, handle = (credential, model), object()
        self._ends.setdefault(held, {})[handle] = end

        def forget() -> None:
            ends = self._ends.get(held, {})
            if ends.pop(handle, None) is not None and not ends:
                del self._ends[held]

        return forget

    def look(self) -> None:
        """End what has lost its right. How long this takes depends on how many keys are in use, not on what is open."""
        for (credential, model), ends in tuple(self._ends.items()):
            try:
                credential.check(model)
            except EndpointError as error:
                for handle, end in tuple(ends.items()):
                    ends.pop(handle, None)
                    try:
                        end(error.failure)
                    except Exception:  # the others still have to end
                        logger.exception("What a key had opened could not be ended")
                if self._ends.get((credential, model)) is ends and not ends:
                    del self._ends[credential, model]
