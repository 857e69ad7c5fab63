"""The messages of inference and metadata."""

from __future__ import annotations

from enum import Enum
from typing import Any

from pydantic import ConfigDict

from ts.mlserver.types.base import BaseModel
from ts.mlserver.types.tensor_data import TensorData


class MetadataServerResponse(BaseModel):
    """What a server says about itself."""

    name: str
    version: str
    extensions: list[str]


class MetadataServerErrorResponse(BaseModel):
    """A server's error."""

    error: str


class MetadataModelErrorResponse(BaseModel):
    """An error that concerns a model."""

    error: str


class Parameters(BaseModel):
    """Parameters of a request, response or tensor; any name is allowed."""

    model_config = ConfigDict(extra="allow")

    content_type: str | None = None
    headers: dict[str, Any] | None = None


class RequestOutput(BaseModel):
    """An output that the client asks for."""

    name: str
    parameters: Parameters | None = None


class InferenceErrorResponse(BaseModel):
    """A failed request's error."""

    error: str | None = None


class Datatype(Enum):
    """Types of a tensor's elements. (MLServer's own lacks BF16.)"""

    BOOL = "BOOL"
    UINT8 = "UINT8"
    UINT16 = "UINT16"
    UINT32 = "UINT32"
    UINT64 = "UINT64"
    INT8 = "INT8"
    INT16 = "INT16"
    INT32 = "INT32"
    INT64 = "INT64"
    FP16 = "FP16"
    BF16 = "BF16"
    FP32 = "FP32"
    FP64 = "FP64"
    BYTES = "BYTES"


class MetadataTensor(BaseModel):
    """What a model says about one of its inputs or outputs; -1 in the shape is any size."""

    name: str
    datatype: Datatype
    shape: list[int]
    parameters: Parameters | None = None


class RequestInput(BaseModel):
    """An input tensor."""

    name: str
    shape: list[int]
    datatype: Datatype
    parameters: Parameters | None = None
    data: TensorData


class ResponseOutput(BaseModel):
    """An output tensor."""

    name: str
    shape: list[int]
    datatype: Datatype
    parameters: Parameters | None = None
    data: TensorData


class InferenceResponse(BaseModel):
    """What a model answers."""

    model_name: str
    model_version: str | None = None
    id: str | None = None
    parameters: Parameters | None = None
    outputs: list[ResponseOutput]


class MetadataModelResponse(BaseModel):
    """What a model says about itself."""

    name: str
    versions: list[str] | None = None
    platform: str
    inputs: list[MetadataTensor] | None = None
    outputs: list[MetadataTensor] | None = None
    parameters: Parameters | None = None


class InferenceRequest(BaseModel):
    """What a model is asked."""

    id: str | None = None
    parameters: Parameters | None = None
    inputs: list[RequestInput]
    outputs: list[RequestOutput] | None = None
