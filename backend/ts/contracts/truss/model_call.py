"""Runs one request through a Truss model: decode, preprocess, acquire a slot, predict, postprocess, encode.

The call checks for a client that left before each step, while it waits for a slot, and within streams. It holds the
slot from the start of predict until predict has returned its result or the last chunk of its stream.
"""

import asyncio
import inspect
import logging
from collections.abc import Coroutine
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse

from ts.contracts.async_calls.async_runtime import Outbox, is_cancelled
from ts.contracts.truss.encodings import to_json
from ts.contracts.truss.model_methods import PREDICT, Endpoint
from ts.contracts.truss.model_request import ModelRequest, TrussClient
from ts.contracts.truss.reply import CLIENT_ERROR, MODEL_ERROR, MODEL_FAILED, SERVER_ERROR, Problem, Reply
from ts.contracts.truss.request_forms import Form
from ts.contracts.truss.served_model import ServedTruss
from ts.contracts.truss.signatures import Method
from ts.contracts.truss.slots import Slot, Slots, SlotWork
from ts.contracts.truss.streams import Chunks, GapTooLong, chunks_of, close, is_stream, pass_on, pull
from ts.contracts.truss.threads import Threads
from ts.jobs import device_loss
from ts.jobs.errors import users_traceback
from ts.ops.tracing.model_errors import note_error
from ts.protocol.messages import InferRow

logger = logging.getLogger(__name__)

_SPAN_NAMES: Final = {"preprocess": "call-pre", "postprocess": "call-post"}


class ClientLeft(Exception):
    """The client has left, so the call needs no answer."""


