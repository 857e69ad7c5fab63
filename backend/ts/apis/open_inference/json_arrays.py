"""Large JSON requests, with the numbers of their tensors as arrays.

simdjson reads a million numbers into one block of memory in the time in which others make a list of a fifth of them. It
is optional, and only requests of the usual form are read with it: one or more inputs of numbers, flat or nested. For
all others, and for whatever is wrong, there is `ts.apis.open_inference.json_request`, which says what it is.
"""

from typing import TYPE_CHECKING, Any, Final

from ts.apis.open_inference.tensors import installed
from ts.protocol.datatypes import BOUNDS, FLOATS

if TYPE_CHECKING:
    import numpy as np

#: simdjson's letter for the elements of a datatype, and numpy's.
_FLOAT, _SIGNED, _UNSIGNED = ("d", "float64"), ("i", "int64"), ("u", "uint64")
#: Rows that are shorter on average are read faster as lists.
_SHORT_ROW: Final = 4
#: A parser has some 24 bytes for each number of the largest text that it has read. To take that memory from the system
#: anew each time would take as long as to parse; more than 12 MB are not kept.
_MAX_KEPT_NUMBERS: Final = 512 * 1024
_MAX_KEPT_BYTES: Final = 8 * 1024 * 1024
_parsers: list[Any] = []
#: A request with BYTES gains nothing; its beginning and end usually show the datatype.
_BYTES: Final = b'"BYTES"'
_NEAR: Final = 1024


class _Unusual(Exception):
    """The request is not of the form that is read here."""


def parse_with_arrays(text: bytes) -> dict[str, Any] | None:
    """Return the JSON object of a request, with the data of all inputs as flat arrays of 64-bit numbers.

    Every number fits the datatype that its input names, except that floats may be too large for it. None if the request
    is not of the form that is read here, or a library is not installed.
    """
    simdjson = installed("simdjson")
    if simdjson is None or installed("numpy") is None or _BYTES in text[:_NEAR] or _BYTES in text[-_NEAR:]:
        return None
    parser = _parsers.pop() if _parsers else simdjson.Parser()
    reader = _Reader(simdjson)
    try:
        document = reader.read(parser.parse(text), text.count(b"["))
    except (_Unusual, TypeError, ValueError, RuntimeError):  # all but the first are simdjson's
        return None
    if not _parsers and len(text) <= _MAX_KEPT_BYTES and reader.numbers <= _MAX_KEPT_NUMBERS:
        _parsers.append(parser)
    return document


class _Reader:
    """Reads one document.

    Attributes:
        numbers: How many numbers its inputs had.
    """

    def __init__(self, simdjson: Any) -> None:
        self.numbers = 0
        self._array, self._object = simdjson.Array, simdjson.Object
        self._brackets = 0  # the opening brackets of the arrays that were read

    def read(self, parsed: Any, brackets: int) -> dict[str, Any]:
        document = self._members(parsed)
        for name, value in document.items():
            if name == "inputs":
                if not isinstance(value, self._array):
                    raise _Unusual
                self._brackets += 1
                document[name] = [self._input(each) for each in value]
            else:
                document[name] = self._plain(value)
        # `as_buffer` flattens whatever there is. If no bracket is left over, data that begin with a number have no list
        # in them, and rows that are lists no further ones.
        if self._brackets != brackets:
            raise _Unusual
        return document

    def _members(self, item: Any) -> dict[str, Any]:
        if not isinstance(item, self._object):
            raise _Unusual
        members = {name: item[name] for name in item}  # `items` makes lists of all arrays
        if len(members) < len(item):  # of a name that is there twice the first would be taken
            raise _Unusual
        return members

    def _plain(self, value: Any) -> Any:
        if isinstance(value, self._array):
            self._brackets += 1
            return value.as_list()
        return value.as_dict() if isinstance(value, self._object) else value

    def _input(self, item: Any) -> dict[str, Any]:
        members = self._members(item)
        datatype, data = members.get("datatype"), members.pop("data", None)
        if not isinstance(datatype, str) or not isinstance(data, self._array):
            raise _Unusual
        plain = {name: self._plain(value) for name, value in members.items()}
        return plain | {"data": self._numbers(data, datatype)}

    def _numbers(self, data: Any, datatype: str) -> "np.ndarray[Any, Any]":
        import numpy as np

        bounds = BOUNDS.get(datatype)
        if bounds is None and datatype not in FLOATS:
            raise _Unusual
        letter, kind = _FLOAT if bounds is None else _SIGNED if bounds[0] else _UNSIGNED
        numbers = np.frombuffer(data.as_buffer(of_type=letter), kind)
        if bounds is not None and numbers.size and not bounds[0] <= numbers.min() <= numbers.max() <= bounds[1]:
            raise _Unusual
        self._count_rows(data, numbers.size)
        self.numbers += numbers.size
        return numbers

    def _count_rows(self, data: Any, size: int) -> None:
        rows = [data]
        self._brackets += 1
        while len(rows[0]) and isinstance(rows[0][0], self._array):
            rows = [each for row in rows for each in row]
            if len(rows) * _SHORT_ROW > size or not all(isinstance(each, self._array) for each in rows):
                raise _Unusual
            self._brackets += len(rows)
