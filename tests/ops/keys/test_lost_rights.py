"""What a key has opened ends once the key is removed, expires, or is no more for the model."""

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.endpoints.conftest import OpenEndpoints
from tests.endpoints.every_endpoint import ENDPOINTS, Session, TorchServeGrpc
from tests.endpoints.fake_serving import FakeModel, FakeServing
from tests.endpoints.raw_requests import until
from tests.ops.keys.test_given_keys import bearer, write
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from torchserve_py.apis.grpc.protos.inference_pb2 import PredictionsRequest
from torchserve_py.apis.grpc.protos.inference_pb2_grpc import InferenceAPIsServiceStub
from torchserve_py.endpoints.credentials import HeldCredentials, SentKey
from torchserve_py.endpoints.failures import EndpointError, Failure
from torchserve_py.endpoints.token_authorization import TokenType
from torchserve_py.ops.keys.given_keys import GivenKeys
from torchserve_py.ops.keys.keys_settings import KeysSettings

SESSIONS = [pytest.param(endpoint, id=endpoint.name) for endpoint in ENDPOINTS if isinstance(endpoint, Session)]


def change(endpoints: OpenEndpoints, file: Path, *entries: dict[str, Any]) -> None:
    """Replace the file, and look at it as the server does twice a second."""
    write(file, *entries)
    tokens = endpoints.endpoints.context.tokens
    assert isinstance(tokens, GivenKeys)
    tokens.reload()
    tokens.held.look()


async def closed_with(socket: ClientConnection) -> tuple[int, str]:
    with pytest.raises(ConnectionClosed) as closed:
        async with asyncio.timeout(60):
            while True:
                await socket.recv()
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code, closed.value.rcvd.reason


async def opened(endpoint: Session, key: str = "a") -> ClientConnection:
    address = endpoint.endpoints.address()
    url = f"ws://{address.host}:{address.port}{endpoint.path.format('m')}"
    socket = await connect(url, subprotocols=[f"openai-insecure-api-key.{key}", "realtime", "sequences.json.v1"])  # type: ignore[list-item]
    if endpoint.greets:
        await socket.recv()
    return socket


@pytest.mark.parametrize("endpoint", SESSIONS)
async def test_an_open_session_ends_with_its_key(endpoint: Session, tmp_path: Path) -> None:
    file = write(tmp_path / "keys", {"key": "a", "name": "app"}, {"key": "b"})
    async with endpoint.open(tmp_path, disable_token_authorization=False, keys_file=file) as model:
        model.behave = lambda call: call.part(endpoint.part(b"x"))
        socket, other = await opened(endpoint), await opened(endpoint, "b")
        for message in endpoint.step(2):
            await socket.send(message)
        await until(lambda: model.calls)
        change(endpoint.endpoints, file, {"key": "b"})
        code, reason = await closed_with(socket)
        assert (code, reason.partition(".")[0]) == (1008, "The key is not one of this server's")
        calls = len(model.calls)
        for message in endpoint.step(2):
            await other.send(message)
        await until(lambda: len(model.calls) > calls)
        change(endpoint.endpoints, file, {"key": "b", "name": "b", "models": ["other"]})
        assert await closed_with(other) == (1008, "The key 'b' is not for the model 'm'.")


async def test_a_stream_of_an_answer_ends_with_its_key(start: Any, tmp_path: Path) -> None:
    model = FakeModel()
    model.behave = lambda call: call.part(b"first", more=True)
    file = write(tmp_path / "keys", {"key": "a"}, {"key": "b"})
    endpoints = await start(FakeServing([model]), disable_token_authorization=False, keys_file=file)
    head = "GET /predictions/noop HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\nConnection: close\r\n\r\n"
    ending, other = [await endpoints.raw(head.format(key).encode()) for key in "ab"]
    for each in (ending, other):
        await each.reader.readuntil(b"first")
    change(endpoints, file, {"key": "b"})
    assert not (await ending.rest()).endswith(b"0\r\n\r\n")  # it was cut off
    await asyncio.wait_for(model.cancelled.wait(), 20)
    model.calls[1].part(b"last")
    assert (await other.rest()).endswith(b"last\r\n0\r\n\r\n")


