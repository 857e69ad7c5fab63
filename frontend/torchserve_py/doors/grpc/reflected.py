"""What server reflection shows: the definitions of all services, which lie in two descriptor pools."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor

from ts.open_inference.protos import descriptor_pool as open_inference_pool


class ReflectedPools:
    """Both pools, with as much of the interface of one as reflection uses. What neither has is a KeyError."""

    def __init__(self) -> None:
        self._pools: list[Any] = [descriptor_pool.Default(), open_inference_pool.Default()]

    def FindFileByName(self, file_name: str) -> FileDescriptor:
        """A file by its name."""
        found: FileDescriptor = self._first(lambda pool: pool.FindFileByName(file_name))
        return found

    def FindFileContainingSymbol(self, symbol: str) -> FileDescriptor:
        """The file with a service, a message, …"""
        found: FileDescriptor = self._first(lambda pool: pool.FindFileContainingSymbol(symbol))
        return found

    def FindMessageTypeByName(self, full_name: str) -> Descriptor:
        """A message by its name."""
        found: Descriptor = self._first(lambda pool: pool.FindMessageTypeByName(full_name))
        return found

    def FindExtensionByNumber(self, message_descriptor: Descriptor, number: int) -> FieldDescriptor:
        """An extension of a message."""
        found: FieldDescriptor = message_descriptor.file.pool.FindExtensionByNumber(message_descriptor, number)
        return found

    def FindAllExtensions(self, message_descriptor: Descriptor) -> list[FieldDescriptor]:
        """All extensions of a message."""
        found: list[FieldDescriptor] = message_descriptor.file.pool.FindAllExtensions(message_descriptor)
        return found

    def _first(self, find: Callable[[Any], Any]) -> Any:
        for pool in self._pools[:-1]:
            try:
                return find(pool)
            except KeyError:
                continue
        return find(self._pools[-1])
