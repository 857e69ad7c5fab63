"""No request reaches beyond the right of its key: every way to send a key, at every path and method of the server.

The paths are those of the route tables and of the gRPC services, so an endpoint that is added is tested, too. What a
form carries, and what a key allows, is written here a second time; so is which paths are open.
"""

import asyncio
import contextlib
import itertools
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from tests.endpoints.conftest import OpenEndpoints, open_endpoints
from tests.endpoints.fake_serving import CONFIG, FakeModel, FakeServing
from tests.endpoints.fakes import FakeMetrics, make_settings
from tests.ops.keys.test_given_keys import write

from torchserve_py.apis.grpc import grpc_listeners
from torchserve_py.apis.grpc.protos import (
    inference_pb2,
    lerobot_pb2,
    management_pb2,
    open_inference_pb2,
    open_inference_repository_pb2,
    open_inference_torchserve_pb2,
)
from torchserve_py.apis.openai.openai_keys import OpenAIKeys
from torchserve_py.apis.openpi.openpi_keys import OpenpiKeys
from torchserve_py.apis.realtime.realtime_keys import RealtimeKeys
from torchserve_py.base.settings.schemas.plugin_keys import PluginKeys
from torchserve_py.endpoints import http_listeners
from torchserve_py.endpoints.http_request import Application
from torchserve_py.endpoints.routing import ANY_PATH, EndpointContext, Route
from torchserve_py.endpoints.token_authorization import TokenType
from torchserve_py.net.http2.grpc_server import GrpcServer
from torchserve_py.ops.keys.given_keys import GivenKeys
from torchserve_py.ops.keys.keys_settings import KeysSettings

#: What anybody may ask. A path that is added here shows nothing of models or requests, and changes nothing.
OPEN = {
    *("/", "/api-description", "/live", "/ready", "/health", "/healthz", "/metrics", "/metrics/{rest:path}"),
    *("/console", "/console/{file:path}", "/docs", "/docs/{file:path}"),
    "/token",  # asks for a key of its own
}
OPEN_SERVICES = ("grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection")
#: A good key would end the server, or its models.
NOT_WITH_A_GOOD_KEY = ("/drain", "/unload")

#: What each key opens: an API, and models of it (None: all).
INFERENCE, MANAGEMENT = TokenType.inference, TokenType.management
KEYS: dict[str, tuple[TokenType, tuple[str, ...] | None] | None] = {
    "narrow": (INFERENCE, ("own", "own-truss")),
    "wide": (INFERENCE, None),
    "boss": (MANAGEMENT, None),
    "old": None,
    "unknown": None,
    "": None,
}


class Sent(NamedTuple):
    """What a client sends as a key, and the key that this is; None for two that differ."""

    name: str
    headers: Sequence[tuple[str, str]]
    key: str | None
    query: str = ""


def header(scheme: str) -> Callable[[str], tuple[str, str]]:
    return lambda key: ("Authorization", f"{scheme} {key}")


def subprotocol(prefix: str, *others: str) -> Callable[[str], tuple[str, str]]:
    return lambda key: ("Sec-WebSocket-Protocol", ", ".join((*others, f"{prefix}{key}", "sequences.json.v1")))


#: How a key may be sent.
READ = {
    "Bearer": header("Bearer"),
    "bearer": header("bearer"),
    "API-KEY": header("API-KEY"),
    "subprotocol": subprotocol("bearer."),
    "OpenAI's subprotocol": subprotocol("openai-insecure-api-key.", "realtime"),
}
#: What is no key.
NOT_READ = {
    "Basic": lambda key: ("Authorization", f"Basic {key}"),
    "no scheme": lambda key: ("Authorization", key),
    "x-api-key": lambda key: ("X-Api-Key", key),
    "api-key": lambda key: ("Api-Key", key),
    "proxy": lambda key: ("Proxy-Authorization", f"Bearer {key}"),
    "cookie": lambda key: ("Cookie", f"key={key}; Authorization=Bearer {key}"),
}


def forms() -> Iterator[Sent]:
    for (name, make), key in itertools.product(READ.items(), KEYS):
        if key:
            yield Sent(f"{name} {key}", [make(key)], key)
            yield Sent(f"{name} {key} twice", [make(key), READ["Bearer"](key)], key)
    for name, no_key in NOT_READ.items():
        yield Sent(f"{name} wide", [no_key("wide")], "")
    for name in ("key", "api_key", "access_token", "Authorization", "token"):
        yield Sent(f"query {name}", [], "", f"&{name}=wide")
    yield Sent("none", [], "")
    for one, other in itertools.permutations(READ, 2):
        yield Sent(f"{one} narrow, {other} wide", [READ[one]("narrow"), READ[other]("wide")], None)
    both = ("Sec-WebSocket-Protocol", "openai-insecure-api-key.wide, bearer.narrow, sequences.json.v1")
    yield Sent("two in one header", [both], None)
    yield Sent("Bearer narrow, Bearer wide", [header("Bearer")("narrow"), header("Bearer")("wide")], None)
    yield Sent("Basic, subprotocol", [NOT_READ["Basic"]("x"), READ["subprotocol"]("wide")], None)


