"""Codecs: between the tensors of the protocol and Python types.

The codecs for numpy and pandas are imported when they are asked for.
"""

import importlib
from typing import TYPE_CHECKING, Any

from ts.mlserver.codecs.base import InputCodec, InputCodecLike, RequestCodec, RequestCodecLike
from ts.mlserver.codecs.base64 import Base64Codec
from ts.mlserver.codecs.datetime import DatetimeCodec
from ts.mlserver.codecs.decorator import decode_args
from ts.mlserver.codecs.errors import CodecError
from ts.mlserver.codecs.registry import register_input_codec, register_request_codec
from ts.mlserver.codecs.string import StringCodec, StringRequestCodec
from ts.mlserver.codecs.utils import (
    DecodedParameterName,
    decode_inference_request,
    decode_request_input,
    encode_inference_response,
    encode_response_output,
    get_decoded,
    get_decoded_or_raw,
    has_decoded,
)

if TYPE_CHECKING:
    from ts.mlserver.codecs.numpy import NumpyCodec, NumpyRequestCodec
    from ts.mlserver.codecs.pandas import PandasCodec

__all__ = [
    "Base64Codec",
    "CodecError",
    "DatetimeCodec",
    "DecodedParameterName",
    "InputCodec",
    "InputCodecLike",
    "NumpyCodec",
    "NumpyRequestCodec",
    "PandasCodec",
    "RequestCodec",
    "RequestCodecLike",
    "StringCodec",
    "StringRequestCodec",
    "decode_args",
    "decode_inference_request",
    "decode_request_input",
    "encode_inference_response",
    "encode_response_output",
    "get_decoded",
    "get_decoded_or_raw",
    "has_decoded",
    "register_input_codec",
    "register_request_codec",
]

_IMPORTED_LATER = {"NumpyCodec": "numpy", "NumpyRequestCodec": "numpy", "PandasCodec": "pandas"}


def __getattr__(name: str) -> Any:
    if name not in _IMPORTED_LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_IMPORTED_LATER[name]}"), name)
