"""The key of a request in the cache of responses.

MLServer's own cache includes the id and the headers of a request in its key, and so hardly ever finds a response. This
key compares the inputs, the requested outputs and the parameters.
"""

import hashlib
from typing import Any, Final

from ts.open_inference.types import InferenceRequest, Tensor

_DIGEST_SIZE: Final = 16  # bytes


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
