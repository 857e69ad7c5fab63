"""Data frames: every tensor is a column."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pandas as pd

from ts.mlserver.codecs.base import RequestCodec
from ts.mlserver.codecs.errors import CodecError
from ts.mlserver.codecs.json import decode_json_input_or_output, encode_to_json
from ts.mlserver.codecs.numpy import convert_nan, to_datatype, to_dtype
from ts.mlserver.codecs.registry import register_request_codec
from ts.mlserver.codecs.string import StringCodec, encode_str
from ts.mlserver.codecs.utils import (
    InputOrOutput,
    as_input,
    get_decoded,
    has_decoded,
    inject_batch_dimension,
    new_output,
)
from ts.mlserver.types import (
    Datatype,
    InferenceRequest,
    InferenceResponse,
    Parameters,
    ResponseOutput,
    TensorData,
)


@register_request_codec
class PandasCodec(RequestCodec):
    """Content type ``pd``: a ``pandas.DataFrame``. Columns are decoded by content types of their own first."""

    ContentType = "pd"
    JsonContentType: ClassVar[str] = "pd_json"
    TypeHint = pd.DataFrame

    @classmethod
    def can_encode(cls, payload: Any) -> bool:
        """Return whether ``payload`` is a data frame."""
        return isinstance(payload, pd.DataFrame)

    @classmethod
    def encode_outputs(cls, payload: pd.DataFrame, use_bytes: bool = True) -> list[ResponseOutput]:
        """Make an output of every column."""
        return [_encoded(str(name), payload[name], use_bytes=use_bytes) for name in payload]

    @classmethod
    def encode_response(
        cls,
        model_name: str,
        payload: pd.DataFrame,
        model_version: str | None = None,
        use_bytes: bool = True,
        **kwargs: Any,
    ) -> InferenceResponse:
        """Make a response with an output for every column."""
        return InferenceResponse(
            model_name=model_name,
            model_version=model_version,
            parameters=Parameters(content_type=cls.ContentType),
            outputs=cls.encode_outputs(payload, use_bytes=use_bytes),
        )

    @classmethod
    def decode_response(cls, response: InferenceResponse) -> pd.DataFrame:
        """Return the outputs as a data frame."""
        return _frame(response.outputs)

    @classmethod
    def encode_request(cls, payload: pd.DataFrame, use_bytes: bool = True, **kwargs: Any) -> InferenceRequest:
        """Make a request with an input for every column."""
        return InferenceRequest(
            parameters=Parameters(content_type=cls.ContentType),
            inputs=[as_input(output) for output in cls.encode_outputs(payload, use_bytes=use_bytes)],
        )

    @classmethod
    def decode_request(cls, request: InferenceRequest) -> pd.DataFrame:
        """Return the inputs as a data frame."""
        return _frame(request.inputs)


def _frame(tensors: Any) -> pd.DataFrame:
    try:
        return pd.DataFrame({tensor.name: _column(tensor) for tensor in tensors})
    except (TypeError, ValueError, OverflowError) as error:
        raise CodecError(f"the tensors make no data frame: {error}") from error


def _column(tensor: InputOrOutput) -> pd.Series[Any]:
    if tensor.parameters and tensor.parameters.content_type == PandasCodec.JsonContentType:
        return pd.Series(decode_json_input_or_output(tensor))
    is_bytes = Datatype(tensor.datatype) is Datatype.BYTES
    if has_decoded(tensor):
        payload = get_decoded(tensor)
        if isinstance(payload, np.ndarray) and not is_bytes:
            payload = payload.reshape(tensor.shape[0])
    else:
        array = None if is_bytes else tensor.data.array
        payload = tensor.data.root if array is None else array.flatten()  # as long as the list would be
    if is_bytes:
        return _as_in_pandas_2(pd.Series(payload))
    return pd.Series(payload, dtype=to_dtype(tensor))


def _as_in_pandas_2(series: pd.Series[Any]) -> pd.Series[Any]:
    """What MLServer's models get: it needs pandas 2, where texts are objects and moments have nanoseconds."""
    if isinstance(series.dtype, pd.StringDtype):
        return series.astype(object)
    return series.dt.as_unit("ns") if series.dtype.kind == "M" else series


def _encoded(name: str, series: pd.Series[Any], *, use_bytes: bool) -> ResponseOutput:
    datatype = to_datatype(series.dtype)
    shape = inject_batch_dimension(list(series.shape))
    if datatype is not Datatype.BYTES:
        return new_output(name, shape, datatype.value, TensorData.of_array(series.to_numpy(copy=True)), None)
    data: list[Any] = [convert_nan(each) for each in series.tolist()]
    if all(isinstance(each, str | bytes) for each in data):
        content_type = StringCodec.ContentType
        data = [encode_str(each) if isinstance(each, str) and use_bytes else each for each in data]
    else:
        content_type = PandasCodec.JsonContentType
        data = [encode_to_json(each, use_bytes) for each in data]
    return new_output(name, shape, datatype.value, data, content_type)
