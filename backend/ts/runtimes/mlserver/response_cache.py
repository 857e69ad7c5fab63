"""A cache of responses to equal requests.

MLServer's own cache includes the id and the headers of a request in its key, and so hardly ever finds a response. This
one compares the inputs, the requested outputs and the parameters.
"""

import hashlib
from typing import Any, Final

from mlserver import types

from ts.open_inference.types import InferenceRequest, Tensor

_DIGEST_SIZE: Final = 16  # bytes


class ResponseCache:
    """The newest responses of one worker."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._responses: dict[bytes, types.InferenceResponse] = {}

    def find(self, key: bytes) -> types.InferenceResponse | None:
        """Return the response to a request with that key, or None."""
        return self._responses.get(key)

    def keep(self, key: bytes, response: types.InferenceResponse) -> None:
        """Keep a response."""
        self._responses[key] = response
        if len(self._responses) > self._size:
            del self._responses[next(iter(self._responses))]


def key_of(request: InferenceRequest) -> bytes:
    """Return a key that is equal for requests with equal inputs, outputs and parameters."""
    inputs = [_asked(tensor) for tensor in request.inputs]
    outputs = [(output.name, sorted(output.parameters.items())) for output in request.outputs or ()]
    asked = repr((inputs, outputs, sorted(request.parameters.items())))
    return hashlib.blake2b(asked.encode(), digest_size=_DIGEST_SIZE).digest()


def _asked(tensor: Tensor) -> tuple[object, ...]:
    data: Any = tensor.data
    if not isinstance(data, list):
        data = hashlib.blake2b(memoryview(data), digest_size=_DIGEST_SIZE).digest()
    return tensor.name, tensor.datatype, list(tensor.shape), data, sorted(tensor.parameters.items())