FORMS = tuple(forms())


def model(name: str, contract: str = "torchserve") -> FakeModel:
    made = FakeModel(name, stateful=True)
    made.contract = contract
    made.loaded_at_startup = True
    made.is_durable = True
    made.behave = lambda call: call.part(b"{}")
    keys = (OpenAIKeys(openai=True), RealtimeKeys(realtime=True), OpenpiKeys(openpi={}))
    if contract == "torchserve":
        made.config = replace(
            CONFIG,
            stateful=True,
            sequence_max_idle_ms=9000,
            max_sequence_job_queue_size=4,
            plugin_keys=PluginKeys(keys),
        )
    return made


@dataclass
class Server:
    """Endpoints with their route tables, the models behind them, and all that has been done to these."""

    endpoints: OpenEndpoints
    routes: dict[str, Sequence[Route]]
    registry: FakeServing

    def reached(self) -> list[Any]:
        """Whatever a request has done."""
        of_models = [(each.name, len(each.calls), len(each.released)) for each in self.registry.registered]
        return [*of_models, *self.registry.requests]


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    tables: list[Sequence[Route]] = []

    class Recording(Application):
        def __init__(self, context: EndpointContext, routes: Sequence[Route], guard: Any = None) -> None:
            if any(route.path == "/api-description" for route in routes):  # else those of a listener that is full
                tables.append(routes)
            super().__init__(context, routes, guard)

    monkeypatch.setattr(http_listeners, "Application", Recording)
    models = [model("own"), model("other"), model("own-truss", "truss"), model("other-truss", "truss")]
    registry = FakeServing(models)
    registry.store = tmp_path  # type: ignore[attr-defined]
    settings = make_settings(tmp_path, disable_token_authorization=False, keys_file=keys_file(tmp_path))
    metrics = FakeMetrics()
    opened = await open_endpoints(settings, registry, metrics, tmp_path / "key_file.json")
    endpoints = OpenEndpoints(opened, registry, metrics, tmp_path / "key_file.json")
    yield Server(endpoints, dict(zip(("inference", "management", "metrics"), tables, strict=True)), registry)
    await endpoints.client.close()
    async with asyncio.timeout(60):
        await opened.close()


def keys_file(folder: Path) -> Path:
    entries: list[dict[str, Any]] = [
        {"key": "narrow", "name": "narrow", "models": ["own", "own-truss"]},
        {"key": "wide"},
        {"key": "boss", "scope": "management"},
        {"key": "old", "expires": "2020-01-01"},
    ]
    return write(folder / "keys.json", *entries)


def target(route: Route, name: str) -> str:
    """Return a path of a route about a model, and a query that names it too."""
    digits = sha256(name.encode()).hexdigest()[:8].ljust(32, "0")
    known = {
        "model_name": name,
        "workflow_name": name,
        "model_version": "1.0",
        "response_id": f"resp_{digits}{'0' * 16}",
        "conversation_id": f"conv_{digits}",
    }
    path = re.sub(r"\{(\w+)(:path)?\}", lambda found: known.get(found[1], "x"), route.path)
    return f"{path}?model_name={name}&model={name}&url=x&id=s"


def is_allowed(routes: Sequence[Route], path: str, name: str, sent: Sent) -> bool:
    """Return whether a key opens a path, which may have several routes, for a model."""
    opens = KEYS[sent.key] if sent.key is not None else None
    tokens = [each.token for each in routes if each.path == path]
    return opens is not None and opens[0] in tokens and (opens[1] is None or name in opens[1])


