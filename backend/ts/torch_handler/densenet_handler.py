"""The built-in handler ``densenet_handler``: tensors in, tensors out, both as ``torch.save`` writes them."""

from __future__ import annotations

import io
from typing import Any

import torch

from ts.handler_utils.timer import timed
from ts.torch_handler.base_handler import BaseHandler
from ts.torch_handler.rows import BadRowError, answer_good_rows, row_value

#: Alone, or in another batch, the row could have been answered.
_UNAVAILABLE = 503


class DenseNetHandler(BaseHandler):
    """Serves a model that takes a batch of the tensors that clients send; all of one shape."""

    def handle(self, data: Any, context: Any) -> Any:
        """Answer a batch; a row that holds no tensor is answered with status 400."""
        return answer_good_rows(super().handle, data, context)

    @timed
    def preprocess(self, data: Any) -> Any:
        """Return the rows' tensors as one batch.

        Raises:
            BadRowError: A row holds no tensor, or one of another shape than those before it.
        """
        tensors: list[torch.Tensor] = []
        for index, row in enumerate(data):
            tensor = _read_tensor(index, row_value(row))
            if tensors and tensor.shape != tensors[0].shape:
                shapes = f"{list(tensor.shape)} is not that of the batch, {list(tensors[0].shape)}"
                raise BadRowError(index, f"The shape {shapes}.", _UNAVAILABLE)
            tensors.append(tensor)
        return torch.stack(tensors)

    @timed
    def postprocess(self, data: Any) -> list[torch.Tensor]:
        """Return one tensor per row, with a first dimension of 1."""
        # A slice would be saved together with the whole batch.
        return [row.clone() for row in data.cpu().split(1)]


def _read_tensor(index: int, value: Any) -> torch.Tensor:
    try:
        content = torch.load(io.BytesIO(value), map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    # What is no pickle makes the unpickler fail in any way, from KeyError to UnicodeDecodeError.
    except Exception as error:
        raise BadRowError(index, "The request's body is no tensor as torch.save writes it.") from error
    if not isinstance(content, torch.Tensor):
        raise BadRowError(index, f"The request's body is a {type(content).__name__}, not a tensor.")
    return content
