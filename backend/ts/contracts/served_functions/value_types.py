"""Types of parameters and results that JSON has no form of: arrays, tensors, images and sound.

Each is read from a request and written into a response in its own way. The libraries are looked up only if a function's
annotation has imported them.
"""

import base64
import binascii
import functools
import io
import operator
import sys
import types
import typing
import wave
from collections.abc import Callable
from typing import Annotated, Any, Final, NamedTuple

from pydantic import BeforeValidator, WithJsonSchema

from ts.jobs import device_loss
from ts.protocol.media_types import JSON
from ts.utils.sound import Audio

#: How an array of any number of dimensions looks in JSON.
_NUMBERS: Final = {"type": "array", "items": {}, "description": "numbers, nested as the dimensions are"}
_NO_NUMBERS: Final = "it is not numbers, nested as the dimensions are"
_NPY: Final = b"\x93NUMPY"
#: The media type of such a file.
ARRAY_FILE: Final = "application/x-npy"
#: Bytes of a number of which numpy does not have every type, such as bfloat16.
_HALF: Final = 2
#: An image of one pixel, and a hundredth of a second of silence: examples that every reader of such files accepts.
_PIXEL: Final = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"


class ValueType(NamedTuple):
    """How values of one type come from requests, and become responses.

    Attributes:
        media_type: Of a request's body that is one value, and of a response.
        schema: JSON Schema of a value within JSON.
        read: Makes a value of what a request has: bytes, a text, lists, an array. Raises ValueError.
        write: Makes the body of a response; None: a value is written as JSON.
    """

    media_type: str
    schema: dict[str, Any]
    read: Callable[[Any], Any]
    write: Callable[[Any], bytes] | None = None

    @property
    def is_file(self) -> bool:
        """Whether the body of a request is a file."""
        return self.write is not None


def value_type_of(annotation: Any) -> ValueType | None:
    """Return how values of an annotated type are read and written; None for types that pydantic knows itself."""
    if annotation is Audio:
        return _AUDIO
    numpy, torch, image = sys.modules.get("numpy"), sys.modules.get("torch"), sys.modules.get("PIL.Image")
    if numpy is not None and (annotation is numpy.ndarray or typing.get_origin(annotation) is numpy.ndarray):
        return ValueType(JSON, _NUMBERS, functools.partial(_array, dtype_of(annotation)))
    if torch is not None and annotation is torch.Tensor:
        return ValueType(JSON, _NUMBERS, _tensor)
    if image is not None and annotation is image.Image:
        return _IMAGE
    return None


def checked(annotation: Any) -> Any:
    """Return a type as pydantic is to check it; the types here may be arguments of others, such as ``list[Image]``."""
    found = value_type_of(annotation)
    if found is not None:
        return Annotated[Any, BeforeValidator(found.read), WithJsonSchema(found.schema)]
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is None or origin is Annotated or not arguments:
        return annotation
    mapped = tuple(checked(each) for each in arguments)
    if mapped == arguments:
        return annotation
    if origin in (typing.Union, types.UnionType):
        return functools.reduce(operator.or_, mapped)
    return origin[mapped]


def is_array_file(given: Any) -> bool:
    """Return whether a body is a file with an array (.npy)."""
    return isinstance(given, bytes | bytearray) and given.startswith(_NPY)


def array_file(value: Any) -> bytes:
    """Return a file with an array or a tensor, in numpy's own format (.npy)."""
    import numpy as np

    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if value.dtype.itemsize == _HALF and value.is_floating_point() else value
    out = io.BytesIO()
    np.save(out, np.asarray(value), allow_pickle=False)
    return out.getvalue()


def written(value: Any) -> tuple[bytes, str] | None:
    """Return the body and media type of a result that is an image or sound; None for other results."""
    if isinstance(value, Audio):
        return value.to_bytes(), _AUDIO.media_type
    image = sys.modules.get("PIL.Image")
    if image is not None and isinstance(value, image.Image):
        return _png(value), _IMAGE.media_type
    return None


def _file(given: Any) -> bytes | bytearray:
    """Return the bytes of a file: as they came, or from the base64 of a text or a data URL."""
    if isinstance(given, bytes | bytearray):
        return given
    if not isinstance(given, str):
        raise ValueError(f"a file is wanted, as bytes or in base64; it is {type(given).__name__}")
    text = given.partition(",")[2] if given.startswith("data:") else given
    try:
        return base64.b64decode(text.encode(), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("a text stands for a file only if it is base64") from None


def _image(given: Any) -> Any:
    from PIL import Image

    if isinstance(given, Image.Image):
        return given
    try:
        image = Image.open(io.BytesIO(_file(given)))
        image.load()
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        reason = "it is too large" if isinstance(error, Image.DecompressionBombError) else "its format is not known"
        raise ValueError(f"it is not an image that can be read: {reason}") from None
    return image


def _png(image: Any) -> bytes:
    out = io.BytesIO()
    plain = image if image.mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I", "I;16") else image.convert("RGB")
    plain.save(out, "PNG")
    return out.getvalue()


def _audio(given: Any) -> Audio:
    return given if isinstance(given, Audio) else Audio.from_bytes(_file(given))


def dtype_of(annotation: Any) -> Any:
    """Return the dtype that an annotation such as ``NDArray[np.float32]`` names; None if it names none."""
    numpy = sys.modules["numpy"]
    arguments = typing.get_args(annotation)
    kinds = typing.get_args(arguments[1]) if len(arguments) > 1 else ()
    return numpy.dtype(kinds[0]) if kinds and kinds[0] in numpy.sctypeDict.values() else None


def _array(dtype: Any, given: Any) -> Any:
    import numpy as np

    from ts.handler_utils.client_arrays import array_in_file

    if isinstance(given, bytes | bytearray):
        if not is_array_file(given):
            raise ValueError("bytes stand for an array only in numpy's format (.npy)")
        given = array_in_file(given)
    if dtype is None and isinstance(given, str):  # numpy makes an array of text of it
        raise ValueError(f"{_NO_NUMBERS}: it is {'text' if given else 'empty'}; send JSON such as [1, 2]")
    try:
        array = np.asarray(given, dtype)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"{_NO_NUMBERS}: {error}") from error
    if array.dtype.hasobject:
        raise ValueError("its rows differ in length, or it has values that are not numbers")
    return array


def _tensor(given: Any) -> Any:
    import torch

    if isinstance(given, torch.Tensor):
        return given
    if isinstance(given, bytes | bytearray):
        given = _array(None, given)
    try:
        return torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError, OverflowError, RecursionError) as error:
        if device_loss.memory_ran_out(error):
            raise
        raise ValueError(f"{_NO_NUMBERS}: {error}") from error


def _silence() -> str:
    """Return a WAV file of a hundredth of a second, in base64."""
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(bytes(160))
    return base64.b64encode(out.getvalue()).decode()


def _file_schema(kind: str, example: str) -> dict[str, Any]:
    return {"type": "string", "contentEncoding": "base64", "contentMediaType": kind, "examples": [example]}


_IMAGE: Final = ValueType("image/png", _file_schema("image/*", _PIXEL), _image, _png)
_AUDIO: Final = ValueType("audio/wav", _file_schema("audio/*", _silence()), _audio, Audio.to_bytes)
