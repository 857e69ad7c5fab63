"""Server reflection that tells the comments of the definitions, too: ``grpcurl describe`` shows them.

Generated modules, and so the descriptors that reflection answers with, lack comments; the compiler has written them
into a file next to the modules.
"""

from collections.abc import AsyncIterable, AsyncIterator, Iterable
from importlib.resources import files
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha import reflection
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse

from torchserve_py.apis.grpc import protos


class CommentedReflection:
    """The reflection service.

    Args:
        names: The services that it lists.
        pool: The definitions of these services.
    """

    def __init__(self, names: Iterable[str], pool: DescriptorPool) -> None:
        self._plain: Any = reflection.aio.ReflectionServicer(
            names, pool=pool
        )  # its stubs say a coroutine where it is a generator
        written = FileDescriptorSet.FromString((files(protos) / "definitions.binpb").read_bytes())
        self._comments = {each.name: each.source_code_info for each in written.file}

    async def answer(
        self, requests: AsyncIterable[ServerReflectionRequest], context: Any
    ) -> AsyncIterator[ServerReflectionResponse]:
        """Answer each request; definitions come with their comments."""
        async for response in self._plain.ServerReflectionInfo(requests, context):
            if response.HasField("file_descriptor_response"):
                definitions = response.file_descriptor_response.file_descriptor_proto
                definitions[:] = [self._commented(each) for each in definitions]
            yield response

    def _commented(self, serialized: bytes) -> bytes:
        definition = FileDescriptorProto.FromString(serialized)
        if (comments := self._comments.get(definition.name)) is None:
            return serialized
        definition.source_code_info.CopyFrom(comments)
        return definition.SerializeToString()
