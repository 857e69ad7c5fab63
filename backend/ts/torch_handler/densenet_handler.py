"""The built-in handler ``densenet_handler``: tensors in, tensors out.

A request is an array of numpy (``numpy.save``) or an input of the Open Inference Protocol. TorchServe's form, that of
``torch.save``, is read only where the model's configuration allows it (``handler: {torch_load_requests: true}``): it is
a pickle, which torch restricts to tensors, but such restrictions have been broken before.
"""

import io
from typing import Any

import numpy as np
import torch

from ts.handler_utils.client_arrays import array_in_file
from ts.handler_utils.timer import timed
from ts.jobs.device_copies import stack_on, to_host
from ts.torch_handler.base_handler import BaseHandler
from ts.torch_handler.built_in_rows import BadRowError, check_sent, check_shapes, row_value

_NUMPY_MAGIC = b"\x93NUMPY"


class DenseNetHandler(BaseHandler):
    """Serves a model that takes a batch of the tensors that clients send; all of one shape."""

    def __init__(self) -> None:
        super().__init__()
        #: Of each row of the running call, whether it came as numpy's file, and so is answered.
        self._as_numpy: list[bool] = []

    @timed
    def preprocess(self, data: Any) -> Any:
        """Return the rows as one tensor. Raises BadRowError: a row holds none. RowsApartError: rows differ in shape."""
        values = [row_value(row) for row in data]
        tensors = [self._read_tensor(index, value) for index, value in enumerate(values)]
        check_shapes(tensors)
        self._as_numpy = [_is_numpy_file(value) for value in values]
        return stack_on(tensors, self.device)

    @timed
    def postprocess(self, data: Any) -> list[Any]:
        """Return one tensor per row, with a first dimension of 1; as numpy's file where the request was one."""
        # A slice would be saved together with the whole batch.
        tensors = [row.clone() for row in torch.split(to_host(data), 1)]
        return [
            _numpy_file(tensor) if as_numpy else tensor
            for tensor, as_numpy in zip(tensors, self._as_numpy, strict=True)
        ]

    def _read_tensor(self, index: int, value: Any) -> torch.Tensor:
        check_sent(index, value)
        if isinstance(value, np.ndarray):
            return torch.from_numpy(value)
        if _is_numpy_file(value):
            return _read_numpy_file(index, value)
        if (self.model_yaml_config.get("handler") or {}).get("torch_load_requests") is True:
            return _read_torch_file(index, value)
        raise BadRowError(
            index,
            "The request's body is no tensor as numpy.save writes it, nor an Open Inference request. Bodies as "
            "torch.save writes them are pickles; model-config.yaml allows them with "
            "'handler: {torch_load_requests: true}'.",
        )


def _is_numpy_file(value: Any) -> bool:
    return isinstance(value, bytes | bytearray) and value.startswith(_NUMPY_MAGIC)


def _numpy_file(tensor: torch.Tensor) -> bytes:
    file = io.BytesIO()
    np.save(file, tensor.numpy(), allow_pickle=False)
    return file.getvalue()


def _read_numpy_file(index: int, value: bytes) -> torch.Tensor:
    try:
        return torch.from_numpy(array_in_file(value))
    except (ValueError, TypeError) as error:
        raise BadRowError(index, f"The request's body is no tensor as numpy.save writes it: {error}") from error


def _read_torch_file(index: int, value: Any) -> torch.Tensor:
    try:
        content = torch.load(io.BytesIO(value), map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    # The unpickler may raise anything for other bytes, from KeyError to UnicodeDecodeError.
    except Exception as error:
        raise BadRowError(index, "The request's body is no tensor as torch.save writes it.") from error
    if not isinstance(content, torch.Tensor):
        raise BadRowError(index, f"The request's body is a {type(content).__name__}, not a tensor.")
    return content
