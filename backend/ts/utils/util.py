"""TorchServe's ``ts.utils.util`` for handlers: the same names with the same meaning.

Importing it costs next to nothing: YAML is imported when a file is read.
"""

import enum
import functools
import itertools
import json
import logging
import os
import re
import warnings
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

from ts.jobs.errors import BadRequestError, PredictionException
from ts.protocol.regular_files import read_regular_text
from ts.protocol.yaml_files import get_yaml_config
from ts.runtime.loader import list_classes_from_module

__all__ = [
    "CLEANUP_REGEX",
    "BadRequestError",
    "PT2Backend",
    "PredictionException",
    "check_valid_pt2_backend",
    "deprecated",
    "get_yaml_config",
    "list_classes_from_module",
    "load_label_mapping",
    "map_class_to_label",
]

_P = ParamSpec("_P")
_R = TypeVar("_R")
#: Of a file with the names of classes.
_MOST_BYTES = 64 << 20

logger = logging.getLogger(__name__)

#: Markup that text handlers remove: tags and character references.
CLEANUP_REGEX = re.compile("<.*?>|&([a-z0-9]+|#[0-9]{1,6}|#x[0-9a-f]{1,6});")


class PT2Backend(enum.StrEnum):
    """The ``torch.compile`` backends that a model configuration may name."""

    EAGER = "eager"
    AOT_EAGER = "aot_eager"
    INDUCTOR = "inductor"
    NVFUSER = "nvfuser"
    AOT_NVFUSER = "aot_nvfuser"
    AOT_CUDAGRAPHS = "aot_cudagraphs"
    OFI = "ofi"
    FX2TRT = "fx2trt"
    ONNXRT = "onnxrt"
    IPEX = "ipex"
    TORCHXLA_TRACE_ONCE = "torchxla_trace_once"
    OPENVINO = "openvino"
    TENSORRT = "tensorrt"
    HPU_BACKEND = "hpu_backend"


def check_valid_pt2_backend(backend: str) -> bool:
    """Tell whether ``backend`` is a known ``torch.compile`` backend; log a warning if not."""
    if backend in set(PT2Backend):
        return True
    logger.warning("%s is not a supported backend; supported are: %s", backend, ", ".join(PT2Backend))
    return False


def load_label_mapping(mapping_file_path: str) -> dict[str, str] | None:
    """Read a JSON file that maps class indexes to class names; log a warning and return None without that file.

    Accepted are ``{"0": "cat"}``, ``{"0": ["n02123045", "cat"]}`` (the last element counts) and
    ``{"object_type_names": ["cat", …]}``. Raises ValueError: the file holds something else.
    """
    if not os.path.isfile(mapping_file_path):  # noqa: PTH113 - pathlib would cost every worker its import
        logger.warning("%r is missing. Inference output will not include class name.", mapping_file_path)
        return None
    try:
        mapping = json.loads(read_regular_text(mapping_file_path, _MOST_BYTES))
    except ValueError as error:
        raise ValueError(f"{mapping_file_path}: {error}") from error
    if not isinstance(mapping, dict):
        raise ValueError(f'{mapping_file_path}: expected an object {{"class": "label"}}, got {type(mapping).__name__}')
    names = mapping.get("object_type_names")
    if isinstance(names, list):
        return {str(index): name for index, name in enumerate(names)}
    labels = {key: value[-1] if isinstance(value, list) and value else value for key, value in mapping.items()}
    for key, label in labels.items():
        if not isinstance(label, str):
            raise ValueError(f"{mapping_file_path}: the label of {key!r} must be a string or a list of strings")
    return labels


def map_class_to_label(
    probs: list[list[Any]], mapping: dict[str, str] | None = None, lbl_classes: Iterable[Iterable[Any]] | None = None
) -> list[dict[str, Any]]:
    """Return for every row of ``probs`` a dict from class name to probability.

    ``mapping`` has class names by the text of their index; without it the index is the name. ``lbl_classes`` has for
    every row the class indexes of its probabilities; 0, 1, 2, … without it. Raises TypeError: ``probs`` is not a list,
    or ``mapping`` not a dict.
    """
    if not isinstance(probs, list):
        raise TypeError(f"convert the probabilities to a list before mapping them, got {type(probs).__name__}")
    if mapping is not None and not isinstance(mapping, dict):
        raise TypeError(f"the mapping must be a dict, got {type(mapping).__name__}")
    if lbl_classes is None:
        lbl_classes = itertools.repeat(range(len(probs[0]) if probs else 0), len(probs))
    return [
        {
            (str(index) if mapping is None else mapping[str(index)]): value
            for index, value in zip(indexes, row, strict=False)
        }
        for indexes, row in zip(lbl_classes, probs, strict=False)
    ]


def deprecated(
    version: str, replacement: str = "", klass: type[Warning] = PendingDeprecationWarning
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Return a decorator for a function that goes away in ``version``: each call warns and names its replacement."""

    def deprecator(function: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(function)
        def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            text = f"{function.__name__} is deprecated in {version} and moved to {replacement}"
            warnings.warn(text, klass, stacklevel=2)
            return function(*args, **kwargs)

        return wrapper

    return deprecator
