"""Adaptive batching: requests that arrive close together are one call of ``predict``.

A batch is run when it is full, or when its first request has waited as long as it may; several batches may run at once.
A request that is cancelled leaves its batch: what has not begun runs without it, what runs goes on for the others, and
is cancelled only when all its clients have left.

The rules are MLServer's: inputs of the same name are joined along their first dimension. Request parameters, and those
of requested outputs: the last request wins. Parameters of inputs become lists with the value of each request, but
``content_type`` and ``headers``. Of a response the rows of each output are dealt out as they came; of a parameter that
is a list every request gets its own element, as text. Only requests that fit together are joined (`fingerprint`);
MLServer joins all there are and fails.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from mlserver import types

from ts.apis.open_inference.tensors import flat, numpy_of, raw_bytes
from ts.apis.open_inference.types import Tensor
from ts.contracts.async_calls.async_runtime import is_cancelled
from ts.contracts.mlserver.conversion import parameters_of, unread_tensor
from ts.contracts.mlserver.unread_data import UnreadData
from ts.jobs.errors import RowFailure
from ts.protocol.datatypes import DATATYPES
from ts.protocol.log_records import Ids, running

_OWN_FOR_EVERY_REQUEST = ("content_type", "headers")

Predict = Callable[[types.InferenceRequest], Awaitable[types.InferenceResponse]]


@dataclass(slots=True, eq=False)
class _Waiting:
    request: types.InferenceRequest
    answer: asyncio.Future[types.InferenceResponse]
    ids: Callable[[], Ids]


class _Gathering(NamedTuple):
    members: list[_Waiting]
    timer: asyncio.TimerHandle


class AdaptiveBatcher:
    """Gathers requests.

    Args:
        max_batch_time: The longest that the first request of a batch waits for others (seconds).
    """

    def __init__(self, predict: Predict, max_batch_size: int, max_batch_time: float) -> None:
        self._predict = predict
        self._max_batch_size = max_batch_size
        self._max_batch_time = max_batch_time
        self._gathering: dict[Hashable, _Gathering] = {}
        self._running: set[asyncio.Task[None]] = set()

    async def predict(self, request: types.InferenceRequest) -> types.InferenceResponse:
        """Answer a request, together with others. Raises Exception: whatever ``predict`` raised for the batch."""
        key = fingerprint(request)
        if key is None:
            return await self._predict(request)
        loop = asyncio.get_running_loop()
        waiting = _Waiting(request, loop.create_future(), running.get())
        gathering = self._gathering.get(key)
        if gathering is None:
            timer = loop.call_later(self._max_batch_time, self._start, key)
            gathering = self._gathering[key] = _Gathering([], timer)
        gathering.members.append(waiting)
        if len(gathering.members) == self._max_batch_size:
            self._start(key)
        try:
            return await waiting.answer
        finally:
            gathering = self._gathering.get(key)
            if gathering is not None and waiting in gathering.members:  # it was cancelled before its batch began
                gathering.members.remove(waiting)
                if not gathering.members:
                    gathering.timer.cancel()
                    del self._gathering[key]

    def _start(self, key: Hashable) -> None:
        members, timer = self._gathering.pop(key)
        timer.cancel()
        task = asyncio.get_running_loop().create_task(self._run(members))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

        def end_if_alone(_: asyncio.Future[types.InferenceResponse]) -> None:
            if all(member.answer.cancelled() for member in members):
                task.cancel()

        for member in members:
            member.answer.add_done_callback(end_if_alone)

    async def _run(self, members: Sequence[_Waiting]) -> None:
        wanted = [member for member in members if not member.answer.done()]
        if not wanted:
            return
        requests = [member.request for member in wanted]
        # Without this, all that the model logs would be about the request that completed the batch.
        running.set(lambda: [pair for member in wanted for pair in member.ids()])
        try:
            if len(requests) == 1:
                responses = [await self._predict(requests[0])]
            else:
                responses = split(await self._predict(merge(requests)), requests)
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise  # every client has left; any other cancellation is the model's own, and its requests wait
            for member in wanted:
                if not member.answer.done():
                    member.answer.set_exception(error)
            return
        for member, response in zip(wanted, responses, strict=True):
            if not member.answer.done():
                member.answer.set_result(response)


def fingerprint(request: types.InferenceRequest) -> Hashable | None:
    """Return a value that is equal for requests that can be joined; None if the request has to run alone."""
    if any(map(_has_other_shape, request.inputs)):
        return None
    sizes = {tuple(each.shape[:1]) for each in request.inputs}
    if len(sizes) != 1 or () in sizes:
        return None
    outputs = None if request.outputs is None else tuple([output.name for output in request.outputs])
    inputs = [(each.name, each.datatype, tuple(each.shape[1:]), _content_type(each)) for each in request.inputs]
    return (tuple(sorted(inputs, key=str)), outputs, _content_type(request))


def _has_other_shape(text: types.RequestInput) -> bool:
    """Whether an input holds texts whose shape does not say how many there are, but perhaps how long they are."""
    datatype: Any = text.datatype  # MLServer keeps the value of its enumeration
    if datatype != "BYTES" or unread_tensor(text.data) is not None:
        return False
    elements = text.data.root
    return isinstance(elements, list) and len(elements) != prod(text.shape)


def merge(requests: Sequence[types.InferenceRequest]) -> types.InferenceRequest:
    """Join requests that have the same fingerprint."""
    first = requests[0]
    by_name = [{each.name: each for each in request.inputs} for request in requests]
    outputs = None
    if first.outputs is not None:
        outputs = [
            types.RequestOutput.model_construct(
                name=output.name,
                parameters=_last_wins(request.outputs[place] for request in requests if request.outputs),
            )
            for place, output in enumerate(first.outputs)
        ]
    return types.InferenceRequest.model_construct(
        parameters=_last_wins(requests),
        inputs=[_merge_inputs([inputs[each.name] for inputs in by_name]) for each in first.inputs],
        outputs=outputs,
    )


def split(response: Any, requests: Sequence[types.InferenceRequest]) -> list[types.InferenceResponse]:
    """Return the responses to the requests that were joined. Raises Failure: the number of rows differs."""
    if not isinstance(response, types.InferenceResponse):
        raise RowFailure(500, f"The model returned a {type(response).__name__}; it must be an InferenceResponse.")
    counts = [int(request.inputs[0].shape[0]) for request in requests]
    outputs = [_split_output(output, counts) for output in response.outputs]
    return [
        types.InferenceResponse.model_construct(
            id=request.id,
            model_name=response.model_name,
            model_version=response.model_version,
            parameters=None if response.parameters is None else response.parameters.model_copy(deep=True),
            outputs=[pieces[place] for pieces in outputs],
        )
        for place, request in enumerate(requests)
    ]


def _content_type(parametrised: Any) -> str | None:
    return parametrised.parameters.content_type if parametrised.parameters else None


def _last_wins(parametrised: Iterable[Any]) -> types.Parameters | None:
    merged: dict[str, Any] = {}
    for each in parametrised:
        merged |= parameters_of(each)
    return types.Parameters.model_validate(merged) if merged else None


def _merge_inputs(inputs: Sequence[types.RequestInput]) -> types.RequestInput:
    first = inputs[0]
    shape = [sum(each.shape[0] for each in inputs), *first.shape[1:]]
    return types.RequestInput.model_construct(
        name=first.name,
        shape=shape,
        datatype=first.datatype,
        parameters=_merge_input_parameters([parameters_of(each) for each in inputs]),
        data=_merge_data([each.data for each in inputs], shape),
    )


def _merge_input_parameters(all_parameters: Sequence[Mapping[str, Any]]) -> types.Parameters | None:
    merged = {name: value for parameters in all_parameters for name, value in parameters.items()}
    for name in merged:
        if name not in _OWN_FOR_EVERY_REQUEST and all(name in each for each in all_parameters):
            merged[name] = [each[name] for each in all_parameters]
    return types.Parameters.model_validate(merged) if merged else None


def _merge_data(all_data: Sequence[types.TensorData], shape: list[int]) -> types.TensorData:
    unread = [tensor for data in all_data if (tensor := unread_tensor(data)) is not None]
    if len(unread) < len(all_data) or len({tensor.datatype for tensor in unread}) > 1:
        return types.TensorData.model_construct([element for data in all_data for element in data.root])
    return UnreadData.of_tensor(Tensor("", unread[0].datatype, shape, _joined(unread)))


def _joined(tensors: Sequence[Tensor]) -> Any:
    if all(tensor.is_raw for tensor in tensors):
        return b"".join(map(raw_bytes, tensors))
    import numpy as np

    # Arrays of JSON may exceed the datatype, in digits or in size. Converting them here would fail the other requests;
    # the later conversion fails only the request that has sent them.
    return np.concatenate([numpy_of(tensor).reshape(-1) if tensor.is_raw else tensor.data for tensor in tensors])


def _split_output(output: types.ResponseOutput, counts: Sequence[int]) -> list[types.ResponseOutput]:
    rows = output.shape[0] if output.shape else 1
    if rows != sum(counts):
        raise RowFailure(
            500,
            f"The model got a batch of {sum(counts)} rows but its output {output.name!r} has the shape "
            f"{list(output.shape)}; with max_batch_size the first dimension must be that of the inputs.",
        )
    parameters = parameters_of(output)
    pieces, row = [], 0
    for place, (count, data) in enumerate(zip(counts, _split_data(output, counts), strict=True)):
        pieces.append(
            types.ResponseOutput.model_construct(
                name=output.name,
                shape=[count, *output.shape[1:]],
                datatype=output.datatype,
                parameters=_parameters_of_piece(parameters, place, row, counts) if output.parameters else None,
                data=data,
            )
        )
        row += count
    return pieces


def _split_data(output: types.ResponseOutput, counts: Sequence[int]) -> Iterator[types.TensorData]:
    """Yield the data of so many rows each."""
    size, row = prod(output.shape[1:]), 0
    unread = unread_tensor(output.data)
    item = 0 if unread is None else DATATYPES[unread.datatype].size
    if unread is not None and item:
        data: Any = memoryview(raw_bytes(unread)).cast("B") if unread.is_raw else unread.data
        size_of_row = size * item if unread.is_raw else size
        for count in counts:
            piece = data[row * size_of_row : (row + count) * size_of_row]
            yield UnreadData.of_tensor(Tensor("", unread.datatype, [count, *output.shape[1:]], piece))
            row += count
        return
    data = flat(getattr(output.data, "root", output.data))
    for count in counts:
        yield types.TensorData.model_construct(data[row * size : (row + count) * size])
        row += count


def _parameters_of_piece(
    parameters: Mapping[str, Any], place: int, row: int, counts: Sequence[int]
) -> types.Parameters:
    """Return the parameters of one request; a list has an element for every row, or one for every request."""
    own: dict[str, Any] = {}
    for name, value in parameters.items():
        if name in _OWN_FOR_EVERY_REQUEST or not isinstance(value, list | tuple):
            own[name] = value
            continue
        index = place if len(value) == len(counts) else row
        if index < len(value):
            own[name] = str(value[index])
    return types.Parameters.model_validate(own)
