"""The datatypes of the Open Inference Protocol. The server's endpoints use this module too, so it imports nothing."""

from typing import Final, NamedTuple


class Datatype(NamedTuple):
    """A datatype of the protocol.

    Attributes:
        size: Bytes per element; 0 where they vary.
        code: `struct`'s letter for an element.
        numpy: numpy's name for the type.
        contents: The field of gRPC's ``InferTensorContents`` that has its elements; "" without such a field.
    """

    size: int
    code: str
    numpy: str
    contents: str


#: By the protocol's name. numpy has no BF16: its values are kept as float32.
DATATYPES: Final[dict[str, Datatype]] = {
    "BOOL": Datatype(1, "?", "bool", "bool_contents"),
    "UINT8": Datatype(1, "B", "uint8", "uint_contents"),
    "UINT16": Datatype(2, "H", "uint16", "uint_contents"),
    "UINT32": Datatype(4, "I", "uint32", "uint_contents"),
    "UINT64": Datatype(8, "Q", "uint64", "uint64_contents"),
    "INT8": Datatype(1, "b", "int8", "int_contents"),
    "INT16": Datatype(2, "h", "int16", "int_contents"),
    "INT32": Datatype(4, "i", "int32", "int_contents"),
    "INT64": Datatype(8, "q", "int64", "int64_contents"),
    "FP16": Datatype(2, "e", "float16", ""),
    "BF16": Datatype(2, "H", "float32", ""),
    "FP32": Datatype(4, "f", "float32", "fp32_contents"),
    "FP64": Datatype(8, "d", "float64", "fp64_contents"),
    "BYTES": Datatype(0, "", "object", "bytes_contents"),
}

#: The datatype of each of numpy's types of numbers and truth values.
OF_NUMPY: Final = {each.numpy: name for name, each in DATATYPES.items() if name not in ("BF16", "BYTES")}
FLOATS: Final = frozenset(("FP16", "BF16", "FP32", "FP64"))
#: The least and the greatest value of each datatype of integers.
BOUNDS: Final = {
    name: (0, 2**bits - 1) if name[0] == "U" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    for bits in (8, 16, 32, 64)
    for name in (f"INT{bits}", f"UINT{bits}")
}
