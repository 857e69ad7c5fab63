"""How `model-config.yaml` declares tensors."""

from typing import Annotated, Final

from pydantic import AfterValidator

from torchserve_py.base.settings.schemas.schema import ClosedSchema
from torchserve_py.base.settings.schemas.values import (
    MAX_LONG,
    TEXT,
    Expected,
    Listed,
    Nested,
    unexpected,
)
from ts.protocol.datatypes import DATATYPES

DATATYPE: Final = Expected(f"one of {', '.join(sorted(DATATYPES))}", lambda value: value in DATATYPES)
TENSOR = Nested("a map with name, datatype and shape")
_TENSORS = Listed(
    "a list of one or more tensors, each with a name of its own, a datatype and a shape (-1: any size), for example "
    "[{name: image, datatype: FP32, shape: [-1, 3, 224, 224]}]"
)


def is_shape(value: object) -> bool:
    """Return whether a value is the shape of a tensor; -1 stands for any size."""
    return isinstance(value, list) and all(type(size) is int and -1 <= size <= MAX_LONG for size in value)


class TensorDeclaration(ClosedSchema):
    """One input or output, as clients of the Open Inference Protocol see it."""

    name: Annotated[str, TEXT]
    datatype: Annotated[str, DATATYPE]
    shape: Annotated[tuple[int, ...], Expected("a list of integers from -1 (any size)", is_shape)]


def named_once(tensors: tuple[TensorDeclaration, ...] | None) -> tuple[TensorDeclaration, ...]:
    """Return tensors. Raises PydanticCustomError: there is none, or two have the same name."""
    if not tensors or len({each.name for each in tensors}) < len(tensors):
        raise unexpected(_TENSORS.words)
    return tensors


Tensors = Annotated[tuple[Annotated[TensorDeclaration, TENSOR], ...] | None, AfterValidator(named_once), _TENSORS]
