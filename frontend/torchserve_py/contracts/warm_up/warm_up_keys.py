"""The key of `model-config.yaml` for requests that each worker runs before it is ready."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator

from torchserve_py.apis.open_inference.declared_tensors import TENSOR, TensorDeclaration, is_shape, named_once
from torchserve_py.base.settings.schemas.plugin_keys import ModelConfigKeys
from torchserve_py.base.settings.schemas.schema import ClosedSchema, key
from torchserve_py.base.settings.schemas.values import Expected, Listed, Nested, Text, integer, is_inside


def _is_full_shape(value: object) -> bool:
    return is_shape(value) and -1 not in value  # type: ignore[operator]


class WarmupTensor(TensorDeclaration):
    """One input of zeros (BYTES: of empty texts)."""

    shape: Annotated[tuple[int, ...], Expected("a list of integers from 0", _is_full_shape)]


_WARMUP_TENSORS = Listed(
    "a list of one or more tensors, each with a name of its own, a datatype and a shape, for example "
    "[{name: image, datatype: FP32, shape: [3, 224, 224]}]"
)


class WarmupRequest(ClosedSchema):
    """One request that a worker runs before it is ready. None = not set."""

    file: Annotated[str | None, Expected("the path of a file in the model's folder", is_inside)] = key(
        "file", "the request's body: a file of the model's folder"
    )
    content_type: Text = key("contentType", "the content type of the file")
    inputs: Annotated[
        tuple[Annotated[WarmupTensor, TENSOR], ...] | None, AfterValidator(named_once), _WARMUP_TENSORS
    ] = key("inputs", "instead of a file: tensors of zeros, as an Open Inference request has them")
    rows: Annotated[int | None, integer(1)] = key(
        "rows", "how many such requests make the batch; at most `batchSize`", "`batchSize`"
    )
    calls: Annotated[int, integer(1, 1000)] = key("calls", "how often the handler is called so", "1", otherwise=1)


_WARMUP = Listed("a list of requests, for example [{file: sample.json, contentType: application/json}]")
_WARMUP_REQUEST = Nested("a map, for example {file: sample.json, contentType: application/json}")


class WarmUpKeys(ModelConfigKeys):
    """`model-config.yaml`, of which this plugin has one key."""

    handlers_only: ClassVar[str] = "its code warms itself up when it loads"
    prepares: ClassVar[str] = "ts.contracts.warm_up.warm_up"

    warmup: Annotated[tuple[Annotated[WarmupRequest, _WARMUP_REQUEST], ...] | None, _WARMUP] = key(
        "warmup", "requests that each worker runs [before it is ready](gpu.md#warm-up)", "none"
    )

    def contradictions(self, given: Mapping[Any, Any]) -> Iterable[tuple[tuple[str, ...], str]]:
        """Yield what does not go together with other keys, and requests that say too much or too little."""
        if self.warmup and given.get("parallelType") == "pp":
            problem = "warmup is set but so is parallelType: pp, where only rank 0 gets requests"
            yield ("warmup", "parallelType"), f"{problem}; warm the model up in the handler's initialize"
        for number, each in enumerate(self.warmup or ()):
            place = f"warmup[{number}]"
            if (each.file is None) == (each.inputs is None):
                yield ("warmup",), f"{place} must have file or inputs, and not both"
            elif each.content_type is not None and each.file is None:
                yield ("warmup",), f"{place}.contentType has no meaning for inputs; leave it out"

    def unfit(self, batch_size: int, model_dir: Path) -> Iterable[str]:
        """Yield requests that are more than a batch, and files that the model's folder does not hold."""
        for number, each in enumerate(self.warmup or ()):
            if each.rows and each.rows > batch_size:
                what = f"warmup[{number}].rows is {each.rows} but the batch size is {batch_size}"
                yield f"{what}; it must be at most that"
        named = [each.file for each in self.warmup or () if each.file is not None]
        missing = [file for file in named if not (model_dir / file).is_file()]
        if missing:
            yield f"warmup names files that are not there: {', '.join(missing)}"

    def for_worker(self, batch_size: int) -> Any:
        """Return the requests as `ts.contracts.warm_up.warm_up.Warmup`."""
        return [
            {
                "file": each.file,
                "content_type": each.content_type,
                "inputs": [[tensor.name, tensor.datatype, list(tensor.shape)] for tensor in each.inputs or ()],
                "rows": each.rows or batch_size,
                "calls": each.calls,
            }
            for each in self.warmup or ()
        ] or None
