"""The keys of ``handler`` in model-config.yaml that handlers/chat knows."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from chat_requests import Options
from chat_sampling import Sampling

if TYPE_CHECKING:
    from ts.context import Context

_GIB: Final = 1 << 30
#: The share that keys and values get of the memory of a GPU that is free beside a step of the model.
_SHARE_OF_GPU: Final = 0.9
#: What choosing a token takes (bytes) for each token that the model knows: its score, in several forms.
_CHOICE: Final = 48
#: What the keys and values of conversations that rest may take of the host's memory: at most, and as a share of all.
_MOST_ON_HOST: Final = 4 * _GIB
_SHARE_OF_HOST: Final = 8
_UNITS: Final = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
_UNITS_OF_TWO: Final = {"ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}


class Settings(NamedTuple):
    """What model-config.yaml says.

    Attributes:
        folder: Where the model is, as Hugging Face's `save_pretrained` writes it.
        dtype: The type of the weights, and of keys and values; "auto" for that of the checkpoint.
        kv_bytes: What keys and values may take on the device; None to take what is right for it.
        kv_host_bytes: What those of conversations that rest may take in the host's memory; None for what is right.
        memory: What the worker may take of its GPU: the key ``memory``, or what a ``gpu_memory_budget`` leaves, the
            smaller one of them; None for any part of it.
        rows: The requests that are answered at a time, at most.
        prefill_tokens: The tokens of prompts that one step of the model reads.
        system: The system message of conversations that begin without one.
        options: How an answer is made if the request does not say.
    """

    folder: Path
    dtype: Any
    kv_bytes: int | None
    kv_host_bytes: int | None
    memory: int | None
    rows: int
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
        limits = (_bytes_in(config.get("memory")), context.system_properties.get("gpu_room"))
        sampling = Sampling(float(degrees), top_k, float(share))
        return cls(
            Path(context.system_properties["model_dir"]) / read("model_path", "model", _is_text, "a folder"),
            dtype if dtype == "auto" else getattr(torch, dtype),
            read("kv_bytes", None, _is_count, "a number of bytes"),
            read("kv_host_bytes", None, _is_count_or_zero, "a number of bytes"),
            min(filter(None, limits), default=None),
            int(config.get("batchSize") or 1),
            read("prefill_tokens", 512, _is_count, "a number of tokens"),
            read("system", None, _is_text, "a text"),
            Options(read("max_tokens", 256, _is_count, "a number of tokens"), sampling),
        )

    def bytes_on(self, model: Any) -> int:
        """Return what keys and values may take on the device that a model was loaded to."""
        if self.kv_bytes is not None:
            return self.kv_bytes
        if model.device.type != "cuda":
            return _GIB
        for_a_step = _bytes_of_a_run(model, self.prefill_tokens)
        for_a_step += self.rows * model.get_input_embeddings().weight.shape[0] * _CHOICE
        free, total = torch.cuda.mem_get_info(model.device)
        if self.memory is not None:
            free = min(free, self.memory - torch.cuda.memory_reserved(model.device))
        bytes_ = int((free - for_a_step) * _SHARE_OF_GPU)
        if bytes_ <= 0:
            raise ValueError(
                f"no memory is left for keys and values: of the GPU's {total} bytes {free} are free for this model, and"
                f" a step takes {for_a_step}; free some, or make batchSize or handler.prefill_tokens smaller"
            )
        return bytes_

    def host_bytes_beside(self, device: torch.device) -> int:
        """Return what those that rest may take of the host's memory, beside what they take of a device."""
        if self.kv_host_bytes is not None:
            return self.kv_host_bytes
        if device.type == "cpu":
            return 0  # there is nothing beside it
        return min(_MOST_ON_HOST, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // _SHARE_OF_HOST)


def _bytes_of_a_run(model: Any, tokens: int) -> int:
    """Return the bytes of a GPU that a run of a model takes and frees again."""
    torch.cuda.reset_peak_memory_stats(model.device)
    before = torch.cuda.memory_allocated(model.device)
    with torch.inference_mode():
        model(input_ids=torch.zeros((1, tokens), dtype=torch.int64, device=model.device))
    taken = torch.cuda.max_memory_allocated(model.device) - before
    torch.cuda.empty_cache()
    return taken


def _bytes_in(value: Any) -> int | None:
    """Return the bytes of a size as the server takes it, such as 2GB or 1.5GiB, which it has checked."""
    if value is None or isinstance(value, int):
        return value
    number, unit = re.match(r"\s*([0-9.]+)\s*([a-z]*?)b?\s*$", str(value).lower()).groups()  # type: ignore[union-attr]
    return int(float(number) * (_UNITS | _UNITS_OF_TWO)[unit])


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
