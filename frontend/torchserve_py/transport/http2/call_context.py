"""The part of a gRPC handler's context that needs only the head of the call: metadata, status, peer, deadline."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from grpc import StatusCode
from grpc.aio import ServicerContext

from torchserve_py.transport.http2.request_head import Metadata, RequestHead

_NUMBERS: Final = {code.value[0]: code for code in StatusCode}


class Context(ServicerContext[Any, Any]):
    """The context of a handler, with what grpc.aio's has.

    Args:
        head: The headers of the call.
        peer: The client's address as gRPC writes it.
    """

    def __init__(self, head: RequestHead, peer: str) -> None:
        self._head = head
        self._peer = peer
        self._code: StatusCode | None = None
        self._details = ""
        self._trailing: Metadata = ()
        self._callbacks: list[Callable[[Any], None]] = []
        self._deadline = None if head.timeout is None else time.monotonic() + head.timeout

    def invocation_metadata(self) -> Any:
        """Return the client's metadata."""
        return self._head.metadata

    def set_trailing_metadata(self, trailing_metadata: Any) -> None:
        """Set the metadata for the end of the call."""
        self._trailing = tuple(trailing_metadata)

    def trailing_metadata(self) -> Any:
        """Return the value that was set."""
        return self._trailing

    def set_code(self, code: StatusCode | int) -> None:
        """Set the status that the call ends with."""
        self._code = code if isinstance(code, StatusCode) else _NUMBERS[code]

    def set_details(self, details: str) -> None:
        """Set the description of the status."""
        self._details = details

    def code(self) -> Any:
        """Return the value that was set."""
        return self._code

    def details(self) -> str:
        """Return the value that was set."""
        return self._details

    def peer(self) -> str:
        """Return the client's address."""
        return self._peer

    def peer_identities(self) -> None:
        """Clients do not prove who they are."""

    def peer_identity_key(self) -> None:
        """Clients do not prove who they are."""

    def auth_context(self) -> Mapping[str, Any]:
        """Clients do not prove who they are."""
        return {}

    def set_compression(self, compression: Any) -> None:
        """Responses are never compressed."""

    def disable_next_message_compression(self) -> None:
        """Responses are never compressed."""

    def time_remaining(self) -> Any:
        """Return the seconds until the client's deadline, or None."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call ``callback`` when the handler has ended."""
        self._callbacks.append(callback)
