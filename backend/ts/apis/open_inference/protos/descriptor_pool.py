"""The descriptor pool of the Open Inference messages, and of gRPC's health checking and reflection: one of our own, and
not protobuf's default one.

A process has one default pool, and a full name can be in it once. Clients (tritonclient, MLServer,
grpcio-health-checking) put theirs there, under the same names; a handler that imports one must not break the worker
that it runs in, nor a plugin the server.
"""

from typing import Final

from google.protobuf.descriptor_pool import DescriptorPool

_POOL: Final = DescriptorPool()


def Default() -> DescriptorPool:
    """Return the pool; the generated code calls it by this name."""
    return _POOL
