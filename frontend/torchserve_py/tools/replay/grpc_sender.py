"""Sends calls of the Open Inference Protocol over gRPC."""

import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import grpc
from grpc import StatusCode, aio

from torchserve_py.apis.grpc.open_inference_dialect import DIALECT
from torchserve_py.endpoints.failures import CAUSE_HEADER, EndpointError, handler_failure
from torchserve_py.tools.journal.journal_record import JournalRecord
from torchserve_py.tools.replay.replay_requests import ReplayRequest
from torchserve_py.tools.replay.senders import GRPC, GRPC_TLS, USER_AGENT, NoAnswer, NotConnected, SentAnswer

_OPTIONS: Final = (
    ("grpc.primary_user_agent", USER_AGENT),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
)
_FULL: Final = frozenset((StatusCode.RESOURCE_EXHAUSTED, StatusCode.UNAVAILABLE))
_NOT_CONNECTED: Final = "failed to connect"


class GrpcSender:
    """Sends to the port at a URL, which is connected to with the first call."""

    def __init__(self, url: str, timeout: float, key: str | None) -> None:
        self._url = url
        self._timeout = timeout
        self._key = () if key is None else (("authorization", f"Bearer {key}"),)
        self._opened: aio.Channel | None = None

    @property
    def _channel(self) -> aio.Channel:
        if self._opened is None:
            if self._url.startswith(GRPC_TLS):
                authorities = ssl.get_default_verify_paths().cafile  # as over HTTP, and SSL_CERT_FILE may name them
                trusted = None if authorities is None else Path(authorities).read_bytes()
                credentials = grpc.ssl_channel_credentials(trusted)
                self._opened = aio.secure_channel(self._url.removeprefix(GRPC_TLS), credentials, _OPTIONS)
            else:
                self._opened = aio.insecure_channel(self._url.removeprefix(GRPC), _OPTIONS)
        return self._opened

    async def close(self) -> None:
        """Close the connection."""
        if self._opened is not None:
            await self._opened.close()

    def recorded_status(self, record: JournalRecord) -> str:
        """Return the status code that the endpoint gives to the recorded outcome."""
        if not record["failed"]:
            return StatusCode.OK.name
        failure = handler_failure(record["status"] or 500, record["error"] or "")
        return DIALECT.refusal(EndpointError(failure)).code.name

    async def send(self, request: ReplayRequest, sequence_id: str | None) -> SentAnswer:
        """Make a call with one message, and read all of the answer."""
        messages: list[bytes] = []
        try:
            method: Any = self._channel.stream_stream(request.path)
            metadata = (*request.headers.items(), *self._key)
            async for message in method(iter((request.body,)), metadata=metadata, timeout=self._timeout):
                messages.append(message)  # noqa: PERF401 - those before a failure count as well
        except aio.AioRpcError as error:
            return self._failed(error, messages)
        return SentAnswer(StatusCode.OK.name, messages, {})

    def _failed(self, error: aio.AioRpcError, messages: Iterable[bytes]) -> SentAnswer:
        code, told = error.code(), error.details() or ""
        is_of_server = any(name == CAUSE_HEADER for name, _ in error.trailing_metadata())
        if code is StatusCode.UNAVAILABLE and not is_of_server:
            if _NOT_CONNECTED in told:
                raise NotConnected(f"{self._url}: {told}") from error
            raise NoAnswer(told) from error
        if code is StatusCode.DEADLINE_EXCEEDED and not is_of_server:
            raise NoAnswer(f"no answer within {self._timeout:g} s") from error
        return SentAnswer(code.name, list(messages), {}, told, code in _FULL)
