"""What MLServer's numpy codec makes of memory is what it makes of lists."""

import copy
from collections.abc import Iterator

import numpy as np
import pytest
from mlserver.codecs import NumpyCodec, NumpyRequestCodec, StringCodec
from mlserver.types import InferenceRequest, RequestInput, TensorData

from ts.apis.open_inference.tensors import flat_list
from ts.apis.open_inference.types import Tensor
from ts.contracts.mlserver.unread_data import UnreadData, let_numpy_codec_take_memory

KINDS = {"FP16": "f2", "FP32": "f4", "FP64": "f8", "INT8": "i1", "INT64": "i8", "UINT16": "u2", "UINT64": "u8"}
ARRAYS = {name: np.array([[0, 1, 100], [1, 0, 7]]).astype(kind) for name, kind in {**KINDS, "BOOL": "?"}.items()}
for each in ("FP16", "FP32", "FP64"):
    ARRAYS[each][0, 0] = np.nan


def as_input(tensor: Tensor, data: TensorData) -> RequestInput:
    return RequestInput(name="x", shape=tensor.shape, datatype=tensor.datatype, data=data)


@pytest.fixture
def plain_codec(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The codec as MLServer has it, before and after the test."""
    with monkeypatch.context() as undo:
        for name in ("decode_input", "encode_output"):
            undo.setattr(NumpyCodec, name, vars(NumpyCodec)[name])
        yield


@pytest.mark.usefixtures("plain_codec")
@pytest.mark.parametrize("datatype", ARRAYS)
def test_memory_is_decoded_and_encoded_as_lists_are(datatype: str) -> None:
    array = ARRAYS[datatype]
    eager = NumpyCodec.encode_output("y", array)
    let_numpy_codec_take_memory()
    tensor = Tensor("x", datatype, [2, 3], array.tobytes())
    unread = as_input(tensor, UnreadData.of_tensor(tensor))
    decoded = NumpyCodec.decode_input(unread)
    assert isinstance(unread.data, UnreadData)
    assert unread.data.tensor is tensor, "the codec has read the list"
    np.testing.assert_array_equal(decoded, array, strict=True)
    decoded[0, 0] = 1  # models write to what they get
    output = NumpyCodec.encode_output("y", array)
    assert isinstance(output.data, UnreadData)
    assert output.data.tensor is not None
    assert repr(copy.deepcopy(output)) == repr(output) == repr(eager)
    as_list = as_input(tensor, TensorData(flat_list(tensor)))
    assert unread.model_dump_json() == as_list.model_dump_json()
    np.testing.assert_array_equal(NumpyCodec.decode_input(unread), array, strict=True)
    np.testing.assert_array_equal(NumpyRequestCodec.decode_request(InferenceRequest(inputs=[unread])), array)


def test_text_is_decoded_from_memory() -> None:
    let_numpy_codec_take_memory()
    words = Tensor("x", "BYTES", [2], b"\1\0\0\0a\2\0\0\0bc")
    assert StringCodec.decode_input(as_input(words, UnreadData.of_tensor(words))) == ["a", "bc"]
    np.testing.assert_array_equal(NumpyCodec.decode_output(NumpyCodec.encode_output("y", np.array(["a"]))), [[b"a"]])
