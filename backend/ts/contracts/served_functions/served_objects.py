"""Objects that are models as they are: pipelines of Hugging Face's, estimators of scikit-learn's, modules of PyTorch's,
sessions of ONNX Runtime's.

Each becomes a function whose signature says what the object takes and gives, so that everything that `serve` knows of
functions holds for it. A library is looked up only if the object could be of it.
"""

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from types import GenericAlias
from typing import Annotated, Any, Final, NamedTuple

from pydantic import Field

from ts.jobs.errors import LoadError
from ts.utils.sound import Audio

_EMPTY: Final = inspect.Parameter.empty
#: Tasks of Hugging Face's pipelines whose input is a file.
_OF_IMAGES: Final = ("image-", "object-detection", "depth-estimation", "zero-shot-image", "zero-shot-object")
_OF_SOUND: Final = ("automatic-speech-recognition", "audio-classification", "zero-shot-audio")
#: Types of ONNX Runtime's tensors whose numpy name is another.
_ONNX_TYPES: Final = {"float": "float32", "double": "float64", "bool": "bool_", "string": "str_"}
_ANY_SIZE: Final = -1


class ServedObject(NamedTuple):
    """An object as a function.

    Attributes:
        call: The function; it has a signature and a docstring.
        setup: Moves the object to a device.
        example: A request, None if one follows from the signature.
        tensors: The declarations of tensors that the signature does not have exactly, by ``inputs`` and ``outputs``.
    """

    call: Callable[..., Any]
    setup: Callable[[str], None] | None = None
    example: Any = None
    tensors: Mapping[str, Sequence[Mapping[str, Any]]] = {}


def served_object(target: Any) -> ServedObject:
    """Return an object as a function. Raises LoadError: it is no model that is known here."""
    torch, transformers = sys.modules.get("torch"), sys.modules.get("transformers")
    onnx, sklearn = sys.modules.get("onnxruntime"), sys.modules.get("sklearn.base")
    if transformers is not None and isinstance(target, transformers.Pipeline):
        return _pipeline(target)
    if torch is not None and isinstance(target, torch.nn.Module):
        return _module(target)
    if onnx is not None and isinstance(target, onnx.InferenceSession):
        return _session(target)
    if sklearn is not None and isinstance(target, sklearn.BaseEstimator) and hasattr(target, "predict"):
        return _estimator(target)
    raise LoadError(
        f"serve got a {type(target).__module__}.{type(target).__qualname__}; it takes a function, a class with predict,"
        " a pipeline of transformers, an estimator of scikit-learn with predict, a torch.nn.Module or an"
        " onnxruntime.InferenceSession"
    )


def _with_signature(
    call: Callable[..., Any], name: str, about: str, parameters: Mapping[str, Any], result: Any = _EMPTY
) -> Callable[..., Any]:
    """Return a function with this name, docstring and signature, which passes on what it gets."""

    def function(**values: Any) -> Any:
        return call(**values)

    kinds = [
        each
        if isinstance(each, inspect.Parameter)
        else inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, annotation=each)
        for key, each in parameters.items()
    ]
    function.__name__, function.__doc__ = name, about
    function.__signature__ = inspect.Signature(kinds, return_annotation=result)  # type: ignore[attr-defined]
    return function


def _pipeline(pipeline: Any) -> ServedObject:
    """The members of a request are those of Hugging Face's inference API: ``inputs`` and ``parameters``."""
    task = str(pipeline.task)
    kind: Any = str
    if task.startswith(_OF_IMAGES):
        from PIL import Image

        kind = Image.Image
    elif task.startswith(_OF_SOUND):
        kind = Audio

    def call(inputs: Any, parameters: dict[str, Any]) -> Any:
        if isinstance(inputs, Audio):
            samples = inputs.samples if inputs.samples.ndim == 1 else inputs.samples.mean(axis=1)
            inputs = {"raw": samples, "sampling_rate": inputs.rate}
        return pipeline(inputs, **parameters)

    def setup(device: str) -> None:
        if device != "cpu":
            import torch

            pipeline.device = torch.device(device)
            pipeline.model.to(pipeline.device)

    more = inspect.Parameter("parameters", inspect.Parameter.KEYWORD_ONLY, default={}, annotation=dict[str, Any])
    about = f"Run the pipeline {task}.\n\n``parameters`` are further arguments of its call."
    function = _with_signature(call, task.replace("-", "_"), about, {"inputs": kind, "parameters": more})
    return ServedObject(function, setup)


