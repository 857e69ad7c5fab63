"""The datatypes of the Open Inference Protocol. The server's doors use this module too, so it imports nothing."""

from __future__ import annotations

from typing import Final, NamedTuple


class Datatype(NamedTuple):
    """A datatype of the protocol: bytes per element (0: they vary), `struct`'s letter and numpy's name for it."""

    size: int
    code: str
    numpy: str


#: By the protocol's name. numpy has no BF16; its values are kept as float32.
DATATYPES: Final[dict[str, Datatype]] = {
    "BOOL": Datatype(1, "?", "bool"),
    "UINT8": Datatype(1, "B", "uint8"),
    "UINT16": Datatype(2, "H", "uint16"),
    "UINT32": Datatype(4, "I", "uint32"),
    "UINT64": Datatype(8, "Q", "uint64"),
    "INT8": Datatype(1, "b", "int8"),
    "INT16": Datatype(2, "h", "int16"),
    "INT32": Datatype(4, "i", "int32"),
    "INT64": Datatype(8, "q", "int64"),
    "FP16": Datatype(2, "e", "float16"),
    "BF16": Datatype(2, "H", "float32"),
    "FP32": Datatype(4, "f", "float32"),
    "FP64": Datatype(8, "d", "float64"),
    "BYTES": Datatype(0, "", "object"),
}

FLOATS: Final = frozenset(("FP16", "BF16", "FP32", "FP64"))
#: The least and the greatest value of each datatype of integers.
BOUNDS: Final = {
    name: (0, 2**bits - 1) if name[0] == "U" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    for bits in (8, 16, 32, 64)
    for name in (f"INT{bits}", f"UINT{bits}")
}
