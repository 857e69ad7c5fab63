"""A client of each endpoint: it sends a request, sees parts of the answer, learns of a failure, or leaves."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import grpc
import msgpack
from tests.apis.grpc.conftest import GrpcServing
from tests.apis.grpc.infer_streams import stream
from tests.endpoints.conftest import OpenEndpoints, open_endpoints
from tests.endpoints.fake_serving import FakeModel, FakeServing
from tests.endpoints.fakes import FakeMetrics, RawConnection, make_settings
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from torchserve_py.apis.grpc.grpc_listeners import start_grpc_listeners
from torchserve_py.apis.grpc.protos.inference_pb2 import PredictionsRequest
from torchserve_py.apis.grpc.protos.inference_pb2_grpc import InferenceAPIsServiceStub
from torchserve_py.apis.openai.openai_keys import OpenAIKeys
from torchserve_py.apis.openpi.openpi_keys import OpenpiKeys
from torchserve_py.apis.realtime.realtime_keys import RealtimeKeys
from torchserve_py.base.settings.schemas.plugin_keys import PluginKeys
from torchserve_py.endpoints.routing import EndpointContext
from torchserve_py.ops.keys.generated_keys import GeneratedKeys
from ts.apis.open_inference.protos.infer_pb2 import ModelInferRequest, ModelInferResponse

LIMIT = 60


class Refused(Exception):
    """What a client learns instead of an answer, or of the rest of one."""

    def __init__(self, code: Any, text: str = "") -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text


class Submitted(ABC):
    """A request that a client has sent."""

    @abstractmethod
    async def see(self, text: bytes) -> None:
        """Wait for a part of the answer that has this text. Raises Refused."""

    @abstractmethod
    async def rest(self) -> bytes:
        """Return what comes until the answer is whole. Raises Refused: it never is."""

    @abstractmethod
    async def leave(self) -> None:
        """Hang up."""


class Endpoint(ABC):
    """An endpoint, with a model ``m`` and another one behind it.

    Args:
        name: For the test's id.
        codes: What its clients are told, by what has happened: ``failed``, ``overloaded``, ``expired``, ``too large``,
            ``unknown`` (a model), ``forbidden`` (a wrong token).
        left: The status in the access log of a request whose client left before its answer, and within it.
    """

    codes: Mapping[str, Any] = MappingProxyType({})
    left: tuple[int, int]

    def __init__(self, name: str, codes: dict[str, Any]) -> None:
        self.name = name
        self.codes = {**self.codes, **codes}

    def model(self, name: str) -> FakeModel:
        return FakeModel(name)

    def part(self, text: bytes) -> bytes:
        """Return what a worker answers so that the client sees this text."""
        return text

    @contextlib.asynccontextmanager
    async def open(self, folder: Path, **settings: Any) -> AsyncIterator[FakeModel]:
        """Serve; yield the model."""
        models = [self.model("m"), self.model("other")]
        async with self.served(FakeServing(models), folder, **settings):
            yield models[0]

    @abstractmethod
    def served(self, registry: FakeServing, folder: Path, **settings: Any) -> Any:
        """A context in which the endpoint is open."""

    @abstractmethod
    async def call(self, model: str = "m", *, size: int = 1, token: str | None = None) -> Submitted:
        """Send a request of at least this size (bytes)."""


# HTTP.


class HttpRequest(Submitted):
    """A request on a connection of its own."""

    def __init__(self, connection: RawConnection) -> None:
        self._connection = connection
        self._head: str | None = None

    async def see(self, text: bytes) -> None:
        await self._read_head()
        async with asyncio.timeout(LIMIT):
            await self._connection.reader.readuntil(text)

    async def rest(self) -> bytes:
        head = await self._read_head()
        try:
            rest = await self._connection.rest()
        except ConnectionError as error:
            raise Refused(0) from error
        if "transfer-encoding: chunked" in head and not rest.endswith(b"0\r\n\r\n"):
            raise Refused(0, "it was cut off")
        if b"The worker that ran the request" in rest:
            raise Refused("Worker died")
        return rest

    async def _read_head(self) -> str:
        if self._head is None:
            self._head = await self._connection.head()
            status = int(self._head.split()[1])
            if status >= 400:
                raise Refused(status, self._head + (await self._connection.rest()).decode())
        return self._head

    async def leave(self) -> None:
        await self._connection.close()


class OverHttp(Endpoint):
    """Endpoints at the listener for HTTP."""

    codes = MappingProxyType(
        {"failed": 500, "overloaded": 503, "expired": 408, "too large": 413, "unknown": 404, "forbidden": 400}
    )
    left = (499, 499)

    @contextlib.asynccontextmanager
    async def served(self, registry: FakeServing, folder: Path, **settings: Any) -> AsyncIterator[None]:
        metrics, key_file = FakeMetrics(), folder / "key_file.json"
        endpoints = await open_endpoints(make_settings(folder, **settings), registry, metrics, key_file)
        self.endpoints = OpenEndpoints(endpoints, registry, metrics, key_file)
        try:
            yield
        finally:
            await self.endpoints.client.close()
            async with asyncio.timeout(LIMIT):
                await endpoints.close()


class Posted(OverHttp):
    """An endpoint that takes a POST: its path and its body, with the model's name in braces."""

    def __init__(
        self,
        name: str,
        path: str,
        body: str = "{{}}",
        *,
        part: Callable[[bytes], bytes] = lambda text: text,
        model: Callable[[str], FakeModel] = FakeModel,
        **codes: Any,
    ) -> None:
        super().__init__(name, codes)
        self._path, self._body = path, body
        self.model, self.part = model, part  # type: ignore[method-assign]

    async def call(self, model: str = "m", *, size: int = 1, token: str | None = None) -> Submitted:
        body = self._body.format(model).ljust(size).encode()
        lines = [f"POST {self._path.format(model)} HTTP/1.1", "Host: localhost", "Connection: close"]
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        if token is not None:
            lines.append(f"Authorization: Bearer {token}")
        return HttpRequest(await self.endpoints.raw("\r\n".join([*lines, "", ""]).encode() + body))


