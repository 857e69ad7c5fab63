"""Requests of the REST form, and what the worker reads of them and answers."""

import json
from typing import Any

import pytest

from ts.apis.open_inference.receive import receive
from ts.apis.open_inference.rest import ENDPOINT
from ts.apis.open_inference.types import InferenceResponse, Tensor
from ts.jobs.errors import RowFailure
from ts.protocol.messages import OPEN_INFERENCE_REST, InferRow

LENGTH = b"inference-header-content-length"
JOB = "job-1"


def received(
    document: Any,
    binary: bytes = b"",
    *,
    length: int | None = None,
    endpoint: str = "",
    declared: Any = None,
    agent: str = "curl/7",
    content_type: str = "",
):
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    headers: list[tuple[Any, Any]] = [(b"host", b"here"), (b"User-Agent", agent.encode())]
    if binary or length is not None:
        headers.append((LENGTH, str(len(text) if length is None else length).encode()))
    if endpoint:
        headers.append((ENDPOINT, endpoint))
    return receive(InferRow(JOB, headers, content_type, text + binary, OPEN_INFERENCE_REST, False), declared or {})


def fp32(data: Any, shape: list[int], **more: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "shape": shape, "datatype": "FP32", "data": data}], **more}


def answer(to: Any, *outputs: Tensor, **parameters: Any) -> tuple[dict[str, str], Any, bytes]:
    headers, body = to.encode(InferenceResponse("m", "1", None, parameters, list(outputs)))
    named = {name.lower(): value for name, value in headers}
    length = int(named.get("inference-header-content-length", len(body)))
    return named, json.loads(bytes(body[:length])), bytes(body[length:])


def refusal(*arguments: Any, **options: Any) -> RowFailure:
    with pytest.raises(RowFailure) as caught:
        received(*arguments, **options)
    return caught.value
