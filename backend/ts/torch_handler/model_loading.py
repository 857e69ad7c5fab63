"""Loads a model from the files in its archive, by the kind of the file."""

import importlib
import os
import pickle
import zipfile
from typing import Any, Final

import torch

from ts.jobs.search_path import refuse_taken_name
from ts.protocol.misplaced_files import misplaced
from ts.utils.optional_packages import missing_package
from ts.utils.util import list_classes_from_module

#: The names of numpy for ONNX Runtime's types of floating point.
_ONNX_FLOATS: Final = {"tensor(float)": "float32", "tensor(double)": "float64", "tensor(float16)": "float16"}


def load_eager_model(
    model_dir: str, model_file: str, weights_path: str | None, device: torch.device | None, *, weights_only: bool
) -> torch.nn.Module:
    """Make an instance of the one class that a Python file in ``model_dir`` defines, and load its weights.

    ``weights_path`` is a state dict, as ``torch.save`` or safetensors wrote it; ``device`` None leaves to the file
    where weights are loaded to; ``weights_only`` refuses to unpickle anything but tensors and plain containers.
    Raises RuntimeError: the file is missing, or the weights cannot be loaded; ValueError: it defines not one class;
    LoadError: it has the name of one of Python's modules.
    """
    if not os.path.isfile(os.path.join(model_dir, model_file)):  # noqa: PTH113, PTH118
        raise RuntimeError("Missing the model.py file")
    name = model_file.split(".", maxsplit=1)[0]
    refuse_taken_name(name, [model_dir], "The model file")
    module = importlib.import_module(name)
    classes = list_classes_from_module(module)
    if len(classes) != 1:
        raise ValueError(f"Expected only one class as model definition. {classes}")
    model: torch.nn.Module = classes[0]()
    if weights_path:
        check_content(weights_path)
        model.load_state_dict(_load_state_dict(weights_path, device, weights_only=weights_only))
    return model


def check_content(path: str) -> None:
    """Raise RuntimeError: a text, such as a git-lfs pointer or an HTML page, is in the place of a model's file."""
    if what := misplaced(path):
        raise RuntimeError(f"{os.path.basename(path)} {what}.")  # noqa: PTH119


def load_whole_model(path: str, device: torch.device | None, *, weights_only: bool) -> torch.nn.Module:
    """Return what ``torch.save(model, path)`` wrote. Raises RuntimeError: it is no model, or may not be unpickled."""
    name = os.path.basename(path)  # noqa: PTH119
    if path.endswith(".safetensors"):
        raise RuntimeError(_no_model(name))
    content = load_pickle(path, device, weights_only=weights_only)
    if not isinstance(content, torch.nn.Module):
        raise RuntimeError(_no_model(name))
    return content


def load_pickle(path: str, device: torch.device | None, *, weights_only: bool) -> Any:
    """Return what ``torch.save`` wrote. Raises RuntimeError: it is more than weights, and ``weights_only`` is true."""
    check_content(path)
    try:
        return torch.load(path, map_location=device, weights_only=weights_only)
    except pickle.UnpicklingError as error:
        if not weights_only:
            raise
        raise RuntimeError(
            f"{os.path.basename(path)} holds more than weights, and unpickling it could run any code. "  # noqa: PTH119
            "Save it again with torch.save(model.state_dict(), …), or, if you trust its author, "
            "put 'handler: {weights_only: false}' into model-config.yaml."
        ) from error


def is_torchscript(path: str) -> bool:
    """Tell whether a file was written by ``torch.jit.save``."""
    return any(member.endswith("/constants.pkl") for member in _members(path))


def is_aot_inductor_package(path: str) -> bool:
    """Tell whether a file holds native code that AOTInductor made, as opposed to an exported program."""
    return any("/aotinductor/" in member for member in _members(path))


def load_exported_program(path: str, device: torch.device | None) -> Any:
    """Return the model that ``torch.export.save`` wrote, on ``device``."""
    program = torch.export.load(path)
    if device is not None and device.type != "cpu":
        from torch.export.passes import move_to_device_pass

        program = move_to_device_pass(program, device)
    return program.module()


def load_onnx_session(path: str, map_location: str | None, threads: int) -> Any:
    """Return an ONNX Runtime session. Raises ModuleNotFoundError: onnxruntime is not installed."""
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        raise missing_package(error, ".onnx models", "onnx") from error
    providers = ["CPUExecutionProvider"]
    if map_location == "cuda":
        providers.insert(0, "CUDAExecutionProvider")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(path, providers=providers, sess_options=options)


def run_onnx_session(session: Any, data: torch.Tensor) -> Any:
    """Return what an ONNX Runtime session with one input makes of ``data``: a tensor, or a list of several.

    Numbers are converted to the input's type of floating point.
    """
    (tensor_input,) = session.get_inputs()
    array = data.cpu().numpy()
    wanted = _ONNX_FLOATS.get(tensor_input.type)
    if wanted is not None and array.dtype.name != wanted:
        array = array.astype(wanted)
    outputs = [torch.from_numpy(output) for output in session.run(None, {tensor_input.name: array})]
    return outputs[0] if len(outputs) == 1 else outputs


def _load_state_dict(path: str, device: torch.device | None, *, weights_only: bool) -> dict[str, Any]:
    if not path.endswith(".safetensors"):
        state_dict: dict[str, Any] = load_pickle(path, device, weights_only=weights_only)
        return state_dict
    try:
        from safetensors.torch import load_file
    except ModuleNotFoundError as error:
        raise missing_package(error, ".safetensors files", "safetensors") from error
    tensors: dict[str, Any] = load_file(path, device=str(device or "cpu"))
    return tensors


def _members(path: str) -> list[str]:
    if not zipfile.is_zipfile(path):
        return []
    with zipfile.ZipFile(path) as archive:
        return archive.namelist()


def _no_model(name: str) -> str:
    return (
        f"No model weights could be loaded: {name} holds weights without a model. Archive it together with the Python "
        "file that defines the model (--model-file), or save the model with TorchScript (.pt) or torch.export (.pt2)."
    )