def truss(name: str) -> FakeModel:
    model = FakeModel(name)
    model.contract = "truss"
    return model


def openai(name: str) -> FakeModel:
    model = FakeModel(name)
    model.config = replace(model.config, plugin_keys=PluginKeys((OpenAIKeys(openai=True),)))
    return model


def event(text: bytes) -> bytes:
    return b'data: {"text": "%b"}\n\n' % text


def as_json(text: bytes) -> bytes:
    return b'{"text": "%b"}' % text


# WebSockets.


class SocketCall(Submitted):
    """A session with one step."""

    def __init__(self, socket: ClientConnection, code_in: Callable[[Any], Any]) -> None:
        self._socket, self._code_in = socket, code_in

    async def see(self, text: bytes) -> None:
        while text not in await self._message():
            pass

    async def rest(self) -> bytes:
        rest = b""
        while b"END" not in rest:
            rest += await self._message()
        return rest

    async def _message(self) -> bytes:
        try:
            async with asyncio.timeout(LIMIT):
                message = await self._socket.recv()
        except ConnectionClosed as closed:
            assert closed.rcvd is not None
            raise Refused(closed.rcvd.code, closed.rcvd.reason) from closed
        code = self._code_in(message)
        if code is not None:
            raise Refused(code, str(message))
        return message.encode() if isinstance(message, str) else message

    async def leave(self) -> None:
        await self._socket.close()


