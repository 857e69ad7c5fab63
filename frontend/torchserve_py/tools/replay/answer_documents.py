"""Answers as values that can be compared: what a worker wrote into the journal, and what a client gets.

A stream is a list of messages; the journal has the size of each. Tensors and arrays become lists of their elements, so
that their form and their order of bytes do not count.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgpack
from google.protobuf.message import DecodeError

from torchserve_py.apis.grpc.open_inference_requests import values_of
from torchserve_py.tools.journal.journal_record import JournalRecord, content_of
from torchserve_py.tools.replay.raw_elements import array_elements, tensor_elements
from torchserve_py.tools.replay.recorded_outcomes import is_stream
from torchserve_py.versions.traffic.answer_comparison import documents_in, json_or_bytes
from ts.apis.open_inference.protos.infer_pb2 import ModelInferResponse
from ts.protocol.backed_msgpack import unpack
from ts.protocol.datatypes import DATATYPES
from ts.protocol.messages import OPEN_INFERENCE_GRPC, OPEN_INFERENCE_REST, OPENPI

#: The header of an answer with the size of its JSON, behind which the data of tensors are.
_LENGTH: Final = "inference-header-content-length"
_BINARY_SIZE: Final = "binary_data_size"
_EVENT: Final = b"data: "
#: What openpi's endpoint adds to the actions.
_TIMING: Final = "server_timing"


class NotComparable(Exception):
    """A recorded answer does not say all that a comparison needs; the message says what."""


def recorded_bytes(record: JournalRecord) -> bytes:
    """Return what there is of the recorded answer. Raises NotComparable."""
    try:
        return content_of(record["answer"], record["answer_form"])
    except ValueError as error:
        raise NotComparable("the recorded answer cannot be read") from error


def recorded_documents(record: JournalRecord) -> Sequence[Any]:
    """Return the recorded answer. Raises NotComparable."""
    if record["answer_cut"]:
        raise NotComparable("the recorded answer was cut (maxBodyBytes)")
    answer = recorded_bytes(record)
    if not is_stream(record):
        return _read(record, answer, record["answer_headers"])
    sizes, messages, at = record["part_bytes"], [], 0
    if sum(sizes) != len(answer):
        raise NotComparable(f"the recorded stream has more parts than a journal tells apart ({len(sizes)})")
    for size in sizes:
        messages.append(answer[at : at + size])
        at += size
    return [each for message in messages if message for each in _read(record, message, {})]


def replayed_documents(record: JournalRecord, messages: Sequence[bytes], headers: Mapping[str, str]) -> Sequence[Any]:
    """Return the answer to a replayed request: the messages of a stream over gRPC, or a body with its headers."""
    if is_stream(record) and record["protocol"] == OPEN_INFERENCE_REST:
        lines = b"".join(messages).splitlines()
        messages = [line.removeprefix(_EVENT) for line in lines if line.startswith(_EVENT)]
    return [each for message in messages for each in _read(record, message, headers)]


def _read(record: JournalRecord, message: bytes, headers: Mapping[str, str]) -> Sequence[Any]:
    match record["protocol"]:
        case str(protocol) if protocol == OPEN_INFERENCE_GRPC:
            return [_response(message)]
        case str(protocol) if protocol == OPENPI:
            return [_actions(message)]
        case str(protocol) if protocol == OPEN_INFERENCE_REST and _LENGTH in headers:
            return [_with_tensors(message, headers[_LENGTH])]
        case str(protocol) if protocol == OPEN_INFERENCE_REST:
            return [json_or_bytes(message)]
    return documents_in(message)


def _response(message: bytes) -> Any:
    """Return what a ``ModelInferResponse`` says, as the protocol's JSON has it."""
    try:
        response = ModelInferResponse.FromString(message)
    except DecodeError:
        return message
    raw: Iterator[bytes] = iter(response.raw_output_contents)
    outputs = []
    for each in response.outputs:
        field = DATATYPES[each.datatype].contents if each.datatype in DATATYPES else ""
        has_own = each.HasField("contents") and field
        data = list(getattr(each.contents, field)) if has_own else tensor_elements(each.datatype, next(raw, b""))
        told = {"name": each.name, "datatype": each.datatype, "shape": list(each.shape), "data": data}
        outputs.append({**told, "parameters": values_of(each.parameters)})
    head = {"model_name": response.model_name, "model_version": response.model_version, "id": response.id}
    return {**head, "parameters": values_of(response.parameters), "outputs": outputs}


def _with_tensors(message: bytes, length: str) -> Any:
    """Return a response whose JSON has this length, with the data of the tensors behind it in their places."""
    try:
        response, at = json.loads(message[: int(length)]), int(length)
        for each in response["outputs"]:
            if (size := (each.get("parameters") or {}).pop(_BINARY_SIZE, None)) is not None:
                each["data"] = tensor_elements(each["datatype"], message[at : at + size])
                at += size
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return message
    return response


def _actions(message: bytes) -> Any:
    try:
        actions = unpack(message, object_hook=_plain, strict_map_key=False)
    except (ValueError, TypeError, msgpack.UnpackException):
        return message
    return {name: value for name, value in actions.items() if name != _TIMING} if isinstance(actions, dict) else actions


def _plain(given: dict[Any, Any]) -> Any:
    """Return what a map of openpi's says: an array or a scalar of numpy's as plain values."""
    dtype, data = given.get(b"dtype"), given.get(b"data")
    if b"__ndarray__" in given and isinstance(dtype, str) and isinstance(data, bytes):
        return {"dtype": dtype, "shape": given.get(b"shape"), "data": array_elements(dtype, data)}
    if b"__npgeneric__" in given:
        return {"dtype": dtype, "data": data}
    return {name if isinstance(name, str) else repr(name): value for name, value in given.items()}
