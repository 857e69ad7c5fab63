"""`StreamPredictions2`: one call that carries requests of any number of sequences, and their responses.

Responses of one sequence come in the order of its requests (with continuous batching, where a request can join one that
streams, as their parts are ready). A request that fails is answered with its status, and the call goes on. The stream
holds a bounded number of requests and reads no further while it is full, so that gRPC's flow control slows the client
down; and it submits no more requests of a sequence than its queue takes, so that a client may send ahead.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from grpc.aio import EOF

from torchserve_py.core.errors import ModelError
from torchserve_py.doors.errors import DoorError, bad_request, failure_of
from torchserve_py.doors.grpc.calls import Behaviour, Context
from torchserve_py.doors.grpc.inference import DIALECT, Submission
from torchserve_py.doors.grpc.lanes import MAX_LARGEST_REQUESTS, MAX_REQUESTS, Lane
from torchserve_py.doors.grpc.protos import inference_pb2 as messages
from torchserve_py.doors.grpc.refusals import refuse_prediction
from torchserve_py.doors.grpc.two_way import OpenCalls, TwoWayCall
from torchserve_py.doors.pipeline import Exchange
from torchserve_py.jobs.parts import Part, Parts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchserve_py.core.serving import ServedModel

_Key = tuple[str, str, str]
_Lane = Lane[messages.PredictionsRequest]


class SequenceStreams:
    """Serves the method, and knows its open calls."""

    def __init__(self, submission: Submission, max_request_size: int) -> None:
        self._submission = submission
        self._max_bytes = max_request_size * MAX_LARGEST_REQUESTS
        self._open = OpenCalls()

    @property
    def methods(self) -> Mapping[str, Behaviour]:
        """What serves each method."""
        return {"StreamPredictions2": self.stream_predictions_2}

    async def stream_predictions_2(self, requests: Any, context: Context) -> None:
        """Answer requests until the client has sent its last one and all are answered.

        Raises:
            DoorError: The server shuts down.
            ReaderStalledError: The client has stopped reading.
        """
        await self._open.run(_SequenceStream(self._submission, context, self._max_bytes))

    def close(self) -> None:
        """Read no more requests; calls end when what they have is answered."""
        self._open.close()


class _SequenceStream(TwoWayCall):
    """One call."""

    def __init__(self, submission: Submission, context: Context, max_bytes: int) -> None:
        super().__init__(context, submission.writer(context))
        self._submission = submission
        self._max_bytes = max_bytes
        self._held = 0
        self._held_bytes = 0
        self._room = asyncio.Event()
        self._lanes: dict[_Key, _Lane] = {}
        self._jobs: set[Parts] = set()

    def _cancel_jobs(self) -> None:
        for parts in self._jobs:
            parts.cancel()

    async def _read(self) -> None:
        while True:
            while self._held >= MAX_REQUESTS or self._held_bytes >= self._max_bytes:
                self._room.clear()
                await self._room.wait()
            request = await self._context.read()
            if request is EOF:
                return
            self._take(request)

    def _take(self, request: messages.PredictionsRequest) -> None:
        key = (request.model_name, request.model_version, request.sequence_id)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane(self._model(request))
        lane.waiting.append(request)
        lane.held += 1
        self._held += 1
        self._held_bytes += request.ByteSize()
        self._submit_more(lane)

    def _model(self, request: messages.PredictionsRequest) -> ServedModel | None:
        try:
            return self._submission.model(request)
        except (DoorError, ModelError):
            return None  # told when the request is submitted

    def _submit_more(self, lane: _Lane) -> None:
        while lane.waiting and lane.takes_more:
            request = lane.waiting.popleft()
            lane.unanswered += 1
            answer: Exchange | Exception
            try:
                answer = self._submit(request)
            except (DoorError, ModelError) as error:
                answer = error
            else:
                self._jobs.add(answer.parts)
            previous = None if lane.interleaves else lane.last
            lane.last = self._tasks.create_task(self._answer(lane, request, answer, previous))

    def _submit(self, request: messages.PredictionsRequest) -> Exchange:
        submission = self._submission
        model = submission.model(request)
        if not request.sequence_id and not submission.starts(request):
            raise bad_request("Parameter sequenceId is required.")
        return submission.submit(model, request, submission.sequence(request))

    async def _answer(
        self,
        lane: _Lane,
        request: messages.PredictionsRequest,
        answer: Exchange | Exception,
        previous: asyncio.Task[None] | None,
    ) -> None:
        """Send the response of one request, after that of the ``previous`` one."""
        if previous is not None:
            await asyncio.wait((previous,))
        if isinstance(answer, Exception):
            self._begun(lane)
            await self._write_failure(request.sequence_id, answer)
        else:
            await self._relay(lane, answer)
            self._jobs.discard(answer.parts)
        self._over(lane, request)

    async def _relay(self, lane: _Lane, exchange: Exchange) -> None:
        begun = False
        more = True
        while more:
            part: Part | None = None
            try:
                part = await exchange.next()
            except DoorError as error:
                failed = error
            if not begun:
                begun = True
                self._begun(lane)
            if part is None:
                sequence = exchange.asked.sequence
                sequence_id = "" if sequence is None else sequence.id
                return await self._write_failure(sequence_id, failed)
            more = part.more
            await self._write(DIALECT.message(exchange, part.body))
        return None

    def _begun(self, lane: _Lane) -> None:
        """A request has the first part of its response: it waits no more in the queue of its sequence."""
        lane.unanswered -= 1
        self._submit_more(lane)

    async def _write_failure(self, sequence_id: str, error: Exception) -> None:
        refusal = refuse_prediction(failure_of(error))
        response = messages.PredictionResponse(status=refusal.status())
        if sequence_id:
            response.sequence_id = sequence_id
        await self._write(response)

    def _over(self, lane: _Lane, request: messages.PredictionsRequest) -> None:
        """A request has left the stream."""
        lane.held -= 1
        self._held -= 1
        self._held_bytes -= request.ByteSize()
        self._room.set()
        if not lane.held:
            del self._lanes[request.model_name, request.model_version, request.sequence_id]