class OverSocket(OverHttp):
    """An endpoint that opens WebSockets: its path, how a step is sent, and how messages that tell of failures look.

    The codes are those of the messages; those of handshakes are HTTP's, and that of a message too large is RFC 6455's.
    """

    codes = MappingProxyType({**OverHttp.codes, "too large": 1009})
    left = (101, 101)

    def __init__(
        self,
        name: str,
        path: str,
        step: Callable[[int], list[str] | list[bytes]],
        code_in: Callable[[Any], Any],
        *,
        greets: bool = True,
        config: dict[str, Any] | None = None,
        part: Callable[[bytes], bytes] = lambda text: text,
        **codes: Any,
    ) -> None:
        super().__init__(name, codes)
        self.path, self.step, self._code_in = path, step, code_in
        self.greets, self._config = greets, config or {}
        self.part = part  # type: ignore[method-assign]
        self._sockets: list[ClientConnection] = []

    @contextlib.asynccontextmanager
    async def served(self, registry: FakeServing, folder: Path, **settings: Any) -> AsyncIterator[None]:
        async with super().served(registry, folder, **settings):
            yield
            while self._sockets:  # else the server waits for the farewell of clients that do not read any more
                self._sockets.pop().transport.abort()

    def model(self, name: str) -> FakeModel:
        model = FakeModel(name, stateful=True)
        model.loaded_at_startup = True
        model.config = replace(model.config, **self._config)
        return model

    async def call(self, model: str = "m", *, size: int = 1, token: str | None = None) -> Submitted:
        address = self.endpoints.address()
        url = f"ws://{address.host}:{address.port}{self.path.format(model)}"
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        try:
            socket = await connect(url, additional_headers=headers, compression=None, max_size=None, max_queue=1)
        except InvalidStatus as refused:
            body = refused.response.body or b""
            raise Refused(refused.response.status_code, body.decode()) from refused
        self._sockets.append(socket)
        if self.greets:
            await socket.recv()
        for message in self.step(size):
            await socket.send(message.replace("MODEL", model) if isinstance(message, str) else message)
        return SocketCall(socket, self._code_in)


class Session(OverSocket):
    """A WebSocket for one sequence, which ends with it."""


def member(message: Any, *names: str) -> Any:
    """Return a member of a message in JSON; None if it has none."""
    found = json.loads(message) if isinstance(message, str) and message.startswith("{") else {}
    for name in names:
        found = found.get(name) or {}
    return found or None


def spoken(size: int) -> list[str]:
    """Return an item of audio whose samples have two bytes."""
    audio = base64.b64encode(b"xx" * size).decode()
    append = {"type": "input_audio_buffer.append", "audio": audio}
    return [json.dumps(append), json.dumps({"type": "input_audio_buffer.commit"})]


# gRPC.


class GrpcCall(Submitted):
    """A call whose answer is a stream."""

    def __init__(self, call: Any, text_of: Callable[[Any], bytes]) -> None:
        self._call, self._text_of = call, text_of

    async def see(self, text: bytes) -> None:
        while text not in await self._next():
            pass

    async def rest(self) -> bytes:
        rest = b""
        while (message := await self._next()) is not grpc.aio.EOF:
            rest += message
        return rest

    async def _next(self) -> Any:
        try:
            async with asyncio.timeout(LIMIT):
                message = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise Refused(error.code().name, error.details() or "") from error
        return message if message is grpc.aio.EOF else self._text_of(message)

    async def leave(self) -> None:
        self._call.cancel()


class OverGrpc(Endpoint):
    """A service at the listener for gRPC."""

    codes = MappingProxyType(
        {
            "failed": "INTERNAL",
            "overloaded": "UNAVAILABLE",
            "expired": "DEADLINE_EXCEEDED",
            "too large": "RESOURCE_EXHAUSTED",
            "unknown": "NOT_FOUND",
            "forbidden": "PERMISSION_DENIED",
        }
    )
    left = (1, 1)

    @contextlib.asynccontextmanager
    async def served(self, registry: FakeServing, folder: Path, **settings: Any) -> AsyncIterator[None]:
        wants_tokens = not settings.get("disable_token_authorization", True)
        self.tokens = tokens = GeneratedKeys(folder / "key_file.json", 60) if wants_tokens else None
        known = make_settings(folder, grpc_inference_port=0, grpc_management_port=0, **settings)
        context = EndpointContext(known, registry, FakeMetrics(), tokens)  # type: ignore[arg-type]
        self.serving = GrpcServing(await start_grpc_listeners(context), registry)
        try:
            yield
        finally:
            await self.serving.close()

    @staticmethod
    def metadata(token: str | None) -> tuple[tuple[str, str], ...]:
        return () if token is None else (("authorization", f"Bearer {token}"),)


