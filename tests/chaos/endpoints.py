"""The ways into a server by which a step can come: TorchServe's HTTP and gRPC, and Open Inference."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import aiohttp
import grpc

from torchserve_py.apis.grpc.protos.inference_pb2 import PredictionsRequest
from torchserve_py.apis.grpc.protos.inference_pb2_grpc import InferenceAPIsServiceStub

MODEL = "chaos"
START, END = "ts_request_sequence_start", "ts_request_sequence_end"
_BROKEN = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN}


class Endpoint(StrEnum):
    """A protocol."""

    HTTP = "http"
    GRPC = "grpc"
    OPEN_INFERENCE = "open inference"


class Server(NamedTuple):
    """Where a server is."""

    url: str
    grpc: str = ""  # host and port; "" if only HTTP is to be used

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        return (
            [Endpoint.HTTP, Endpoint.OPEN_INFERENCE, Endpoint.GRPC]
            if self.grpc
            else [Endpoint.HTTP, Endpoint.OPEN_INFERENCE]
        )


class Reply(NamedTuple):
    """An answer, or why there is none; then the status is one of those below."""

    status: int
    text: str = ""
    headers: Mapping[str, str] = {}
    cause: str = ""


#: The connection broke; there was none; it broke in the middle of an answer.
UNHEARD, UNREACHED, TORN = 0, -1, -2


class HttpListeners:
    """Sends requests through any endpoint.

    Args:
        servers: Where they go.
    """

    def __init__(self, servers: Sequence[Server], session: aiohttp.ClientSession) -> None:
        self.servers = servers
        self._session = session

    async def send(self, server: int, endpoint: Endpoint, sequence: str, body: str, said: Mapping[str, str]) -> Reply:
        """Send a step once.

        Args:
            said: What the headers of a sequence say, without the sequence's id.
        """
        if endpoint is Endpoint.GRPC:
            return await self._call(self.servers[server].grpc, sequence, body, said)
        try:
            if endpoint is Endpoint.OPEN_INFERENCE:
                return await self._infer(self.servers[server].url, sequence, body, said)
            headers = {"ts_request_sequence_id": sequence, "content-type": "text/plain", **said}
            url = f"{self.servers[server].url}/predictions/{MODEL}"
            async with self._session.post(url, data=body, headers=headers) as response:
                return await _reply(response)
        except aiohttp.ClientConnectorError:
            return Reply(UNREACHED)
        except (aiohttp.ClientError, ConnectionError):
            return Reply(UNHEARD)

    async def _infer(self, url: str, sequence: str, body: str, said: Mapping[str, str]) -> Reply:
        parameters: dict[str, Any] = {"sequence_id": sequence}
        for name, value in said.items():
            marker = {START: "sequence_start", END: "sequence_end"}.get(name)
            parameters[marker or name] = value if marker is None else value == "true"
        row = {"name": "body", "datatype": "BYTES", "shape": [1], "data": [body]}
        asked = {"inputs": [row], "parameters": parameters}
        async with self._session.post(f"{url}/v2/models/{MODEL}/infer", json=asked) as response:
            reply = await _reply(response)
        if reply.status != 200:
            return reply
        return reply._replace(text=json.loads(reply.text)["outputs"][0]["data"][0])

    async def _call(self, address: str, sequence: str, body: str, said: Mapping[str, str]) -> Reply:
        entries = {"body": body.encode()}
        entries |= {name: value.encode() for name, value in said.items() if name in {START, END}}
        metadata = tuple((name, value) for name, value in said.items() if name not in {START, END})
        request = PredictionsRequest(model_name=MODEL, sequence_id=sequence, input=entries)
        async with grpc.aio.insecure_channel(address) as channel:
            call = InferenceAPIsServiceStub(channel).Predictions(request, metadata=metadata)
            try:
                response = await call
            except grpc.aio.AioRpcError as error:
                cause = str(dict(error.trailing_metadata() or ()).get("ts-error-cause", ""))
                if not cause and error.code() in _BROKEN:
                    return Reply(UNHEARD)
                return Reply(_STATUS.get(error.code(), 500), error.details() or "", {}, cause)
            except asyncio.CancelledError:
                call.cancel()
                raise
            trailing = {str(name): str(value) for name, value in await call.trailing_metadata() or ()}
        return Reply(200, response.prediction.decode(), trailing)


#: Statuses of HTTP that stand for those of gRPC.
_STATUS = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.ABORTED: 409,
    grpc.StatusCode.FAILED_PRECONDITION: 410,
    grpc.StatusCode.UNAVAILABLE: 503,
}


async def _reply(response: aiohttp.ClientResponse) -> Reply:
    try:
        text = await response.text()
    except aiohttp.ClientPayloadError:
        return Reply(TORN, "", response.headers)
    return Reply(response.status, text, response.headers, response.headers.get("ts-error-cause", ""))
