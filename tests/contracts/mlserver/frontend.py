"""The frontend's side of an MLServer model without its process: jobs go in, result rows come out, clients leave."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable
from typing import Any

from mlserver import MLModel, ModelSettings
from tests.unit.ts.sent_jobs import FakeConnection, SentJob

from ts.apis.open_inference.protos import infer_pb2
from ts.contracts.mlserver.load_mlserver import declarations
from ts.contracts.mlserver.mlserver_runtime import MLServerRuntime
from ts.protocol.messages import CUSTOM, OPEN_INFERENCE_GRPC, OPEN_INFERENCE_REST, InferRow


class Job(SentJob):
    """One request that was sent."""

    async def answer(self) -> Answer:
        """Wait for the last row and return the whole answer."""
        return Answer(await self.all_rows())

    async def parts(self, count: int) -> list[Any]:
        """Wait for so many parts; return what they say."""
        return [json.loads(row[5]) for row in await self.first_rows(count) if row[5]]


class Answer:
    """All rows of one job."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows
        self.status = rows[-1][2]
        self.headers = {name.lower(): value for name, value in rows[0][4]}
        self.error = rows[-1][6]

    @property
    def body(self) -> bytes:
        return b"".join(bytes(row[5]) for row in self.rows)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def outputs(self) -> dict[str, Any]:
        """The data of the outputs by name."""
        return {output["name"]: output["data"] for output in self.json["outputs"]}

    @property
    def events(self) -> list[dict[str, Any]]:
        """What a client gets of a REST stream."""
        return [json.loads(row[5]) for row in self.rows if row[5]]

    @property
    def messages(self) -> list[infer_pb2.ModelInferResponse]:
        """What a client gets of a gRPC stream."""
        return [infer_pb2.ModelInferResponse.FromString(bytes(row[5])) for row in self.rows if row[5]]


class Frontend:
    """A model that is served.

    Args:
        cls: The model's class.
        settings: Values of its model-settings.json.
    """

    def __init__(self, cls: type[MLModel], *, size: int = 10_000_000, **settings: Any) -> None:
        self.connection = FakeConnection()
        self._ids = map(str, itertools.count())
        self._size = size
        parameters = settings.pop("parameters", {})
        self.model = cls(ModelSettings(implementation=cls, name="mine", parameters=parameters, **settings))

    async def load(self, *, server_name: str = "mlserver", cache_size: int = 0) -> Frontend:
        """Load the model."""
        self.model.ready = await self.model.load()
        connection: Any = self.connection
        self.runtime = MLServerRuntime(
            self.model,
            await declarations(self.model),
            connection,
            server_name=server_name,
            cache_size=cache_size,
            max_response_size=self._size,
        )
        return self

    def infer(
        self,
        inputs: Any = (),
        *,
        endpoint: str | None = None,
        protocol: str | None = OPEN_INFERENCE_REST,
        headers: Iterable[tuple[Any, Any]] = (),
        raw: Any = None,
        **members: Any,
    ) -> Job:
        """Send a request over REST; ``raw`` is a body that is sent as it is."""
        body = json.dumps({"inputs": list(inputs), **members}).encode() if raw is None else raw
        told = ((":endpoint", endpoint),) if endpoint else ()
        return self._start((*headers, *told), body, protocol)

    def call_grpc(self, message: infer_pb2.ModelInferRequest) -> Job:
        """Send a request over gRPC."""
        return self._start((), message.SerializeToString(), OPEN_INFERENCE_GRPC)

    def stream_in(self, message: infer_pb2.ModelInferRequest) -> Job:
        """Open a stream over gRPC with its first message."""
        return self._start(
            ((":endpoint", "infer_stream"),), message.SerializeToString(), OPEN_INFERENCE_GRPC, more_input=True
        )

    def call(self, method: str, path: str, body: bytes = b"") -> Job:
        """Call a custom route."""
        headers = ((b"content-type", b"application/json"), (":method", method), (":path", path))
        return self._start((*headers, (":client", "127.0.0.1:5")), body, CUSTOM)

    def _start(self, headers: Any, body: Any, protocol: str | None, *, more_input: bool = False) -> Job:
        job_id = next(self._ids)
        row = InferRow(job_id, headers, "application/json", body, protocol, more_input)
        return Job(self.runtime, self.connection, row)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something is so."""
        await self.connection.until(condition)


def tensor(name: str, data: list[Any], datatype: str = "FP32", shape: list[int] | None = None, **more: Any) -> Any:
    """Return an input as JSON has it."""
    shape = [len(data)] if shape is None else shape
    return {"name": name, "shape": shape, "datatype": datatype, "data": data, **more}


def text_message(text: str, request_id: str = "") -> infer_pb2.ModelInferRequest:
    """Return a gRPC request with the one input ``text``."""
    message = infer_pb2.ModelInferRequest(model_name="mine", id=request_id)
    sent = message.inputs.add(name="text", datatype="BYTES", shape=[1])
    sent.contents.bytes_contents.append(text.encode())
    return message
