"""The rows of the default handler: numbers, as JSON or as arrays, become one tensor; which of them the model takes."""

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from ts.jobs import device_loss
from ts.jobs.device_copies import Device, rows_on
from ts.torch_handler.built_in_rows import BadRowError, check_sent, check_shapes

#: What torch raises for values that are no tensor.
_NO_TENSOR: Final = (TypeError, ValueError, RuntimeError, OverflowError, RecursionError)
#: What models raise for inputs of a shape, type or range that they do not take.
_UNFIT: Final = (TypeError, ValueError, RuntimeError, IndexError)
#: The name of what ONNX Runtime raises for inputs that its model does not take.
_UNFIT_FOR_ONNX: Final = "InvalidArgument"
_NO_INDEX: Final = "index out of range"
_OF_TORCHSCRIPT: Final = "The following operation failed"
_MOST_KINDS: Final = 1000
_SHOWN: Final = 300


def read_rows(values: list[Any], device: Device) -> torch.Tensor:
    """Return the values of rows as one tensor on ``device``.

    Raises BadRowError: a value is no number, list or array of numbers, nor JSON of such. RowsApartError: shapes differ.
    """
    if not any(isinstance(value, str | bytes | bytearray) for value in values):
        try:
            return rows_on(values, device)
        except _NO_TENSOR as error:
            if device_loss.memory_ran_out(error) or device_loss.note_loss(error):
                raise
    tensors = [_tensor(index, value) for index, value in enumerate(values)]
    check_shapes(tensors)
    return rows_on(torch.stack(tensors), device)


def _tensor(index: int, value: Any) -> torch.Tensor:
    check_sent(index, value)
    if isinstance(value, str | bytes | bytearray):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise BadRowError(index, f"The request's body is not JSON: {error}.") from error
    try:
        return torch.as_tensor(value)
    except _NO_TENSOR as error:
        text = f"The request's body must be numbers, a list or an array of numbers: {_reason(error)}."
        raise BadRowError(index, text) from error


class KnownInputs:
    """Tells a row that the model does not take from a model that does not work: by the inputs that it has answered."""

    def __init__(self) -> None:
        #: Shapes of a row and types.
        self._answered: set[tuple[Any, ...]] = set()

    def watch(self, infer: Callable[[Any], Any], batch: Any) -> Any:
        """Return what ``infer`` makes of a batch.

        Raises BadRowError: the model does not take the batch's only row. Exception: what ``infer`` raised.
        """
        if not isinstance(batch, torch.Tensor) or not batch.dim():
            return infer(batch)
        return self._watch(lambda: infer(batch), [batch], is_one_request=len(batch) == 1)

    def watch_request(self, infer: Callable[[], Any], inputs: Sequence[Any]) -> Any:
        """Return what ``infer`` makes of the inputs of one request, whose first dimension may be a batch.

        Raises BadRowError: the model does not take them. Exception: what ``infer`` raised.
        """
        if not all(isinstance(each, torch.Tensor) and each.dim() for each in inputs):
            return infer()
        return self._watch(infer, inputs, is_one_request=True)

    def _watch(self, infer: Callable[[], Any], inputs: Sequence[torch.Tensor], *, is_one_request: bool) -> Any:
        kind = tuple((each.dtype, *each.shape[1:]) for each in inputs)
        try:
            output = infer()
        except Exception as error:
            if not is_one_request or not self._is_unfit(inputs, kind, error):
                raise
            shapes = ", ".join(str(list(each.shape[1:])) for each in inputs)
            types = ", ".join(str(each.dtype).removeprefix("torch.") for each in inputs)
            taken = f"values of the shape {shapes} and the type {types}"
            raise BadRowError(0, f"The model does not take the {taken}: {_reason(error)}.") from error
        has_results = not isinstance(output, torch.Tensor) or (output.dim() and len(output) == len(inputs[0]))
        if has_results and kind not in self._answered and len(self._answered) < _MOST_KINDS:
            self._answered.add(kind)
        return output

    def _is_unfit(self, inputs: Sequence[torch.Tensor], kind: tuple[Any, ...], error: Exception) -> bool:
        if device_loss.memory_ran_out(error) or device_loss.note_loss(error):
            return False
        if type(error).__name__ == _UNFIT_FOR_ONNX:
            return True
        if not isinstance(error, _UNFIT) or not self._answered:
            return False
        looks_up = not all(each.is_floating_point() for each in inputs)  # as an embedding does
        return kind not in self._answered or (looks_up and _NO_INDEX in str(error))


def _reason(error: Exception) -> str:
    first, *rest = str(error).strip().split("\n")
    if rest and first.startswith(_OF_TORCHSCRIPT):  # what failed is at the end of the traceback
        first = rest[-1]
    return first[:_SHOWN].rstrip(".")