class TorchServeGrpc(OverGrpc):
    """TorchServe's own service."""

    async def call(self, model: str = "m", *, size: int = 1, token: str | None = None) -> Submitted:
        request = PredictionsRequest(model_name=model, input={"data": bytes(size)})
        stub = InferenceAPIsServiceStub(self.serving.inference_channel)
        return GrpcCall(
            stub.StreamPredictions(request, metadata=self.metadata(token)), lambda message: bytes(message.prediction)
        )


class OpenInferenceGrpc(OverGrpc):
    """The Open Inference Protocol's service."""

    def part(self, text: bytes) -> bytes:
        return ModelInferResponse(model_name="m", id=text.decode()).SerializeToString()

    async def call(self, model: str = "m", *, size: int = 1, token: str | None = None) -> Submitted:
        request = ModelInferRequest(model_name=model, id="x" * size)
        for _ in range(100):
            call = stream(self.serving, self.metadata(token), bare=True)
            try:
                await call.write(request)
                await call.done_writing()
            except grpc.aio.AioRpcError as error:
                if "Internal error from Core" in (error.details() or ""):
                    continue  # grpcio's own, if a call ends just as it sends: it then hides the status
            break
        return GrpcCall(call, lambda message: message.id.encode())


ENDPOINTS: list[Endpoint] = [
    Posted("TorchServe", "/predictions/{}"),
    Posted("Open Inference", "/v2/models/{}/infer_stream", part=as_json, failed=503, forbidden=401),
    Posted("Truss", "/v1/models/{}:predict", model=truss, forbidden=401),
    Posted("OpenAI", "/v1/completions", '{{"model": "{}", "stream": true}}', part=event, model=openai, forbidden=401),
    Posted("SageMaker", "/invocations?model_name={}"),
    Posted("KServe v1", "/v1/models/{}:predict"),
    Session(
        "live",
        "/sequences/{}",
        lambda size: [json.dumps({"body": "x" * size})],
        lambda message: member(message, "error", "status"),
    ),
    Session(
        "realtime",
        "/v1/realtime?intent=transcription&model={}",
        spoken,
        lambda message: member(message, "error", "code"),
        config={"plugin_keys": PluginKeys((RealtimeKeys(realtime=True),))},
        failed="worker_died",
        forbidden=401,
        overloaded="queue_full",
        expired="client_timeout",
    ),
    OverSocket(
        "Responses",
        "/v1/responses",
        lambda size: [json.dumps({"type": "response.create", "model": "MODEL", "input": "x" * size})],
        lambda message: member(message, "error", "code"),
        greets=False,
        config={"plugin_keys": PluginKeys((OpenAIKeys(openai=True),))},
        part=lambda text: b'event: e\ndata: {"text": "%b"}\n\n' % text,
        failed="worker_died",
        forbidden=401,
        overloaded="queue_full",
        expired="client_timeout",
        unknown="model_not_found",
    ),
    Session(
        "openpi",
        "/openpi/{}",
        lambda size: [b"x" * size],
        lambda message: message.partition(". ")[0] if isinstance(message, str) else None,
        config={"plugin_keys": PluginKeys((OpenpiKeys(openpi={}),))},
        part=lambda text: msgpack.packb({"actions": text}),
        failed="The worker that ran the request has ended; the log of the model may say more.",
        overloaded='Model "m" has 100 requests waiting already (jobQueueSize).',
        expired="The request expired before a worker could run it.",
    ),
    Session(
        "SageMaker's stream",
        "/invocations-bidirectional-stream?model_name={}",
        lambda size: ["x" * size],
        lambda message: member(message, "code"),
        greets=False,
    ),
    TorchServeGrpc("gRPC TorchServe", {"overloaded": "INTERNAL", "unknown": "INTERNAL"}),
    OpenInferenceGrpc("gRPC Open Inference", {"failed": "UNAVAILABLE"}),
]
