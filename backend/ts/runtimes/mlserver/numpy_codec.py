"""MLServer's numpy codec, made to take and give blocks of memory in place of lists.

What the codec decodes and encodes is the same; a megabyte takes some microseconds instead of 45 ms.
"""

from __future__ import annotations

from typing import Any, Final

from mlserver.codecs import numpy as codec
from mlserver.codecs.utils import inject_batch_dimension
from mlserver.types import Parameters, RequestInput, ResponseOutput

from ts.open_inference.unread import Unread

#: numpy's kinds of truth values, integers and floats, whose memory is sent as it is.
_KINDS: Final = "biuf"


def take_memory(unread_data: type[Unread]) -> None:
    """Let `mlserver.codecs.NumpyCodec` decode ``unread_data`` and encode arrays of numbers as such."""
    numpy_codec: Any = codec.NumpyCodec
    decode, encode = numpy_codec.decode_input, numpy_codec.encode_output
    if getattr(decode, "takes_memory", False):
        return

    def decode_input(cls: Any, /, request_input: RequestInput | ResponseOutput) -> Any:
        data: Any = request_input.data
        array = data.array if isinstance(data, unread_data) else None
        if array is None or array.dtype != codec.to_dtype(request_input):
            return decode(request_input)
        return array.copy().reshape(request_input.shape)  # models write to what they get

    def encode_output(cls: Any, /, name: str, payload: Any, **options: Any) -> ResponseOutput:
        if payload.dtype.kind not in _KINDS:
            output: ResponseOutput = encode(name, payload, **options)
            return output
        data: Any = unread_data.of_array(payload.copy())
        return ResponseOutput(
            name=name,
            datatype=codec.to_datatype(payload.dtype),
            shape=inject_batch_dimension(list(payload.shape)),
            data=data,
            parameters=Parameters(content_type=cls.ContentType),
        )

    decode_input.takes_memory = True  # type: ignore[attr-defined]
    numpy_codec.decode_input = classmethod(decode_input)
    numpy_codec.encode_output = classmethod(encode_output)
