"""What is done for functions that a script does not have: a TorchScript model, and bodies in JSON, CSV and NPY.

torch is imported when one of them runs, as many scripts do without.
"""

import os
import re
from pathlib import Path
from typing import Any, Final

from ts.context import Context
from ts.contracts.sagemaker.toolkit import content_types, decoder, encoder
from ts.contracts.sagemaker.toolkit.errors import GenericInferenceToolkitError, UnsupportedFormatError
from ts.jobs.errors import LoadError

ACCEPT_VARIABLE: Final = "SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT"
_WEIGHTS: Final = ("model.pt", "model.pth")
_EXPORTED: Final = ".pt2"
_SUFFIXES: Final = (".pt", ".pth", _EXPORTED)
#: What the default `output_fn` writes, in the order in which a wildcard chooses.
_WRITTEN: Final = (content_types.JSON, content_types.CSV, content_types.NPY)
#: The weight of a content type in a header ``Accept``, from 0 (not acceptable) to 1 (RFC 9110, 12.4.2).
_WEIGHT: Final = re.compile(r";\s*q\s*=\s*([01](?:\.[0-9]{0,3})?)\s*(?:;|$)", re.IGNORECASE)
#: What a header ``Accept`` has that is no content type: several, a wildcard, or a weight.
_SEVERAL: Final = re.compile(r"[,*]|;\s*q\s*=", re.IGNORECASE)


def default_accept() -> str:
    """Return the content type of answers to clients that accept everything."""
    return os.environ.get(ACCEPT_VARIABLE, content_types.JSON)


def media_type(content_type: str) -> str:
    """Return a content type without its parameters, in lower case."""
    return content_type.partition(";")[0].strip().lower()


def accepted_types(accept: str) -> list[str]:
    """Return the content types in a header ``Accept`` without their parameters, preferred ones first."""
    weighed = []
    for each in accept.split(","):
        weight = _WEIGHT.search(each)
        weighed.append((float(weight[1]) if weight else 1.0, media_type(each)))
    return [kind for weight, kind in sorted(weighed, key=lambda each: -each[0]) if weight and kind]


def answer_type(accept: str) -> str:
    """Return the content type of an answer for which a script names none: the one that the client prefers."""
    if not _SEVERAL.search(accept):
        return accept
    return next((each for each in accepted_types(accept) if "*" not in each), default_accept())


def device_of(context: Context) -> Any:
    """Return the worker's device, a `torch.device`."""
    import torch

    gpu = context.system_properties.get("gpu_id")
    return torch.device(f"cuda:{gpu}" if gpu is not None and torch.cuda.is_available() else "cpu")


def model_fn(model_dir: str, context: Context) -> Any:
    """Load the TorchScript model ``model.pt``, or the only ``.pt``, ``.pth`` or ``.pt2`` (exported) that there is.

    Raises LoadError.
    """
    import torch

    names = sorted(each.name for each in Path(model_dir).iterdir() if each.suffix in _SUFFIXES and each.is_file())
    chosen = [name for name in _WEIGHTS if name in names][:1] or names
    if len(chosen) != 1:
        raise LoadError(
            f"Without model_fn the folder of the model must have model.pt, or one file .pt, .pth or .pt2; it has"
            f" {', '.join(names) or 'none'}."
        )
    file, device = str(Path(model_dir, chosen[0])), device_of(context)
    if file.endswith(_EXPORTED):
        from ts.torch_handler.model_loading import load_exported_program

        return load_exported_program(file, device)
    try:
        load: Any = torch.jit.load
        model = load(file, map_location=device)
    except RuntimeError as error:
        text = f"{chosen[0]} is no TorchScript model, so the script needs a model_fn that loads it: {error}"
        raise LoadError(text) from error
    return model.eval()


def input_fn(body: Any, content_type: str | None, context: Context) -> Any:
    """Return the array in a body as a tensor on the worker's device: numbers of JSON and CSV as FP32.

    Raises UnsupportedFormatError; GenericInferenceToolkitError: the body is malformed (400).
    """
    import torch

    kind = media_type(content_type or "")
    try:
        array = decoder.decode(body, kind or content_type)
        if kind == content_types.NPZ:
            array = array.toarray()
        tensor = torch.from_numpy(array)
        if kind in content_types.UTF8_TYPES:
            tensor = tensor.float()
    except (ValueError, TypeError) as error:
        raise GenericInferenceToolkitError(400, f"The body is no array in {kind}: {error}") from error
    return tensor.to(device_of(context))


def predict_fn(data: Any, model: Any, context: Context) -> Any:
    """Return what the model answers; numbers are converted to the type of its weights."""
    import torch

    from ts.handler_utils.weights_type import in_type_of_weights

    device = device_of(context)
    if isinstance(model, torch.nn.Module):
        model = _evaluated(model, device)
        converted = in_type_of_weights(model, data)
        data = data if converted is None else converted
    with torch.inference_mode():
        return model(data.to(device) if isinstance(data, torch.Tensor) else data)


def _evaluated(model: Any, device: Any) -> Any:
    """Return a module on the device, in evaluation mode; an exported program computes as it was exported."""
    model = model.to(device)
    try:
        return model.eval()
    except NotImplementedError:
        return model


def output_fn(prediction: Any, accept: str, context: Context) -> Any:
    """Return a prediction in the first type that the client accepts and this server writes, with that type.

    Raises UnsupportedFormatError: there is none.
    """
    if hasattr(prediction, "detach"):
        prediction = prediction.detach().cpu().numpy()
    written = [each for each in (default_accept(), *_WRITTEN) if each in _WRITTEN]
    for accepted in accepted_types(accept):
        for kind in written:
            if accepted in (kind, f"{kind.partition('/')[0]}/*", content_types.ANY):
                return encoder.encode(prediction, kind), kind
    raise UnsupportedFormatError(accept, status_code=406)
