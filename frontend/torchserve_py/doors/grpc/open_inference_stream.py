"""`ModelStreamInfer`: one method with two meanings, and two types of messages, by who has called it.

Triton's clients send independent requests and read ``ModelStreamInferResponse`` messages; an error is one of them, and
the call goes on. MLServer's clients read bare ``ModelInferResponse`` messages; an error ends the call with a status,
and a model that takes a stream of requests gets them all as the input of one job. The first request tells who has
called, unless the metadata ``x-stream-envelope`` or the setting ``grpc_stream_envelope`` does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from grpc.aio import EOF

from torchserve_py.doors.errors import DoorError, bad_request
from torchserve_py.doors.grpc.calls import Behaviour, Context
from torchserve_py.doors.grpc.lanes import MAX_LARGEST_REQUESTS
from torchserve_py.doors.grpc.metadata import metadata_of
from torchserve_py.doors.grpc.open_inference_messages import (
    OpenRequest,
    empty_final,
    enveloped,
    enveloped_error,
    is_tritons,
    read_request,
)
from torchserve_py.doors.grpc.open_inference_pipe import RequestPipe
from torchserve_py.doors.grpc.refusals import refuse_open_inference
from torchserve_py.doors.grpc.two_way import OpenCalls, TwoWayCall

if TYPE_CHECKING:
    from torchserve_py.core.serving import ServedModel
    from torchserve_py.doors.grpc.open_inference_jobs import OpenInferenceJobs
    from torchserve_py.doors.pipeline import Exchange
    from torchserve_py.jobs.parts import Part

AUTO: Final = "auto"
TRITON: Final = "triton"
MLSERVER: Final = "mlserver"

#: Metadata of a call: whose messages its client reads; whether an error is to end it with a status.
_ENVELOPE_KEY: Final = "x-stream-envelope"
_STATUS_KEY: Final = "triton_grpc_error"
#: How the worker is told that a request may have several responses.
_STREAMED: Final = (":endpoint", "infer_stream")


class InferStreams:
    """Serves the method, and knows its open calls.

    Args:
        jobs: Where requests become jobs.
        max_request_size: How many bytes one may have.
        envelope: Whose messages clients read who do not say so: `AUTO`, `TRITON` or `MLSERVER`.
    """

    def __init__(self, jobs: OpenInferenceJobs, max_request_size: int, envelope: str) -> None:
        self._jobs = jobs
        self._max_bytes = max_request_size * MAX_LARGEST_REQUESTS
        self._envelope = envelope
        self._open = OpenCalls()

    @property
    def methods(self) -> Mapping[str, Behaviour]:
        """What serves each method."""
        return {"ModelStreamInfer": self.model_stream_infer}

    async def model_stream_infer(self, requests: Any, context: Context) -> None:
        """Answer requests until the client has sent its last one and all are answered.

        Raises:
            DoorError: A request failed, and the client wants a status; or the server shuts down.
            ModelError: There is no such model, and the client wants a status.
            ReaderStalledError: The client has stopped reading.
        """
        await self._open.run(_InferStream(self._jobs, context, self._max_bytes, self._envelope))

    def close(self) -> None:
        """Read no more requests; calls end when what they have is answered."""
        self._open.close()


class _InferStream(TwoWayCall):
    """One call."""

    def __init__(self, jobs: OpenInferenceJobs, context: Context, max_bytes: int, envelope: str) -> None:
        super().__init__(context, jobs.writer(context))
        self._jobs = jobs
        self._metadata: Any = (*(context.invocation_metadata() or ()), _STREAMED)
        said = dict(self._metadata)
        self._envelope: str | bytes = said.get(_ENVELOPE_KEY, envelope)
        self._wants_status = said.get(_STATUS_KEY) == "true"
        self._is_tritons = _STATUS_KEY in said
        self._enveloped = False
        self._headers: list[list[str]] = []
        self._pipe = RequestPipe(jobs, self._metadata, max_bytes, self._tasks, self._send, self._refuse)
        self._job: Exchange | None = None

    async def run(self) -> None:
        """As any; then the headers that the model has set become metadata."""
        await super().run()
        if self._headers:
            self._context.set_trailing_metadata(metadata_of(self._headers))

    def _cancel_jobs(self) -> None:
        self._pipe.cancel()
        if self._job is not None:
            self._job.parts.cancel()

    async def _read(self) -> None:
        body: Any = await self._context.read()
        if body is EOF:
            return
        self._enveloped = self._reads_envelopes(body)
        if not self._enveloped:
            request = read_request(body)
            model = self._jobs.model(request)
            if self._jobs.declared(model).get("streams_in"):
                await self._run_one_job(model, request)
                return
        while body is not EOF:
            self._pipe.take(body)
            await self._pipe.room()
            body = await self._context.read()

    def _reads_envelopes(self, first: bytes) -> bool:
        """Whether the client is one of Triton's, as far as can be told from its metadata and its first request."""
        if self._envelope not in (AUTO, TRITON, MLSERVER):
            raise bad_request(f"Metadata {_ENVELOPE_KEY}: {self._envelope!r} is neither {TRITON} nor {MLSERVER}.")
        if self._envelope != AUTO:
            return self._envelope == TRITON
        if self._is_tritons:
            return True
        try:
            return is_tritons(read_request(first))
        except DoorError:
            return False

    async def _run_one_job(self, model: ServedModel, first: OpenRequest) -> None:
        """Feed all requests to one job; the end of the call's requests is an input without a body."""
        self._job = self._jobs.submit(model, first, self._metadata, more_input=True)
        parts = self._job.parts
        answering = self._tasks.create_task(self._relay(self._job))
        answering.add_done_callback(lambda _: self._reader is not None and self._reader.cancel())
        try:
            body: Any = await self._context.read()
            while body is not EOF:
                await parts.send_input(body, more=True)
                body = await self._context.read()
        except asyncio.CancelledError:
            if not self._closed:  # the call is over, and its job with it
                raise
        await parts.send_input(b"", more=False)

    async def _relay(self, job: Exchange) -> None:
        more = True
        while more:
            part = await job.next()
            more = part.more
            await self._send_bare(part)

    async def _send(self, request: OpenRequest, model: ServedModel, part: Part, final: bool) -> None:
        if not self._enveloped:
            await self._send_bare(part)
        elif part.body:
            await self._write(enveloped(part.body, final=final))
        elif request.wants_empty_final:
            await self._write(empty_final(request, model.version))

    async def _send_bare(self, part: Part) -> None:
        if part.headers:
            self._headers = part.headers
        if part.body:
            await self._write(part.body)

    async def _refuse(self, request: OpenRequest | None, error: Exception) -> None:
        if not self._enveloped or self._wants_status:
            raise error
        await self._write(enveloped_error(request, refuse_open_inference(error)))