async def test_events_of_the_console_end_with_the_key(start: Any, tmp_path: Path) -> None:
    file = write(tmp_path / "keys", {"key": "boss", "scope": "management"}, {"key": "a"})
    endpoints = await start(disable_token_authorization=False, keys_file=file)
    url = f"{endpoints.address('management')}/console/api/models/noop/1.0"
    async with endpoints.client.get(url, headers=bearer("boss")) as answer:
        await answer.content.readuntil(b"event: second")
        change(endpoints, file, {"key": "a"})
        async with asyncio.timeout(60):
            assert b"event: expired" in await answer.content.read()


@pytest.mark.parametrize("is_two_way", [False, True])
async def test_a_call_of_grpc_ends_with_its_key(is_two_way: bool, tmp_path: Path) -> None:
    (endpoint,) = (each for each in ENDPOINTS if isinstance(each, TorchServeGrpc))
    async with endpoint.open(tmp_path, disable_token_authorization=False) as model:
        model.behave = lambda call: call.part(endpoint.part(b"first"), more=True)
        keys = json.loads((tmp_path / "key_file.json").read_bytes())
        metadata = endpoint.metadata(keys["inference"]["key"])
        if is_two_way:
            stub = InferenceAPIsServiceStub(endpoint.serving.inference_channel)
            call = stub.StreamPredictions2(metadata=metadata)
            await call.write(PredictionsRequest(model_name="m", sequence_id="s"))
        else:
            call = InferenceAPIsServiceStub(endpoint.serving.inference_channel).StreamPredictions(
                PredictionsRequest(model_name="m"), metadata=metadata
            )
        assert (await call.read()).prediction
        tokens = endpoint.tokens
        assert tokens is not None
        tokens.held.look()
        tokens.rotate("inference", SentKey(keys["API"]["key"], given=True))
        tokens.held.look()
        with pytest.raises(grpc.aio.AioRpcError, match="Token Authorization failed"):
            async with asyncio.timeout(60):
                await call.read()
        await asyncio.wait_for(model.cancelled.wait(), 20)


def test_a_key_that_expires_ends_what_it_has_opened(tmp_path: Path) -> None:
    now = datetime(2030, 1, 30, 23, 59, tzinfo=UTC)
    file = write(tmp_path / "keys", {"name": "old", "key": "a", "expires": "2030-01-31"}, {"key": "b"})
    keys = GivenKeys(KeysSettings(keys_file=file), now=lambda: now)
    ended: list[tuple[str, int]] = []

    def hold(key: str, model: str | None = None) -> Callable[[], None]:
        credential = keys.admit(TokenType.inference, SentKey(key, given=True))
        return credential.hold(model, lambda failure: ended.append((key, failure.status)))

    hold("a")
    hold("a", "m")
    forget = hold("a")
    hold("b")
    forget()
    forget()
    keys.held.look()
    assert ended == []
    now += timedelta(minutes=1)
    keys.held.look()
    keys.held.look()
    assert ended == [("a", 401), ("a", 401)]


def test_what_cannot_be_ended_does_not_keep_the_rest_open(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = GivenKeys(KeysSettings(keys_file=write(tmp_path / "keys", {"key": "a"})))
    credential, ended = keys.admit(TokenType.inference, SentKey("a", given=True)), list[Failure]()
    credential.hold(None, lambda failure: 1 / 0)  # type: ignore[func-returns-value,arg-type,return-value]
    credential.hold(None, ended.append)
    write(tmp_path / "keys", {"key": "b"})
    keys.reload()
    keys.held.look()
    assert len(ended) == 1
    assert "could not be ended" in caplog.text
    with pytest.raises(EndpointError, match="not one of this server's"):
        credential.account("m")
    assert HeldCredentials is type(keys.held)
