"""How a model computes, as ``autocast``, ``dtype``, ``channelsLast`` and ``pt2`` in model-config.yaml say."""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import torch

from ts.handler_utils.weights_type import in_type_of_weights
from ts.jobs.device_copies import Device, to_device
from ts.utils.util import check_valid_pt2_backend

logger = logging.getLogger(__name__)

_TYPES: Final = {None: None, "bfloat16": torch.bfloat16, "float16": torch.float16}
_REDUCED: Final = (torch.bfloat16, torch.float16)
#: Dimensions of a batch of images, which alone have channels to put last.
_IMAGES: Final = 4


@dataclass(frozen=True)
class Computing:
    """Runs a model on ``device``."""

    device: Device
    autocast: torch.dtype | None = None  # of operations that may lose precision; None: that of the weights
    channels_last: bool = False  # in memory, of weights and images
    dtype: torch.dtype | None = None  # of weights and inputs; None: as they are

    @classmethod
    def of(cls, config: Mapping[str, Any], device: torch.device) -> Self:
        """Return what a model's configuration asks for. Raises ValueError: a type is none of those that there are."""
        for key in ("autocast", "dtype"):
            if config.get(key) not in _TYPES:
                raise ValueError(f"{key} in model-config.yaml is {config[key]!r}, it must be bfloat16 or float16")
        autocast, dtype = _TYPES[config.get("autocast")], _TYPES[config.get("dtype")]
        return cls(device, autocast, config.get("channelsLast") is True, dtype)

    def prepared(self, model: Any) -> Any:
        """Return the model with its weights converted and laid out. Raises RuntimeError: it cannot be changed so."""
        if self.autocast is None and self.dtype is None and not self.channels_last:
            return model
        if not isinstance(model, torch.nn.Module):
            raise RuntimeError(
                f"autocast, dtype and channelsLast in model-config.yaml cannot change a {type(model).__name__}, only "
                "eager, TorchScript and exported models; leave them out"
            )
        if self.dtype is not None:
            if isinstance(model, torch.fx.GraphModule):
                raise RuntimeError(
                    "dtype in model-config.yaml cannot change an exported model, which computes in the types that it "
                    "was exported with; leave it out"
                )
            model.to(self.dtype)
        if self.channels_last:
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload,unused-ignore]
        return model

    def run(self, model: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        """Return what a model makes of a batch: one tensor, or a list of several. Numbers are at least FP32.

        A model that fails with numbers of another type than its weights gets them in that type.
        """
        placed = [self._placed(each) for each in data] if isinstance(data, list) else self._placed(data)
        try:
            return self._run(model, placed, *args, **kwargs)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, AssertionError):  # an exported model asserts its types
            fitting = in_type_of_weights(model, placed)
            if fitting is None:
                raise
        return self._run(model, fitting, *args, **kwargs)

    def _run(self, model: Any, placed: Any, *args: Any, **kwargs: Any) -> Any:
        with torch.inference_mode():
            if self.dtype is not None:
                return _as_float32(model(placed, *args, **kwargs))
            if self.autocast is None:
                return model(placed, *args, **kwargs)
            kind = torch.device("cpu" if self.device is None else self.device).type
            with torch.autocast(kind, self.autocast):
                return _as_float32(model(placed, *args, **kwargs))

    def _placed(self, data: Any) -> Any:
        if not isinstance(data, torch.Tensor):
            return data.to(self.device)
        data = to_device(data, self.device)
        if self.dtype is not None and data.is_floating_point():
            data = data.to(self.dtype)
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


def compile_options(config: dict[str, Any]) -> dict[str, Any] | None:
    """Return the keyword arguments for ``torch.compile``, or None if the model is not to be compiled.

    ``pt2`` is ``{compile: {enable: true, …arguments}}``; the older forms ``<backend>`` and ``{…arguments}`` work too. A
    backend that is not known is logged and the model stays as it is. Raises ValueError: ``pt2`` is neither a string nor
    a mapping.
    """
    pt2 = config.get("pt2")
    options: dict[str, Any]
    if pt2 is None:
        return None
    if isinstance(pt2, str):
        options = {"backend": pt2}
    elif not isinstance(pt2, dict):
        raise ValueError(f"pt2 in model-config.yaml must be a string or a mapping, got {pt2!r}")
    elif "compile" in pt2:
        options = dict(pt2["compile"] or {})
        if options.pop("enable", False) is not True:
            return None
    elif "export" in pt2:
        return None
    else:
        options = dict(pt2)
    if "backend" in options and not check_valid_pt2_backend(options["backend"]):
        return None
    return options


def compile_model(model: Any, options: dict[str, Any], device: Any) -> Any:
    """Return ``model`` compiled, or as it is (and a warning in the log) if nothing can be compiled so on ``device``.

    torch compiles when a model is called. So that a compiler that is missing or does not work shows here and not in
    the first request, something small is compiled now. A part of the model that cannot be compiled runs uncompiled.
    """
    text = ", ".join(f"{name} {value}" for name, value in options.items())
    try:
        # torch.compile reads this when it imports the compiler; the later assignment below holds for this thread only.
        os.environ.setdefault("TORCHDYNAMO_SUPPRESS_ERRORS", "1")
        compiled = torch.compile(model, **options)
        with torch.inference_mode(), torch._dynamo.config.patch(suppress_errors=False):
            torch.compile(torch.nn.Linear(2, 2).to(device), **options)(torch.ones(2, 2, device=device))
        torch._dynamo.config.suppress_errors = True
    except Exception:
        logger.warning("Compiling the model with %s failed; it is used uncompiled", text or "defaults", exc_info=True)
        return model
    logger.info("Compiled model with %s", text or "defaults")
    return compiled


def optimize_with_ipex(model: Any, device: Any) -> Any:
    """Return ``model`` optimized by the Intel extension, if ``TS_IPEX_ENABLE`` asks for it and it is installed."""
    if os.environ.get("TS_IPEX_ENABLE", "false") != "true":
        return model
    try:
        import intel_extension_for_pytorch as ipex  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        logger.warning("TS_IPEX_ENABLE is set but intel-extension-for-pytorch is not installed; it is not used")
        return model
    optimized = ipex.optimize(model.to(memory_format=torch.channels_last).to(device))
    logger.info("Optimized model with ipex")
    return optimized
