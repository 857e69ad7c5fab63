"""How a model computes, as ``autocast`` and ``channelsLast`` in model-config.yaml say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from ts.torch_handler.device_copies import Device, to_device

_TYPES: Final = {None: None, "bfloat16": torch.bfloat16, "float16": torch.float16}
_REDUCED: Final = (torch.bfloat16, torch.float16)
_IMAGES: Final = 4
"""Dimensions of a batch of images, which alone have channels to put last."""


@dataclass(frozen=True)
class Computing:
    """Runs a model on ``device``.

    Attributes:
        autocast: The type that operations use which may lose precision; None for that of the weights.
        channels_last: Whether weights and images have their channels last in memory.
    """

    device: Device
    autocast: torch.dtype | None = None
    channels_last: bool = False

    @classmethod
    def of(cls, config: Mapping[str, Any], device: torch.device) -> Computing:
        """Return what a model's configuration asks for. Raises ValueError: ``autocast`` is no type of torch's."""
        name = config.get("autocast")
        if name not in _TYPES:
            raise ValueError(f"autocast in model-config.yaml is {name!r}, it must be bfloat16 or float16")
        return cls(device, _TYPES[name], config.get("channelsLast") is True)

    def prepared(self, model: Any) -> Any:
        """Return the model with its weights laid out. Raises RuntimeError: it is not one of torch's modules."""
        if self.autocast is None and not self.channels_last:
            return model
        if not isinstance(model, torch.nn.Module):
            raise RuntimeError(
                f"autocast and channelsLast in model-config.yaml cannot change a {type(model).__name__}, only eager, "
                "TorchScript and exported models; leave them out"
            )
        if self.channels_last:
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload,unused-ignore]
        return model

    def run(self, model: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        """Return what a model makes of a batch: one tensor, or a list of several. Numbers are at least FP32."""
        placed = [self._placed(each) for each in data] if isinstance(data, list) else self._placed(data)
        with torch.inference_mode():
            if self.autocast is None:
                return model(placed, *args, **kwargs)
            kind = torch.device("cpu" if self.device is None else self.device).type
            with torch.autocast(kind, self.autocast):
                return _as_float32(model(placed, *args, **kwargs))

    def _placed(self, data: Any) -> Any:
        if not isinstance(data, torch.Tensor):
            return data.to(self.device)
        data = to_device(data, self.device)
        if self.channels_last and data.dim() == _IMAGES:
            data = data.contiguous(memory_format=torch.channels_last)
        return data


def _as_float32(output: Any) -> Any:
    """Return an output with tensors of full precision, so that answers have the same types in any case."""
    if isinstance(output, torch.Tensor):
        return output.float() if output.dtype in _REDUCED else output
    if type(output) is dict:
        return {name: _as_float32(each) for name, each in output.items()}
    if type(output) in (list, tuple):
        return type(output)(_as_float32(each) for each in output)
    return output
