"""Loads a model from the files in its archive, by the kind of the file."""

from __future__ import annotations

import importlib
import os
import pickle
from typing import Any

import torch

from ts.utils.util import list_classes_from_module


def load_eager_model(
    model_dir: str, model_file: str, weights_path: str | None, device: torch.device | None, *, weights_only: bool
) -> torch.nn.Module:
    """Make an instance of the one class that ``model_file`` defines, and load its weights if there are any.

    Args:
        model_dir: The model's folder.
        model_file: A Python file in it.
        weights_path: A state dict, as ``torch.save`` or safetensors wrote it, or None.
        device: Where the weights are loaded to; None leaves it to the file.
        weights_only: Refuse to unpickle anything but tensors and plain containers.

    Raises:
        RuntimeError: ``model_file`` is missing, or the weights cannot be loaded.
        ValueError: ``model_file`` defines no class, or several.
    """
    if not os.path.isfile(os.path.join(model_dir, model_file)):  # noqa: PTH113, PTH118
        raise RuntimeError("Missing the model.py file")
    module = importlib.import_module(model_file.split(".", maxsplit=1)[0])
    classes = list_classes_from_module(module)
    if len(classes) != 1:
        raise ValueError(f"Expected only one class as model definition. {classes}")
    model: torch.nn.Module = classes[0]()
    if weights_path:
        model.load_state_dict(_load_state_dict(weights_path, device, weights_only=weights_only))
    return model


def _load_state_dict(path: str, device: torch.device | None, *, weights_only: bool) -> dict[str, Any]:
    if path.endswith(".safetensors"):
        from safetensors.torch import load_file  # type: ignore[import-not-found,unused-ignore]

        tensors: dict[str, Any] = load_file(path, device=str(device or "cpu"))
        return tensors
    try:
        state_dict: dict[str, Any] = torch.load(path, map_location=device, weights_only=weights_only)
    except pickle.UnpicklingError as error:
        if not weights_only:
            raise
        raise RuntimeError(
            f"{os.path.basename(path)} holds more than weights, and unpickling it could run any code. "  # noqa: PTH119
            "Save it anew with torch.save(model.state_dict(), …), or, if you trust whoever made it, "
            "put 'handler: {weights_only: false}' into model-config.yaml."
        ) from error
    return state_dict


def load_onnx_session(path: str, map_location: str | None) -> Any:
    """Return an ONNX Runtime session for ``path``, on the GPU if ``map_location`` is "cuda".

    Raises:
        RuntimeError: onnxruntime is not installed.
    """
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        raise RuntimeError("An .onnx model needs onnxruntime: pip install onnxruntime") from error
    providers = ["CPUExecutionProvider"]
    if map_location == "cuda":
        providers.insert(0, "CUDAExecutionProvider")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = os.cpu_count() or 1
    return onnxruntime.InferenceSession(path, providers=providers, sess_options=options)
