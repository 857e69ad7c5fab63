"""The parts of an Open Inference request and response, independent of their form on the wire.

Plain values only: a worker whose model needs no numpy does not import it for this.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ts.protocol.frames import Buffer

if TYPE_CHECKING:
    import numpy as np

#: A parameter's value: what JSON can say. Over gRPC only str, int, float and bool exist.
Parameters = dict[str, Any]
#: Names and values of response headers (over gRPC: trailing metadata).
Headers = list[tuple[str, str]]


@dataclass(slots=True)
class Tensor:
    """One input or output.

    Attributes:
        datatype: One of `ts.apis.open_inference.tensors.DATATYPES`.
        shape: Its dimensions, none negative; [] is a scalar of one element.
        data: A flat list of elements in row-major order, or the raw form: little endian and row-major, every element of
            BYTES after its length (32 bits). In a list, elements of BYTES are ``str`` (from JSON) or ``bytes``. Numbers
            of large JSON come as a flat array, whose type may be wider than the datatype (JSON knows no FP32).
        parameters: Further properties, such as ``content_type``.
    """

    name: str
    datatype: str
    shape: list[int]
    data: list[Any] | bytes | bytearray | memoryview | np.ndarray[Any, Any]
    parameters: Parameters = field(default_factory=dict)

    @property
    def is_raw(self) -> bool:
        """Whether the data are in the raw form."""
        return isinstance(self.data, bytes | bytearray | memoryview)


@dataclass(slots=True)
class RequestedOutput:
    """An output that the client asks for."""

    name: str
    parameters: Parameters = field(default_factory=dict)


@dataclass(slots=True)
class InferenceRequest:
    """One request.

    Attributes:
        model_name: The model, as the client named it.
        model_version: The version, or "" if the client named none.
        id: The client's id of the request, or None; over REST a request without one gets a new UUID.
        outputs: The outputs that the client asks for; None for all.
    """

    model_name: str
    model_version: str
    id: str | None
    parameters: Parameters
    inputs: list[Tensor]
    outputs: list[RequestedOutput] | None = None


@dataclass(slots=True)
class InferenceResponse:
    """One response, or one of several to the same request; an ``id`` of None stands for the request's."""

    model_name: str
    model_version: str | None = None
    id: str | None = None
    parameters: Parameters = field(default_factory=dict)
    outputs: list[Tensor] = field(default_factory=list)


class Received(Protocol):
    """A request, and the form in which its client wants the answer."""

    request: InferenceRequest

    def encode(self, response: InferenceResponse) -> tuple[Headers, Buffer]:
        """Return headers and body for a response, with only the outputs that the client asked for.

        Where the response has no id, it gets the request's. Raises Failure: the client asked for an output that does
        not exist, or its form cannot represent the response.
        """
