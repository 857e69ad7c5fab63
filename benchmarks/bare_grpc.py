"""The yardstick for gRPC: a bare grpc.aio server on uvloop that echoes, doing only what any grpc.aio server must.

    python -m benchmarks.bare_grpc PORT

It speaks TorchServe's protocol: `Predictions` answers with the first input, `StreamPredictions` with 100 parts.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import uvloop
from grpc import aio

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "frontend"))


from torchserve_py.apis.grpc.protos import inference_pb2 as messages
from torchserve_py.apis.grpc.protos import inference_pb2_grpc as stubs

PARTS = 100
PART = b"token "


class Echo(stubs.InferenceAPIsServiceServicer):
    """The two methods that are measured."""

    async def Predictions(self, request: Any, context: Any) -> messages.PredictionResponse:
        """The first input."""
        return messages.PredictionResponse(prediction=next(iter(request.input.values())))

    async def StreamPredictions(self, request: Any, context: Any) -> AsyncIterator[messages.PredictionResponse]:
        """100 parts."""
        for _ in range(PARTS):
            yield messages.PredictionResponse(prediction=PART)


async def serve(port: int) -> None:
    """Serve on the loopback address until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    server = aio.server()
    stubs.add_InferenceAPIsServiceServicer_to_server(Echo(), server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await stop.wait()
    await server.stop(None)


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
