"""JSON texts as elements of a tensor: what data frames make of columns with mixed content."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from ts.mlserver.codecs.errors import CodecError
from ts.mlserver.codecs.lists import as_list
from ts.mlserver.codecs.utils import InputOrOutput


class JSONEncoderWithArray(json.JSONEncoder):
    """Writes arrays as lists, and numpy's numbers as numbers."""

    def default(self, o: Any) -> Any:
        """Return what JSON can say for ``o``."""
        if isinstance(o, np.ndarray | np.floating | np.integer | np.bool_):
            return o.tolist()
        return super().default(o)


def encode_to_json(v: Any, use_bytes: bool = True) -> str | bytes:
    """Return ``v`` as compact JSON."""
    text = json.dumps(v, ensure_ascii=False, allow_nan=False, separators=(",", ":"), cls=JSONEncoderWithArray)
    return text.encode() if use_bytes else text


def decode_json_input_or_output(input_or_output: InputOrOutput) -> list[Any]:
    """Return what the JSON texts of a tensor say."""
    try:
        return [json.loads(element) for element in as_list(input_or_output.data.root)]
    except (TypeError, ValueError) as error:
        raise CodecError(f"{input_or_output.name!r} is no JSON: {error}") from error
