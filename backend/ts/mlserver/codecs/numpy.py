"""Arrays: a tensor as a ``numpy.ndarray``."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import numpy as np

from ts.mlserver.codecs.base import InputCodec
from ts.mlserver.codecs.errors import CodecError
from ts.mlserver.codecs.lists import is_list_of
from ts.mlserver.codecs.registry import register_input_codec, register_request_codec
from ts.mlserver.codecs.string import encode_str
from ts.mlserver.codecs.utils import (
    InputOrOutput,
    SingleInputRequestCodec,
    as_input,
    inject_batch_dimension,
    new_output,
)
from ts.mlserver.types import Datatype, RequestInput, ResponseOutput, TensorData

_Array = np.ndarray[Any, Any]

#: numpy has no BF16; float32 holds every value of it.
_TYPES: Final = {
    Datatype.BOOL: "bool",
    Datatype.UINT8: "uint8",
    Datatype.UINT16: "uint16",
    Datatype.UINT32: "uint32",
    Datatype.UINT64: "uint64",
    Datatype.INT8: "int8",
    Datatype.INT16: "int16",
    Datatype.INT32: "int32",
    Datatype.INT64: "int64",
    Datatype.FP16: "float16",
    Datatype.BF16: "float32",
    Datatype.FP32: "float32",
    Datatype.FP64: "float64",
    Datatype.BYTES: "bytes",
}
_DATATYPES: Final = {name: datatype for datatype, name in _TYPES.items() if datatype is not Datatype.BF16}
_DATATYPES_BY_KIND: Final = {"O": Datatype.BYTES, "S": Datatype.BYTES, "U": Datatype.BYTES, "T": Datatype.BYTES}


def to_dtype(input_or_output: InputOrOutput) -> np.dtype[Any]:
    """Return the array type for a tensor: of BYTES text if its data are text, else bytes as long as the last
    dimension says."""
    datatype = Datatype(input_or_output.datatype)
    if datatype is not Datatype.BYTES:
        return np.dtype(_TYPES[datatype])
    if is_list_of(input_or_output.data.root, str):
        return np.dtype(str)
    return np.dtype((bytes, input_or_output.shape[-1]))


def to_datatype(dtype: Any) -> Datatype:
    """Return the datatype for an array type.

    Raises:
        CodecError: The protocol has none.
    """
    found = _DATATYPES.get(str(dtype)) or _DATATYPES_BY_KIND.get(getattr(dtype, "kind", ""))
    if found is None:
        raise CodecError(f"the protocol has no datatype for arrays of {dtype}")
    return found


def convert_nan(val: Any) -> Any:
    """Return None for NaN, and anything else as it is."""
    return None if isinstance(val, float | np.floating) and np.isnan(val) else val


def _decode(tensor: InputOrOutput) -> _Array:
    array = tensor.data.array
    try:
        if array is not None and array.dtype == to_dtype(tensor):
            return array.reshape(tensor.shape).copy()  # models write to what they get
        data, dtype = tensor.data.root, to_dtype(tensor)
        if Datatype(tensor.datatype) is Datatype.BYTES and data and is_list_of(data, bytes):
            # Every element may hold several values, each as long as the last dimension says.
            return np.concatenate([np.frombuffer(buffer, dtype) for buffer in data]).reshape(tensor.shape)
        return np.array(data, dtype).reshape(tensor.shape)
    except (TypeError, ValueError, OverflowError, IndexError) as error:
        raise CodecError(
            f"{tensor.name!r} is no array of {tensor.datatype} with the shape {tensor.shape}: {error}"
        ) from error


def _data(array: _Array, datatype: Datatype) -> Any:
    if datatype is not Datatype.BYTES:
        return TensorData.of_array(array.copy())
    if array.dtype.kind == "U":
        return [encode_str(element) for element in array.ravel().tolist()]
    if array.dtype.kind == "S":
        return [array.tobytes()]
    return array.ravel().tolist()


@register_input_codec
class NumpyCodec(InputCodec):
    """Content type ``np``: a ``numpy.ndarray``."""

    ContentType = "np"
    TypeHint = np.ndarray

    @classmethod
    def can_encode(cls, payload: Any) -> bool:
        """Return whether ``payload`` is an array."""
        return isinstance(payload, np.ndarray)

    @classmethod
    def encode_output(cls, name: str, payload: _Array, **kwargs: Any) -> ResponseOutput:
        """Make an output; an array of one dimension [N] has the shape [N, 1] there."""
        datatype = to_datatype(payload.dtype)
        shape = inject_batch_dimension(list(payload.shape))
        return new_output(name, shape, datatype.value, _data(payload, datatype), cls.ContentType)

    @classmethod
    def decode_output(cls, response_output: ResponseOutput) -> _Array:
        """Return an output as an array of its shape."""
        return _decode(response_output)

    @classmethod
    def encode_input(cls, name: str, payload: _Array, **kwargs: Any) -> RequestInput:
        """Make an input."""
        return as_input(cls.encode_output(name, payload))

    @classmethod
    def decode_input(cls, request_input: RequestInput) -> _Array:
        """Return an input as an array of its shape."""
        return _decode(request_input)


@register_request_codec
class NumpyRequestCodec(SingleInputRequestCodec):
    """Content type ``np`` of a request: its only input is an array."""

    InputCodec: ClassVar[type[InputCodec]] = NumpyCodec
    ContentType = NumpyCodec.ContentType