async def ask(server: Server, endpoint: str, method: str, path: str, sent: Sent, name: str) -> int:
    """Send a request, as a handshake if it can be one, and a step once a session is open; return the status."""
    body = json.dumps({"model": name, "messages": [], "input": "x", "inputs": []}).encode() if method != "GET" else b""
    lines = [f"{method} {path}{sent.query} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
    lines += [f"{key}: {value}" for key, value in sent.headers]
    lines += ["Content-Type: application/json", "ts_request_sequence_id: s", "ts_request_sequence_start: true"]
    lines.append("X-Amzn-SageMaker-Session-Id: NEW_SESSION")
    if method == "GET":
        lines += ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"]
        lines.append("Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==")
    else:
        lines.append("Connection: close")
    connection = await server.endpoints.raw("\r\n".join([*lines, "", ""]).encode() + body, endpoint=endpoint)
    try:
        status = int((await connection.head()).split()[1])
        if status == 101:
            steps = (b'{"type": "input_audio_buffer.append", "audio": "eHh4eA==", "body": "x"}', b"\x80")
            for opcode, step in zip((0x81, 0x82), steps, strict=True):
                connection.writer.write(bytes((opcode, 0x80 | len(step))) + bytes(4) + step)
            connection.writer.write(b"\x88\x80" + bytes(4))
            await connection.rest()
        return status
    finally:
        connection.writer.close()


def rows(server: Server) -> Iterator[tuple[str, Route, str]]:
    """Yield each route with its listener and each of its methods."""
    for endpoint, routes in server.routes.items():
        for route in routes:
            if route.path != ANY_PATH:
                yield from ((endpoint, route, method) for method in route.methods if method not in ("HEAD", "PATCH"))


def paired(server: Server) -> Iterator[tuple[str, Route, str, Sent]]:
    """Yield each row with the forms that matter most, and with some of the others: each form meets many rows."""
    first = [each for each in FORMS if each.name in ("none", "Bearer narrow", "Bearer unknown", "two in one header")]
    others = itertools.cycle([each for each in FORMS if each not in first])
    for row in rows(server):
        yield from ((*row, sent) for sent in (*first, *itertools.islice(others, 3)))


async def test_no_way_to_send_a_key_reaches_beyond_its_right(server: Server) -> None:
    pairs = 0
    for endpoint, route, method, sent in paired(server):
        for name in ("other", "other-truss") if "{model_name}" in route.path else ("other",):
            if is_allowed(server.routes[endpoint], route.path, name, sent):
                continue
            where = (endpoint, method, route.path, sent.name)
            before = server.reached()
            status = await ask(server, endpoint, method, target(route, name), sent, name)
            pairs += 1
            assert server.reached() == before, where
            assert route.token is not None or route.path in OPEN, f"{where}: is a path that needs no key"
            if route.path in OPEN:
                continue
            expected = {400} if sent.key is None else {401, 403}
            if sent.key == "narrow" and route.token is INFERENCE and "{model_name}" not in route.path:
                continue  # what the path does not name is refused where it is looked for, or is not there
            if route.applies is not None:
                expected |= {404, 405}  # the path means this route for some requests only
            assert status in expected, where
    assert pairs > 1000


async def test_a_good_key_opens_every_path_in_every_form(server: Server) -> None:
    """So that refusals above are no accident: the same requests, with keys that may."""
    reached = set()
    for (endpoint, route, method), (name, make) in zip(rows(server), itertools.cycle(READ.items()), strict=False):
        if route.token is None or route.path.endswith(NOT_WITH_A_GOOD_KEY) or method == "DELETE":
            continue
        for key, model_name in (
            (("boss", "own"),) if route.token is MANAGEMENT else (("wide", "other"), ("narrow", "own"))
        ):
            if route.path.startswith("/console/api"):
                continue  # streams that do not end
            before = server.reached()
            sent = Sent(name, [make(key)], key)
            status = await ask(server, endpoint, method, target(route, model_name), sent, model_name)
            assert status not in (401, 403), (endpoint, method, route.path, name, key)
            if server.reached() != before:
                reached.add(route.path)
    assert len(reached) > 25, sorted(reached)


# gRPC

SERVICES = {
    f"/{service.full_name}/{method.name}": method
    for module in (
        *(inference_pb2, lerobot_pb2, management_pb2, open_inference_pb2),
        *(open_inference_repository_pb2, open_inference_torchserve_pb2),
    )
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}


class Called(NamedTuple):
    """What a call of gRPC was answered: its status, and what it says."""

    code: grpc.StatusCode
    answer: bytes


@dataclass
class GrpcListeners:
    methods: dict[str, set[str]]
    channels: dict[str, grpc.aio.Channel]
    registry: FakeServing

    def reached(self) -> list[Any]:
        """Whatever a call has done."""
        return [*(len(each.calls) for each in self.registry.registered), *self.registry.requests]

    async def call(self, kind: str, path: str, metadata: Sequence[tuple[str, str]], name: str) -> Called:
        for attempt in range(100):
            called, details = await self._call_once(kind, path, metadata, name, attempt / 1000)
            if "Internal error from Core" not in details:  # grpcio's own, if a call ends just as it sends
                break
        return called

    async def _call_once(
        self, kind: str, path: str, metadata: Sequence[tuple[str, str]], name: str, pause: float
    ) -> tuple[Called, str]:
        call = self.channels[kind].stream_stream(path)(metadata=metadata, timeout=180)
        method = SERVICES.get(path)
        answer = b""
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await asyncio.sleep(pause)
            await call.write(b"" if method is None else about(GetMessageClass(method.input_type)(), name))
            await call.done_writing()
            while (message := await call.read()) is not grpc.aio.EOF:
                answer += message
        return Called(await call.code(), answer), await call.details() or ""


def about(message: Message, name: str) -> bytes:
    """Return a message that names a model in whichever field is for that."""
    for field in ("model_name", "name", "workflow_name"):
        if field in message.DESCRIPTOR.fields_by_name:
            setattr(message, field, name)
    if "sequence_id" in message.DESCRIPTOR.fields_by_name:
        message.sequence_id = "s"  # type: ignore[attr-defined]
    if "input" in message.DESCRIPTOR.fields_by_name:
        message.input["data"] = b"x"  # type: ignore[attr-defined]
    return message.SerializeToString()


@pytest.fixture
async def grpc_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[GrpcListeners]:
    tables: list[set[str]] = []

    class Recording(GrpcServer):
        def __init__(self, methods: Any, *more: Any) -> None:
            tables.append(set(methods))
            super().__init__(methods, *more)

    monkeypatch.setattr(grpc_listeners, "GrpcServer", Recording)
    registry = FakeServing([FakeModel("own"), FakeModel("other")])
    tokens = GivenKeys(KeysSettings(keys_file=keys_file(tmp_path)))
    settings = make_settings(tmp_path, grpc_inference_port=0, grpc_management_port=0)
    context = EndpointContext(settings, registry, FakeMetrics(), tokens)  # type: ignore[arg-type]
    endpoints = await grpc_listeners.start_grpc_listeners(context)
    channels = {}
    for kind in ("inference", "management"):
        address = endpoints.addresses[f"grpc_{kind}_port"]
        channels[kind] = grpc.aio.insecure_channel(f"{address.host}:{address.port}")
    yield GrpcListeners(dict(zip(channels, tables, strict=True)), channels, registry)
    for channel in channels.values():
        await channel.close()
    async with asyncio.timeout(60):
        await endpoints.close()


GRPC_FORMS = [
    each._replace(headers=[(name.lower(), value) for name, value in each.headers])
    for each in FORMS
    if (not each.query and not any("websocket" in name.lower() for name, _ in each.headers)) or each.name == "none"
] + [
    Sent("bearer wide, bearer narrow", [("authorization", "bearer wide"), ("authorization", "bearer narrow")], None),
    Sent("subprotocol", [("sec-websocket-protocol", "bearer.wide")], ""),
]


async def test_no_call_of_grpc_reaches_beyond_the_right_of_its_key(grpc_server: GrpcListeners) -> None:
    refusals = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
    for kind, paths in grpc_server.methods.items():
        for path, sent in itertools.product(sorted(paths), GRPC_FORMS):
            opens = KEYS[sent.key] if sent.key is not None else None
            of_right = INFERENCE if kind == "inference" and "Repository" not in path else MANAGEMENT
            if path.partition("/")[2].partition("/")[0] in OPEN_SERVICES:
                continue
            assert path in SERVICES, f"{path} is a method of no service that this test knows"
            fields = SERVICES[path].input_type.fields_by_name
            may = opens is not None and opens[0] is of_right
            if may and (opens is None or opens[1] is None or not {"model_name", "name"} & set(fields)):
                continue
            before = grpc_server.reached()
            called = await grpc_server.call(kind, path, sent.headers, "other")
            where = (kind, path, sent.name)
            assert grpc_server.reached() == before, where
            if sent.key is None:
                assert called.code is grpc.StatusCode.INVALID_ARGUMENT, where
            elif may and ("SharedMemory" in path or called.code is grpc.StatusCode.UNIMPLEMENTED):
                pass  # the name is that of a region, or the server has no such method
            elif path.endswith(("StreamPredictions2", "ModelStreamInfer")) and may:
                assert b"is not for the model" in called.answer or called.code in refusals, where
            else:
                assert called.code in refusals, where


async def test_a_good_key_opens_the_methods_of_grpc(grpc_server: GrpcListeners) -> None:
    for name in ("Bearer", "bearer", "API-KEY"):
        for key, model_name in (("narrow", "own"), ("wide", "other")):
            metadata = [("authorization", READ[name](key)[1])]
            for path in sorted(grpc_server.methods["inference"]):
                if "Repository" not in path and path in SERVICES:
                    called = await grpc_server.call("inference", path, metadata, model_name)
                    assert called.code not in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED), path
    assert all(each.calls for each in grpc_server.registry.registered)