def _estimator(estimator: Any) -> ServedObject:
    """A request is a list of rows; an estimator that was fitted with names of columns takes objects as well."""
    names = [str(each) for each in getattr(estimator, "feature_names_in_", ())]
    width = getattr(estimator, "n_features_in_", None)

    def call(rows: list[Any]) -> Any:
        if names:
            import pandas

            return estimator.predict(pandas.DataFrame(rows, columns=names))
        return estimator.predict(rows)

    kind, datatype = type(estimator).__name__, "FP64"
    about = f"Predict with {kind}: a list of rows gives a list of predictions."
    if names:
        about += f"\n\nThe columns are {', '.join(names)}."
    if width is None:  # a pipeline that begins with a vectorizer of texts
        return ServedObject(_with_signature(call, kind, about, {"rows": list[Any]}), example=["hello"])
    row: Any = Any  # of numbers and texts, or an object
    tensors: dict[str, list[dict[str, Any]]] = {}
    if _takes_numbers(estimator, width):
        tensors = {"inputs": [{"name": "rows", "datatype": datatype, "shape": [_ANY_SIZE, int(width)]}]}
        if not names:
            row = Annotated[list[float], Field(min_length=int(width), max_length=int(width))]
    function = _with_signature(call, kind, about, {"rows": GenericAlias(list, (row,))})
    return ServedObject(function, example=[[0.5] * int(width)] if tensors else None, tensors=tensors)


def _takes_numbers(estimator: Any, width: int) -> bool:
    """Return whether a row of numbers is predicted; one with categories as texts is not."""
    try:
        import numpy as np

        estimator.predict(np.full((1, width), 0.5))
    except Exception:
        return False
    return True


def _module(module: Any) -> ServedObject:
    """The tensors of a request are the parameters of ``forward``, in the type of the weights.

    Whole numbers stay whole for a module that looks something up by them: one with an embedding.
    """
    import torch

    from ts.handler_utils.weights_type import in_type, looks_up, type_of_weights
    from ts.torch_handler.input_rows import KnownInputs

    module.eval()
    parameters = inspect.signature(module.forward).parameters
    needed = [name for name, each in parameters.items() if each.default is _EMPTY and each.kind in _NAMED]
    if not needed or any(each.default is _EMPTY and each.kind not in _NAMED for each in parameters.values()):
        raise LoadError(f"{type(module).__name__}.forward must name its tensors; it has {', '.join(parameters)}")
    place = {"device": torch.device("cpu")}
    keeps_integers, known = looks_up(module), KnownInputs()

    def call(**tensors: Any) -> Any:
        dtype, device = type_of_weights(module), place["device"]
        inputs = {
            name: in_type(each, dtype, keeps_integers=keeps_integers).to(device) for name, each in tensors.items()
        }
        with torch.inference_mode():
            return known.watch_request(lambda: module(**inputs), [*inputs.values()])

    def setup(device: str) -> None:
        place["device"] = torch.device(device)
        module.to(place["device"])

    about = f"Run {type(module).__name__}: {', '.join(needed)}."
    function = _with_signature(call, type(module).__name__, about, dict.fromkeys(needed, torch.Tensor))
    return ServedObject(function, setup)


_NAMED: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _session(session: Any) -> ServedObject:
    """The tensors of a request are the model's inputs; the answer has its outputs by name."""
    import numpy as np

    outputs = [each.name for each in session.get_outputs()]
    inputs = {_python_name(each.name): each for each in session.get_inputs()}
    kinds = {
        name: GenericAlias(np.ndarray, (Any, GenericAlias(np.dtype, (_numpy_type(each.type),))))
        for name, each in inputs.items()
    }

    def call(**arrays: Any) -> Any:
        given = {inputs[name].name: array for name, array in arrays.items()}
        return dict(zip(outputs, session.run(None, given), strict=True))

    tensors = {
        "inputs": [_onnx_tensor(each, name) for name, each in inputs.items()],
        "outputs": [_onnx_tensor(each, each.name) for each in session.get_outputs()],
    }
    example = {each["name"]: _zeros(each) for each in tensors["inputs"]}
    about = f"Run the ONNX model: {', '.join(inputs)} give {', '.join(outputs)}."
    only = next(iter(example.values())) if len(example) == 1 else example
    return ServedObject(_with_signature(call, "model", about, kinds), example=only, tensors=tensors)


def _numpy_type(onnx: str) -> Any:
    """Return the numpy type of ONNX Runtime's ``tensor(float)`` and the like."""
    import numpy as np

    name = onnx.removeprefix("tensor(").removesuffix(")")
    found = getattr(np, _ONNX_TYPES.get(name, name), None)
    if found is None:
        raise LoadError(f"the model has a value of type {onnx}, which has no form in a request")
    return found


def _onnx_tensor(value: Any, name: str) -> dict[str, Any]:
    import numpy as np

    dtype = np.dtype(_numpy_type(value.type))
    letter = {"f": "FP", "i": "INT", "u": "UINT"}.get(dtype.kind)
    datatype = f"{letter}{8 * dtype.itemsize}" if letter else "BOOL" if dtype.kind == "b" else "BYTES"
    shape = [each if isinstance(each, int) else _ANY_SIZE for each in value.shape]
    return {"name": name, "datatype": datatype, "shape": shape or [1]}


def _zeros(tensor: Mapping[str, Any]) -> Any:
    value: Any = {"BYTES": "hello", "BOOL": True}.get(tensor["datatype"], 0)
    for size in reversed(tensor["shape"]):
        value = [value] * max(size, 1)
    return value


def _python_name(name: str) -> str:
    """Return a name as a parameter can have it."""
    return name if name.isidentifier() else "".join(each if each.isalnum() else "_" for each in f"_{name}")
