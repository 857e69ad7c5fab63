"""Converts ``ModelInfer`` messages with tensors in shared memory into messages with raw contents, and answers back."""

from collections.abc import Callable, Coroutine
from typing import Any, Final

from google.protobuf.message import DecodeError

from torchserve_py.apis.grpc.grpc_call import GrpcCall
from torchserve_py.apis.grpc.open_inference_dialect import OpenInferenceMessages
from torchserve_py.apis.grpc.open_inference_requests import values_of
from torchserve_py.apis.open_inference.shared_memory import RegionSlice, SharedMemory
from torchserve_py.apis.open_inference.shared_tensors import OFFSET, REGION, SIZE, Places, place_of
from torchserve_py.base.bounded_json import MAX_PARSED
from torchserve_py.core.jobs.parts import Part
from torchserve_py.endpoints.failures import bad_request
from ts.apis.open_inference.protos.infer_pb2 import ModelInferRequest, ModelInferResponse
from ts.apis.open_inference.wire_fields import fields_of

_RAW_CONTENTS: Final = ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
#: How many fields (tensors, parameters) a message may have.
_MAX_FIELDS: Final = 1000


def with_raw_contents(memory: SharedMemory, body: bytes, hold: Callable[[int], None]) -> tuple[bytes, Places]:
    """Return a request with its inputs in shared memory as raw contents, and the places for its outputs.

    Raises EndpointError: the bytes are no request, a place does not exist, or another input is not in the raw form.
    """
    try:
        fields = fields_of(body, _MAX_FIELDS)
        others = sum(each.end - each.start for each in fields if each.number != _RAW_CONTENTS)
        if others > MAX_PARSED:
            raise bad_request(f"Beside its raw contents the message may have {MAX_PARSED} bytes, it has {others}.")
        message = ModelInferRequest.FromString(body)
    except (DecodeError, ValueError) as error:
        raise bad_request(f"The message is no inference.ModelInferRequest: {error}") from error
    places = [_take(memory, f"Input {each.name!r}", each.parameters) for each in message.inputs]
    wanted = {each.name: _take(memory, f"Output {each.name!r}", each.parameters) for each in message.outputs}
    sent = list(message.raw_input_contents)
    if len(sent) != places.count(None):
        raise bad_request(
            f"raw_input_contents has {len(sent)} entries for {places.count(None)} inputs outside shared memory; it"
            " needs one for each."
        )
    hold(memory.check_total([place for place in places if place is not None]))
    del message.raw_input_contents[:]
    contents = iter(sent)
    message.raw_input_contents.extend(next(contents) if place is None else memory.read(place) for place in places)
    return message.SerializeToString(), {name: place for name, place in wanted.items() if place is not None}


def _take(memory: SharedMemory, what: str, parameters: Any) -> RegionSlice | None:
    named = {name: parameters[name] for name in (REGION, OFFSET, SIZE) if name in parameters}
    place = place_of(memory, what, values_of(named))
    for name in named:
        del parameters[name]
    return place


class SharedMemoryMessages(OpenInferenceMessages):
    """The answer to a request that wants outputs in shared memory."""

    def __init__(self, memory: SharedMemory, outputs: Places) -> None:
        self._memory = memory
        self._outputs = outputs

    def answer(self, call: GrpcCall, part: Part) -> Coroutine[Any, Any, bytes]:
        return self._without_outputs(call, part)

    async def _without_outputs(self, call: GrpcCall, part: Part) -> bytes:
        message = ModelInferResponse.FromString(bytes(await self._only(call, part)))
        kept = []
        for output, data in zip(message.outputs, list(message.raw_output_contents), strict=True):
            place = self._outputs.get(output.name)
            if place is None:
                kept.append(data)
                continue
            self._memory.write(place, memoryview(data))
            kept.append(b"")  # as Triton: clients find the contents by the number of the output
            output.parameters.clear()
            output.parameters[REGION].string_param = place.region
            output.parameters[OFFSET].int64_param = place.offset
            output.parameters[SIZE].int64_param = len(data)
        del message.raw_output_contents[:]
        message.raw_output_contents.extend(kept)
        return bytes(message.SerializeToString())
