"""TorchServe's base classes of handlers from before version 0.1, for handlers that still extend them."""

import ast
import json
import os
from abc import ABC
from typing import Any

from ts.protocol.media_types import JSON
from ts.protocol.regular_files import read_regular_text

_MOST_BYTES = 1 << 20


class ModelService(ABC):  # noqa: B024 - the original could be instantiated too
    """A handler for one row; the manifest's ``Model.Signature`` has ``input_type`` and ``inputs[0].data_name``."""

    def __init__(self, model_name: str = "", model_dir: str = "", manifest: Any = None, gpu: int | None = None) -> None:
        self.ctx: Any = None
        self._context: Any = None
        self._signature: dict[str, Any] | None = None

    def initialize(self, context: Any) -> None:
        """Read the signature. Raises ValueError: the manifest names none, or the file does not exist."""
        self._context = context
        name = ((context.manifest or {}).get("Model") or {}).get("Signature")
        path = os.path.join(context.system_properties["model_dir"], name) if name else None  # noqa: PTH118
        if path is None or not os.path.isfile(path):  # noqa: PTH113
            raise ValueError(f"Signature file is not found: the manifest's Model.Signature is {name!r}.")
        self._signature = json.loads(read_regular_text(path, _MOST_BYTES))

    def inference(self, data: list[Any]) -> Any:
        """Answer one row; to be overridden."""
        raise NotImplementedError(f"{type(self).__name__} does not define inference")

    def ping(self) -> Any:
        """Tell that the service is healthy; for handlers that override it."""
        return None

    def signature(self) -> dict[str, Any] | None:
        """Return the model's signature."""
        return self._signature

    def handle(self, data: list[dict[str, Any]], context: Any) -> list[Any]:
        """Answer row 0, with the value under the signature's name, ``body`` or ``data``."""
        if self._signature is None:
            raise ValueError("handle was called before initialize")
        row, name = data[0], self._signature["inputs"][0]["data_name"]
        value = next((row[key] for key in (name, "body", "data") if row.get(key) is not None), None)
        if self._signature["input_type"] == JSON and isinstance(value, bytes | bytearray):
            value = ast.literal_eval(value.decode())
        result = self.inference([value])
        return result if isinstance(result, list) else [result]


class SingleNodeService(ModelService):
    """A `ModelService` in three steps: override ``_inference``, and the other two as needed."""

    def inference(self, data: list[Any]) -> Any:
        """Return what the three steps make of ``data``."""
        return self._postprocess(self._inference(self._preprocess(data)))

    def _preprocess(self, data: Any) -> Any:
        return data

    def _inference(self, data: Any) -> Any:
        return data

    def _postprocess(self, data: Any) -> Any:
        return data
