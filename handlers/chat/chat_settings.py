"""The keys of ``handler`` in model-config.yaml that handlers/chat knows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from chat_requests import Options
from chat_sampling import Sampling

if TYPE_CHECKING:
    from ts.context import Context

_GIB: Final = 1 << 30
#: The share of a GPU's free memory, once the model is loaded, that keys and values get.
_SHARE_OF_GPU: Final = 0.8


class Settings(NamedTuple):
    """What model-config.yaml says.

    Attributes:
        folder: Where the model is, as Hugging Face's `save_pretrained` writes it.
        dtype: The type of the weights, and of keys and values; "auto" for that of the checkpoint.
        kv_bytes: What keys and values may take on the device; None to take what is right for it.
        kv_host_bytes: What those of conversations that rest may take in the host's memory; None for as much.
        prefill_tokens: The tokens of prompts that one step of the model reads.
        system: The system message of conversations that begin without one.
        options: How an answer is made if the request does not say.
    """

    folder: Path
    dtype: Any
    kv_bytes: int | None
    kv_host_bytes: int | None
    prefill_tokens: int
    system: str | None
    options: Options

    @classmethod
    def of(cls, context: Context) -> Settings:
        """Return the settings of a model. Raises ValueError: a key is wrong, or continuous batching is missing."""
        config = context.model_yaml_config
        if not config.get("continuousBatching"):
            raise ValueError("handlers/chat needs continuousBatching: true in model-config.yaml")
        handler = config.get("handler") or {}
        read = _Keys(handler)
        dtype = read("dtype", "auto", _is_dtype, "auto, or a floating type of torch, such as bfloat16")
        degrees = read("temperature", 0.0, lambda value: _is_number(value) and 0 <= value <= 2, "a number, 0 to 2")
        top_k = read("top_k", 0, _is_count_or_zero, "a whole number, 0 or more")
        share = read("top_p", 1.0, lambda value: _is_number(value) and 0 < value <= 1, "a number above 0, at most 1")
        sampling = Sampling(float(degrees), top_k, float(share))
        return cls(
            Path(context.system_properties["model_dir"]) / read("model_path", "model", _is_text, "a folder"),
            dtype if dtype == "auto" else getattr(torch, dtype),
            read("kv_bytes", None, _is_count, "a number of bytes"),
            read("kv_host_bytes", None, _is_count_or_zero, "a number of bytes"),
            read("prefill_tokens", 512, _is_count, "a number of tokens"),
            read("system", None, _is_text, "a text"),
            Options(read("max_tokens", 256, _is_count, "a number of tokens"), sampling),
        )

    def bytes_on(self, device: torch.device) -> int:
        """Return what keys and values may take on the device that the model was loaded to."""
        if self.kv_bytes is not None:
            return self.kv_bytes
        return int(torch.cuda.mem_get_info(device)[0] * _SHARE_OF_GPU) if device.type == "cuda" else _GIB


class _Keys:
    def __init__(self, handler: dict[str, Any]) -> None:
        self._handler = handler

    def __call__(self, name: str, default: Any, accepts: Callable[[Any], bool], right: str) -> Any:
        value = self._handler.get(name)
        if value is None:
            return default
        if not accepts(value):
            raise ValueError(f"handler.{name} in model-config.yaml is {value!r}; {right} is right")
        return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return _is_count_or_zero(value) and value > 0


def _is_count_or_zero(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_dtype(value: Any) -> bool:
    dtype = getattr(torch, value, None) if isinstance(value, str) else None
    return value == "auto" or (isinstance(dtype, torch.dtype) and dtype.is_floating_point)
