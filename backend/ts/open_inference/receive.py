"""Decodes the wire row of an Open Inference request.

The row's protocol states the form of the request. The response has the form that the client asked for: JSON or binary
over REST, typed or raw contents over gRPC.
"""

from collections.abc import Mapping
from typing import Any

from ts.open_inference.types import Received
from ts.protocol.messages import OPEN_INFERENCE_GRPC, OPEN_INFERENCE_REST, InferRow

_NOTHING: Mapping[str, Any] = {}


def receive(row: InferRow, declared: Mapping[str, Any] = _NOTHING, *, length_as_shape: bool = False) -> Received:
    """Decode a row of one of the Open Inference protocols.

    Raises Failure: the row is not a valid request; ValueError: the row is of another protocol.

    Args:
        declared: The model's declarations: under ``inputs`` and ``outputs`` a list of mappings with ``name``,
            ``datatype`` and ``shape``. The text form of ``generate`` and a raw body without JSON need it.
        length_as_shape: Whether one text may have its length as shape, see `tensors.is_text_of_that_length`.
    """
    protocol = row[4]
    if protocol == OPEN_INFERENCE_REST:
        from ts.open_inference import rest

        return rest.receive(row[1], row[3], declared, row[0], length_as_shape=length_as_shape)
    if protocol == OPEN_INFERENCE_GRPC:
        from ts.open_inference import grpc

        return grpc.receive(row[1], row[3], length_as_shape=length_as_shape)
    raise ValueError(f"the protocol {protocol!r} is none of Open Inference")


def receive_input(first: Received, body: bytes, *, length_as_shape: bool = False) -> Received:
    """Decode a further input of the job that ``first`` opened (gRPC only: over REST there is one input).

    Raises Failure: the body is not a valid request; ValueError: the protocol knows no further inputs.
    """
    from ts.open_inference import grpc

    if not isinstance(first, grpc.GrpcRequest):
        raise ValueError("only gRPC has further inputs")
    return grpc.receive(first.headers, body, length_as_shape=length_as_shape)
