"""Which codecs there are, and which of them fits a content type, a value or a type hint.

The codecs for numpy and pandas are known by name only until one of them is asked for by its content type, or until
something else has imported the library: a worker whose model needs neither does not pay for them.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from typing import Any, Generic, NamedTuple, TypeVar, get_args, get_origin

from ts.mlserver.codecs.base import InputCodecLike, RequestCodecLike
from ts.mlserver.logging import logger

_Codec = TypeVar("_Codec", InputCodecLike, RequestCodecLike)
_CodecClass = TypeVar("_CodecClass", bound=Any)


class _NotImported(NamedTuple):
    """A codec that is imported when it is needed."""

    module: str
    name: str
    library: str  # without it there is no value of the codec's type

    def imported(self) -> Any:
        try:
            return getattr(importlib.import_module(self.module), self.name)
        except ModuleNotFoundError as error:
            if error.name != self.library:
                raise
            logger.warning("The codec %s needs %s, which is not installed.", self.name, self.library)
            return None


class CodecRegistry(Generic[_Codec]):
    """Codecs of one kind by content type; where several fit, the one that was registered first is taken."""

    def __init__(self, not_imported: dict[str, _NotImported]) -> None:
        self._codecs: dict[str, Any] = dict(not_imported)

    def register(self, content_type: str, codec: _Codec) -> None:
        """Make ``codec`` the one for ``content_type``."""
        self._codecs[content_type] = codec

    def find(self, content_type: str | None = None, payload: Any = None, type_hint: Any = None) -> _Codec | None:
        """Return the codec for a content type, else for a value, else for a type hint; None if there is none."""
        if content_type:
            codec: _Codec | None = self._by_content_type(content_type)
            return codec
        if payload is not None:
            return self.find_by_payload(payload)
        return None if type_hint is None else self.find_by_type_hint(type_hint)

    def find_by_payload(self, payload: Any) -> _Codec | None:
        """Return the first codec that can encode ``payload``; None if there is none."""
        return next((codec for codec in self._importable() if codec.can_encode(payload)), None)

    def find_by_type_hint(self, type_hint: Any) -> _Codec | None:
        """Return the first codec for a type as it stands in a signature; None if there is none."""
        wanted = _comparable(type_hint)
        return next((codec for codec in self._importable() if wanted in _hints(codec)), None)

    def _by_content_type(self, content_type: str) -> Any:
        codec = self._codecs.get(content_type)
        if isinstance(codec, _NotImported):
            codec = codec.imported()
            if codec is not None:
                self._codecs[content_type] = codec
        return codec

    def _importable(self) -> Iterator[Any]:
        """Return the codecs that a value or a type hint may be of."""
        for content_type, codec in list(self._codecs.items()):
            if not isinstance(codec, _NotImported):
                yield codec
            elif codec.library in sys.modules:
                yield self._by_content_type(content_type)


def _hints(codec: Any) -> list[Any]:
    return [_comparable(hint) for hint in (codec.TypeHint, *getattr(codec, "OtherTypeHints", ()))]


def _comparable(hint: Any) -> Any:
    """Return a hint such that ``List[str]`` and ``list[str]`` are equal."""
    return (get_origin(hint), get_args(hint)) if get_origin(hint) is not None else hint


_PACKAGE = "ts.mlserver.codecs"
_inputs: CodecRegistry[InputCodecLike] = CodecRegistry(
    {
        "str": _NotImported(f"{_PACKAGE}.string", "StringCodec", "builtins"),
        "np": _NotImported(f"{_PACKAGE}.numpy", "NumpyCodec", "numpy"),
        "base64": _NotImported(f"{_PACKAGE}.base64", "Base64Codec", "builtins"),
        "datetime": _NotImported(f"{_PACKAGE}.datetime", "DatetimeCodec", "builtins"),
    }
)
_requests: CodecRegistry[RequestCodecLike] = CodecRegistry(
    {
        "str": _NotImported(f"{_PACKAGE}.string", "StringRequestCodec", "builtins"),
        "np": _NotImported(f"{_PACKAGE}.numpy", "NumpyRequestCodec", "numpy"),
        "pd": _NotImported(f"{_PACKAGE}.pandas", "PandasCodec", "pandas"),
    }
)

find_input_codec = _inputs.find
find_input_codec_by_payload = _inputs.find_by_payload
find_input_codec_by_type_hint = _inputs.find_by_type_hint
find_request_codec = _requests.find
find_request_codec_by_payload = _requests.find_by_payload
find_request_codec_by_type_hint = _requests.find_by_type_hint


def register_input_codec(codec: _CodecClass) -> _CodecClass:
    """Decorate an `InputCodec` to be found by its ``ContentType``, by values and by type hints."""
    if codec.ContentType is not None:
        _inputs.register(codec.ContentType, codec)
    return codec


def register_request_codec(codec: _CodecClass) -> _CodecClass:
    """Decorate a `RequestCodec` to be found by its ``ContentType``, by values and by type hints."""
    if codec.ContentType is not None:
        _requests.register(codec.ContentType, codec)
    return codec
