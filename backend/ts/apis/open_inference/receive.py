"""Decodes the wire row of an Open Inference request.

The row's protocol states the form of the request. The response has the form that the client asked for: JSON or binary
over REST, typed or raw contents over gRPC.
"""

from collections.abc import Mapping
from typing import Any

from ts.apis.open_inference.types import Received
from ts.protocol.messages import OPEN_INFERENCE_GRPC, OPEN_INFERENCE_REST, InferRow

_NOTHING: Mapping[str, Any] = {}


def receive(row: InferRow, declared: Mapping[str, Any] = _NOTHING, *, as_mlserver: bool = False) -> Received:
    """Decode a row of one of the Open Inference protocols.

    Args:
        declared: The model's ``inputs`` and ``outputs``, mappings with ``name``, ``datatype`` and ``shape``; the text
            form of ``generate`` and a raw body without JSON need them.
        as_mlserver: Whether a text may be any value of JSON, texts may have any shape, and one size may be -1, as
            MLServer takes them.

    Raises:
        Failure: The row is not a valid request.
        ValueError: The row is of another protocol.
    """
    protocol = row.protocol
    if protocol == OPEN_INFERENCE_REST:
        from ts.apis.open_inference import rest

        return rest.receive(
            row.headers, row.body, declared, row.job_id, content_type=row.content_type, as_mlserver=as_mlserver
        )
    if protocol == OPEN_INFERENCE_GRPC:
        from ts.apis.open_inference import grpc

        return grpc.receive(row.headers, row.body, as_mlserver=as_mlserver)
    raise ValueError(f"the protocol {protocol!r} is none of Open Inference")


def receive_input(first: Received, body: bytes, *, as_mlserver: bool = False) -> Received:
    """Decode a further input of a gRPC job. Raises Failure: it is invalid; ValueError: the job came over REST."""
    from ts.apis.open_inference import grpc

    if not isinstance(first, grpc.GrpcRequest):
        raise ValueError("only gRPC has further inputs")
    return grpc.receive(first.headers, body, as_mlserver=as_mlserver)