class TrussCall:
    """One request to one endpoint."""

    def __init__(self, model: ServedTruss, row: InferRow, client: TrussClient, form: Form, outbox: Outbox) -> None:
        self._model = model
        self._row = row
        self._client = client
        self._form = form
        self._trace = model.trace_of(row)
        self._reply = Reply(outbox, row.job_id, form.problem_row)
        self._request: ModelRequest | None = None

    async def run(self, name: str) -> None:
        """Run the endpoint ``name`` and answer the request, with an error if the call fails."""
        try:
            with self._trace.span(f"{name}-endpoint"):
                await self._run(name)
        except ClientLeft:
            self._reply.client_left()
        except Problem as problem:
            self._reply.problem(problem)
        except Exception:
            logger.exception("Request %s failed in the server", self._row.job_id)
            self._reply.problem(Problem(500, SERVER_ERROR, "Internal Server Error."))

    async def _run(self, name: str) -> None:
        endpoint = self._model.description.endpoints.get(name)
        if endpoint is None:
            self._form.decode(None)
            text = f"The method `{name}` can only be called if it is implemented by the model."
            raise Problem(404, CLIENT_ERROR, text)
        inputs = None
        if endpoint.needs_inputs:
            with self._trace.section(f"{self._form.name}-deserialize"):
                inputs = self._form.decode(endpoint.input_type)
        if endpoint.preprocess is not None:
            self._check_client("preprocess")
            inputs = await self._step(endpoint.preprocess, inputs, self._model.threads)
        if name == PREDICT:
            await self._run_main(endpoint, inputs, self._model.slots, self._model.predict_threads)
        else:
            await self._run_main(endpoint, inputs, self._model.alias_slots, self._model.threads)

    async def _run_main(self, endpoint: Endpoint, inputs: Any, slots: Slots | None, threads: Threads) -> None:
        """Run predict or an alias method, in a slot if their number is limited; then postprocess, and answer."""
        main = endpoint.main
        work = self._work(main, inputs) if main.is_function else None
        if slots is not None and not await slots.acquire(self._client, work):
            raise ClientLeft
        slot = Slot(slots, work)
        try:
            if work is None:
                self._check_client(main.name)
                result = await self._step(main, inputs, threads)
            else:
                result = await self._traced(main, self._run_work(work, slots, threads))
            if endpoint.postprocess is not None:
                _refuse_before_postprocess(result)
            elif is_stream(result):
                await self._stream(result, endpoint, threads, slot)
                return
            elif isinstance(result, Response):
                if not isinstance(result, StreamingResponse):
                    slot.release()  # the body is complete, or the model's code need not produce it
                await self._pass_on(result, slot)
                return
        finally:
            slot.release()
        if endpoint.postprocess is not None:
            self._check_client("postprocess")
            result = await self._step(endpoint.postprocess, result, self._model.threads)
            if is_stream(result):
                await self._send_stream(chunks_of(result, self._model.threads), None, endpoint)
                return
            if isinstance(result, Response):
                await self._pass_on(result, slot)
                return
        self._answer(result)

    def _answer(self, result: Any) -> None:
        with self._trace.section(f"{self._form.name}-serialize"):
            answer = self._form.encode(result)
        self._reply.whole(answer)

    # Steps.

    async def _step(self, method: Method, inputs: Any, threads: Threads) -> Any:
        """Call one method of the model. Raises Problem: it failed; ClientLeft: its client left, which cancelled it."""
        return await self._traced(method, self._call(method, self._arguments(method, inputs), threads))

    async def _traced(self, method: Method, step: Coroutine[Any, Any, Any]) -> Any:
        """Await a step in a trace span of its own; raise the same exceptions as `_step`."""
        with self._trace.span(_SPAN_NAMES.get(method.name) or f"call-{method.name}", method.name):
            try:
                return await step
            except ClientLeft:
                raise
            except BaseException as error:
                raise self._problem_of(error) from error

    async def _call(self, method: Method, arguments: tuple[Any, ...], threads: Threads) -> Any:
        if method.is_function:
            return await self._waited_for(await threads.run(method.function, *arguments))
        return await self._waited_for(method.function(*arguments))

    def _work(self, method: Method, inputs: Any) -> SlotWork:
        """Return the call of a plain function as work for a thread, which checks first whether the client left."""
        arguments = self._arguments(method, inputs)

        def call() -> Any:
            self._check_client(method.name)
            return method.function(*arguments)

        return SlotWork(call, _goes_on)

    async def _run_work(self, work: SlotWork, slots: Slots | None, threads: Threads) -> Any:
        """Await the call of a plain function; start it unless the thread that held the slot before has started it."""
        if slots is None:
            threads.start(work)
        elif not work.begun:
            slots.begin(work, threads)
        return await self._waited_for(await work.result())

    def _arguments(self, method: Method, inputs: Any) -> tuple[Any, ...]:
        given = (inputs,) if method.takes_inputs else ()
        return (*given, self._given_request()) if method.takes_request else given

    def _given_request(self) -> ModelRequest:
        if self._request is None:
            self._request = ModelRequest(self._row, self._model.name, self._client)
        return self._request

    async def _waited_for(self, result: Any) -> Any:
        """Await a result that is a coroutine; with ``cancelOnDisconnect``, cancel it when the client leaves."""
        if not inspect.isawaitable(result):
            return result
        if not self._model.cancels_on_disconnect:
            return await result
        task = asyncio.current_task()
        assert task is not None
        cancelled = False

        def cancel() -> None:
            nonlocal cancelled
            cancelled = task.cancel()

        with self._client.calling_when_left(cancel):
            try:
                return await result
            except asyncio.CancelledError:
                if cancelled and task.cancelling() == 1:
                    raise ClientLeft from None
                raise
            finally:
                if cancelled:
                    task.uncancel()

    def _check_client(self, step: str) -> None:
        if self._client.left:
            logger.warning("The client has disconnected, skipping `%s`.", step)
            raise ClientLeft

    def _problem_of(self, error: BaseException) -> Problem:
        """Log an error of the model's code; return the problem for the client, or raise this task's cancellation."""
        if isinstance(error, Problem):
            return error
        if isinstance(error, GeneratorExit) or (isinstance(error, asyncio.CancelledError) and is_cancelled()):
            raise error
        note_error(error)
        device_loss.note_loss(error)
        exc_info = (type(error), error, users_traceback(error))
        if isinstance(error, HTTPException) and _can_be_sent(error):
            logger.error("HTTPException in the model: %s %s", error.status_code, error.detail, exc_info=exc_info)
            return Problem(error.status_code, MODEL_ERROR, error.detail, error.headers)
        logger.error(MODEL_FAILED, exc_info=exc_info)
        return Problem(500, MODEL_ERROR, MODEL_FAILED)

    # Streams.

    async def _stream(self, generator: Any, endpoint: Endpoint, threads: Threads, slot: Slot) -> None:
        """Answer with the chunks of a generator that predict or an alias method returned."""
        chunks = chunks_of(generator, threads)
        with self._trace.span("buffered-response-generator"):
            if not self._form.gathers():
                await self._send_stream(chunks, self._model.streaming_read_timeout, endpoint)
                return
            text = await self._gathered(chunks, endpoint)
        slot.release()
        self._answer(text)

    async def _send_stream(self, chunks: Chunks, gap: float | None, endpoint: Endpoint) -> None:
        headers = self._form.stream_headers

        def send(chunk: Any) -> None:
            self._reply.part(200, headers, self._form.encode_chunk(chunk))

        try:
            await pull(chunks, send, self._client, gap=gap, may_ask=self._may_ask(endpoint))
            if not self._client.left:
                self._reply.end(200, headers)
        except GapTooLong:
            logger.error("The stream is cut: the model has yielded nothing for %g s (streaming_read_timeout)", gap)
            self._reply.part(200, headers, b"")  # the head must be sent by this moment at the latest
            self._reply.cut("The model has yielded nothing for too long.")
        except BaseException as error:
            self._stream_failed(self._problem_of(error))
        finally:
            await close(chunks)
        if self._client.left:
            raise ClientLeft

    def _may_ask(self, endpoint: Endpoint) -> bool:
        """Return whether the model itself may check for its client: it has the request, and no option cancels it."""
        return endpoint.takes_request and not self._model.cancels_on_disconnect

    def _stream_failed(self, problem: Problem) -> None:
        if self._reply.begun and self._model.ends_failed_streams:
            self._reply.end(200, ())
        else:
            self._reply.problem(problem)

    async def _gathered(self, chunks: Chunks, endpoint: Endpoint) -> str:
        pieces: list[bytes] = []

        def add(chunk: Any) -> None:
            pieces.append(bytes(chunk) if isinstance(chunk, bytes | bytearray | memoryview) else str(chunk).encode())

        try:
            await pull(chunks, add, self._client, gap=None, may_ask=self._may_ask(endpoint))
            if not self._client.left:
                return b"".join(pieces).decode()
        except BaseException as error:
            raise self._problem_of(error) from error
        finally:
            await close(chunks)
        raise ClientLeft

    async def _pass_on(self, response: Response, slot: Slot) -> None:
        """Answer with a response that the model made itself."""
        if not self._form.passes_responses:
            text = "The model has answered with an HTTP response of its own, which this protocol has no place for."
            raise Problem(500, MODEL_ERROR, text)
        try:
            await pass_on(response, self._given_request(), self._client, self._reply, slot)
        except BaseException as error:
            self._stream_failed(self._problem_of(error))
        if self._client.left:
            raise ClientLeft


def _goes_on(result: Any) -> bool:
    """Return whether a function's result has yet to run. This is called in the function's thread: run no model code."""
    return issubclass(type(result), GeneratorType | AsyncGeneratorType | CoroutineType | StreamingResponse)


def _refuse_before_postprocess(result: Any) -> None:
    kind = "streaming" if is_stream(result) else "responses" if isinstance(result, Response) else None
    if kind is not None:
        logger.error("predict has returned a %s: %s and postprocess cannot be combined.", type(result).__name__, kind)
        raise Problem(500, MODEL_ERROR, MODEL_FAILED)


def _can_be_sent(error: HTTPException) -> bool:
    """Return whether a response can carry the error's status and detail."""
    try:
        to_json(error.detail)
    except (TypeError, ValueError, RecursionError):
        return False
    return 200 <= error.status_code <= 599
