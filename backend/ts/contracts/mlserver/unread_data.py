"""Tensor data that become a list only when the model reads them as one, and MLServer's numpy codec for such data.

A megabyte of floats takes 15 ms to become a list and 30 ms to become an array again. Tensors in the raw form, and the
numbers of large JSON, arrive as a block of memory. What only passes through a model is never looked at, the numpy codec
makes an array of it without a list in between, and the list that the API promises is made when ``root`` is read.
"""

from math import prod
from typing import TYPE_CHECKING, Any, Final, Self

from mlserver.codecs import numpy as codec
from mlserver.codecs.utils import inject_batch_dimension
from mlserver.types import Parameters, RequestInput, ResponseOutput, TensorData

from ts.apis.open_inference.tensors import flat_list, numpy_of, tensor_of
from ts.apis.open_inference.types import Tensor
from ts.handler_utils.shapes import shown
from ts.jobs.errors import RowFailure
from ts.protocol.datatypes import FLOATS

if TYPE_CHECKING:
    import numpy as np

_UNREAD: Final = "_unread"
#: numpy's kinds of truth values, integers and floats, whose memory is sent as it is.
_KINDS: Final = "biuf"


class UnreadData(TensorData):
    """The data of a tensor or an array that has not been read as a list yet."""

    @classmethod
    def of_tensor(cls, tensor: Tensor, *, nan_is_null: bool = False) -> Self:
        """Return the data of a tensor whose memory does not change any more.

        Args:
            tensor: The tensor; the caller has checked that its data fit its shape.
            nan_is_null: Whether the list will have None for NaN.
        """
        data = cls.model_construct(root=None)
        del data.__dict__["root"]
        data.__dict__[_UNREAD] = (tensor, nan_is_null)
        return data

    @property
    def tensor(self) -> Tensor | None:
        """The tensor; None if the data were read as a list, which may have been changed since."""
        unread = None if "root" in self.__dict__ else self.__dict__.get(_UNREAD)
        return None if unread is None else unread[0]

    @property
    def array(self) -> "np.ndarray[Any, Any] | None":
        """The data as an array that must not be written to, if they are numbers and were not read as a list."""
        tensor = self.tensor
        return None if tensor is None or tensor.datatype == "BYTES" else numpy_of(tensor)

    if not TYPE_CHECKING:  # a type checker would take it for a promise that every attribute is there

        def __getattr__(self, name: str) -> Any:
            """Make the list when it is asked for: attributes that are there do not come here."""
            if name == "root":
                unread = self.__dict__.get(_UNREAD)
                if unread is not None:
                    # Threads of the model may read at once: all get one list, and until it is there this stays.
                    self.__dict__.setdefault("root", _list_of(*unread))
                    self.__dict__.pop(_UNREAD, None)
                if "root" in self.__dict__:
                    return self.__dict__["root"]
            return super().__getattr__(name)

        def __getstate__(self) -> dict[Any, Any]:
            self.root  # noqa: B018 - reading it makes the list: the memory of a message can be in no copy or pickle
            return super().__getstate__()

        def __copy__(self) -> Self:
            self.root  # noqa: B018
            return super().__copy__()

        def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
            self.root  # noqa: B018
            return super().__deepcopy__(memo)

    def __len__(self) -> int:
        tensor = self.tensor
        return len(self.root) if tensor is None else prod(tensor.shape)

    def __eq__(self, other: object) -> bool:
        return hasattr(other, "root") and bool(self.root == other.root)

    __hash__ = None  # type: ignore[assignment]  # like that of every message

    def __repr_name__(self) -> str:
        return TensorData.__name__


def _list_of(tensor: Tensor, nan_is_null: bool) -> list[Any]:
    values = flat_list(tensor)
    if nan_is_null and tensor.datatype in FLOATS:
        return [None if value != value else value for value in values]  # noqa: PLR0124 - NaN is null
    return values


def let_numpy_codec_take_memory() -> None:
    """Let `mlserver.codecs.NumpyCodec` decode `UnreadData`, and encode arrays of numbers as such, in no time.

    An input that is no array of its shape is then the client's mistake.
    """
    numpy_codec: Any = codec.NumpyCodec
    decode, encode = numpy_codec.decode_input, numpy_codec.encode_output
    if getattr(decode, "takes_memory", False):
        return

    def decode_input(cls: Any, /, request_input: RequestInput | ResponseOutput) -> Any:
        data: Any = request_input.data
        array = data.array if isinstance(data, UnreadData) else None
        if array is None or array.dtype != codec.to_dtype(request_input):
            try:
                return decode(request_input)
            except ValueError as error:
                if not isinstance(request_input, RequestInput):
                    raise
                # Texts may have any shape, as most codecs do not look at it.
                name, shape = request_input.name, shown(request_input.shape)
                raise RowFailure(400, f"Input {name!r} is no array of the shape {shape}: {error}.") from error
        return array.copy().reshape(request_input.shape)  # models may write to their inputs

    def encode_output(cls: Any, /, name: str, payload: Any, **options: Any) -> ResponseOutput:
        if payload.dtype.kind not in _KINDS:
            output: ResponseOutput = encode(name, payload, **options)
            return output
        return ResponseOutput(
            name=name,
            datatype=codec.to_datatype(payload.dtype),
            shape=inject_batch_dimension(list(payload.shape)),
            data=UnreadData.of_tensor(tensor_of("", payload.copy()), nan_is_null=True),
            parameters=Parameters(content_type=cls.ContentType),
        )

    decode_input.takes_memory = True  # type: ignore[attr-defined]
    numpy_codec.decode_input = classmethod(decode_input)
    numpy_codec.encode_output = classmethod(encode_output)
