"""Tensors as tritonclient sends them."""

from __future__ import annotations

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import np_to_triton_dtype

X = np.array([[1, 2], [3, 4]], np.float32)


def tensor(name: str, array: np.ndarray) -> triton.InferInput:
    """An input of tritonclient."""
    sent = triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    sent.set_data_from_numpy(array)
    return sent
