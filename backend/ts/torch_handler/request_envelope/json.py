"""The envelope ``json``: ``{"instances": […]}`` to ``{"predictions": […]}``, as TensorFlow Serving has it.

An instance ``{"b64": text}`` is binary data in base64.
"""

import base64
import binascii
from collections.abc import Sequence
from typing import Any

from ts.jobs.json_values import json_text
from ts.torch_handler.request_envelope.base import RequestEnvelope, member
from ts.utils.util import PredictionException


class JSONEnvelope(RequestEnvelope):
    """Each instance of each request becomes a row; each request gets the predictions for its own."""

    def read_request(self, body: Any, index: int) -> Sequence[Any]:
        return [_instance(instance) for instance in member(body, "instances")]

    def write_response(self, results: list[Any], index: int) -> str:
        """Return the predictions as JSON. Raises PredictionException: JSON cannot represent a result."""
        try:
            return json_text({"predictions": results})
        except (TypeError, ValueError) as error:
            raise PredictionException("Unsupported model output data type.", 503) from error


def _instance(instance: Any) -> Any:
    if not isinstance(instance, dict) or list(instance) != ["b64"]:
        return instance
    try:
        return base64.b64decode(instance["b64"], validate=True)
    except (TypeError, binascii.Error) as error:
        raise ValueError(f'An instance\'s "b64" is no base64: {error}') from error
