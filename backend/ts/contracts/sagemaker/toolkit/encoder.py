"""Writes arrays as bodies, under the toolkit's names; numpy is imported for the types that need it."""

import io
from collections.abc import Callable, Mapping
from typing import Any, Final

from ts.contracts.sagemaker.toolkit import content_types
from ts.contracts.sagemaker.toolkit.errors import UnsupportedFormatError
from ts.jobs.json_values import json_text


def encode(array_like: Any, content_type: str | None) -> Any:
    """Return an array, or what numpy makes one of, as a body: text for JSON and CSV, bytes for NPY.

    NaN and infinities are null in JSON. Raises UnsupportedFormatError: there is no encoder for the content type;
    TypeError: the value cannot be written.
    """
    encode_as = _encoder_map.get(content_type or "")
    if encode_as is None:
        raise UnsupportedFormatError(content_type, status_code=406)
    return encode_as(array_like)


def _array_to_json(array_like: Any) -> str:
    return json_text(array_like)


def _array_to_npy(array_like: Any) -> bytes:
    import numpy as np

    buffer = io.BytesIO()
    np.save(buffer, array_like, allow_pickle=False)
    return buffer.getvalue()


def _array_to_csv(array_like: Any) -> str:
    import numpy as np

    stream = io.StringIO()
    np.savetxt(stream, array_like, delimiter=",", fmt="%s")
    return stream.getvalue()


_encoder_map: Final[Mapping[str, Callable[[Any], Any]]] = {
    content_types.NPY: _array_to_npy,
    content_types.CSV: _array_to_csv,
    content_types.JSON: _array_to_json,
}
SUPPORTED_CONTENT_TYPES: Final = set(_encoder_map)
