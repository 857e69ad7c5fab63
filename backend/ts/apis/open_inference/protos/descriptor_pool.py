"""The descriptor pool of the Open Inference messages: one of our own, and not protobuf's default one.

A process has one default pool, and a full name can be in it once. Clients of the protocol (tritonclient, MLServer) put
theirs there, under the same names; a handler that imports one must not break the worker that it runs in.
"""

from typing import Final

from google.protobuf.descriptor_pool import DescriptorPool

_POOL: Final = DescriptorPool()


def Default() -> DescriptorPool:
    """Return the pool; the generated code calls it by this name."""
    return _POOL
