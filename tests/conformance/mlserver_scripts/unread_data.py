"""What the real MLServer's codecs make of data that have not been read is what they make of lists.

Prints the datatypes that were compared.
"""

from __future__ import annotations

import copy

import numpy as np
from mlserver.codecs import NumpyCodec, StringCodec
from mlserver.types import InferenceRequest, RequestInput, TensorData

from ts.open_inference.tensors import flat_list
from ts.open_inference.types import Tensor
from ts.runtimes.mlserver import api

TYPES = {"FP16": "f2", "FP32": "f4", "FP64": "f8", "INT8": "i1", "INT64": "i8", "UINT16": "u2", "UINT64": "u8"}
TYPES["BOOL"] = "?"


def request_input(tensor: Tensor, data: TensorData) -> RequestInput:
    """Return an input as a model gets it."""
    return RequestInput(name="x", shape=tensor.shape, datatype=tensor.datatype, data=data)


def main() -> None:
    """Compare, for every datatype, before and after the codec was told of such data."""
    assert not api.IS_OURS
    arrays = {name: np.array([[0, 1, 100], [1, 0, 7]]).astype(kind) for name, kind in TYPES.items()}
    for name in ("FP16", "FP32", "FP64"):
        arrays[name][0, 0] = np.nan
    eager = {name: NumpyCodec.encode_output("y", array) for name, array in arrays.items()}
    api.adapt()
    for name, array in arrays.items():
        tensor = Tensor("x", name, [2, 3], array.tobytes())
        unread = request_input(tensor, api.UnreadData.of_tensor(tensor))
        decoded = NumpyCodec.decode_input(unread)
        assert unread.data.tensor is tensor, "the codec has read the list"
        np.testing.assert_array_equal(decoded, array, strict=True)
        decoded[0, 0] = 1
        output = NumpyCodec.encode_output("y", array)
        assert output.data.tensor is not None
        assert repr(copy.deepcopy(output)) == repr(output) == repr(eager[name]), name
        as_list = request_input(tensor, TensorData(flat_list(tensor)))
        assert unread.model_dump_json() == as_list.model_dump_json()
        assert repr(InferenceRequest(inputs=[unread])) == repr(InferenceRequest(inputs=[as_list]))
        np.testing.assert_array_equal(NumpyCodec.decode_input(unread), array, strict=True)
    words = Tensor("x", "BYTES", [2], b"\1\0\0\0a\2\0\0\0bc")
    assert StringCodec.decode_input(request_input(words, api.UnreadData.of_tensor(words))) == ["a", "bc"]
    print(*arrays, words.datatype)


if __name__ == "__main__":
    main()
