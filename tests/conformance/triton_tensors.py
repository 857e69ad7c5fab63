"""Tensors as tritonclient sends them."""

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import np_to_triton_dtype

X = np.array([[1, 2], [3, 4]], np.float32)
#: One array of each datatype, with values at the ends of its range.
ARRAYS = [
    np.array([True, False]),
    np.array([-128, 127], np.int8),
    np.array([2**15 - 1], np.int16),
    np.array([-(2**31)], np.int32),
    np.array([2**63 - 1], np.int64),
    np.array([255], np.uint8),
    np.array([2**16 - 1], np.uint16),
    np.array([2**32 - 1], np.uint32),
    np.array([2**64 - 1], np.uint64),
    np.array([1.5, np.inf], np.float16),
    np.array([[1.5], [np.nan]], np.float32),
    np.array([1e300], np.float64),
    np.zeros((0, 3), np.float32),
]


def tensor(name: str, array: np.ndarray) -> triton.InferInput:
    """An input of tritonclient."""
    sent = triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    sent.set_data_from_numpy(array)
    return sent
