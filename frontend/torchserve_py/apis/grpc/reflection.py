"""gRPC's server reflection, with the comments of the definitions: ``grpcurl describe`` shows them.

Generated modules, and so the descriptors of a pool, lack comments; the compiler has written them into a file next to
the modules.
"""

from collections.abc import AsyncIterable, AsyncIterator, Iterable
from importlib.resources import files
from typing import Any, Final

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool

from torchserve_py.apis.grpc import protos
from torchserve_py.apis.grpc.protos.reflection_pb2 import (
    DESCRIPTOR,
    ErrorResponse,
    ExtensionNumberResponse,
    FileDescriptorResponse,
    ListServiceResponse,
    ServerReflectionRequest,
    ServerReflectionResponse,
    ServiceResponse,
)
from torchserve_py.net.http2.grpc_status import StatusCode

#: The full name of this service.
REFLECTION: Final = DESCRIPTOR.services_by_name["ServerReflection"].full_name


class Reflection:
    """The reflection service.

    Args:
        names: The full names of the services that it lists.
        pool: The definitions of these services.
    """

    def __init__(self, names: Iterable[str], pool: DescriptorPool) -> None:
        self._services = ListServiceResponse(service=[ServiceResponse(name=name) for name in sorted(names)])
        self._pool: Any = pool  # its stubs lack some methods
        written = FileDescriptorSet.FromString((files(protos) / "definitions.binpb").read_bytes())
        self._comments = {each.name: each.source_code_info for each in written.file}

    async def answer(
        self, requests: AsyncIterable[ServerReflectionRequest], _: Any
    ) -> AsyncIterator[ServerReflectionResponse]:
        """Answer each request."""
        async for request in requests:
            try:
                answer = self._answer(request)
            except KeyError:
                answer = _refusal(StatusCode.NOT_FOUND, "The server has no such definition.")
            answer.original_request.CopyFrom(request)
            yield answer

    def _answer(self, request: ServerReflectionRequest) -> ServerReflectionResponse:
        """Return the answer. Raises KeyError: there is no such definition."""
        pool = self._pool
        match request.WhichOneof("message_request"):
            case "file_by_filename":
                return self._definitions(pool.FindFileByName(request.file_by_filename))
            case "file_containing_symbol":
                return self._definitions(pool.FindFileContainingSymbol(request.file_containing_symbol))
            case "file_containing_extension":
                wanted = request.file_containing_extension
                message = pool.FindMessageTypeByName(wanted.containing_type)
                return self._definitions(pool.FindExtensionByNumber(message, wanted.extension_number).file)
            case "all_extension_numbers_of_type":
                message = pool.FindMessageTypeByName(request.all_extension_numbers_of_type)
                numbers = sorted(each.number for each in pool.FindAllExtensions(message))
                found = ExtensionNumberResponse(base_type_name=message.full_name, extension_number=numbers)
                return ServerReflectionResponse(all_extension_numbers_response=found)
            case "list_services":
                return ServerReflectionResponse(list_services_response=self._services)
        return _refusal(StatusCode.INVALID_ARGUMENT, "The request asks for nothing that this service knows.")

    def _definitions(self, file: FileDescriptor) -> ServerReflectionResponse:
        """Return a file, and those that it imports."""
        found: dict[str, bytes] = {}

        def add(each: FileDescriptor) -> None:
            if each.name not in found:
                found[each.name] = self._commented(each)
                for imported in each.dependencies:
                    add(imported)

        add(file)
        return ServerReflectionResponse(
            file_descriptor_response=FileDescriptorResponse(file_descriptor_proto=found.values())
        )

    def _commented(self, file: FileDescriptor) -> bytes:
        if (comments := self._comments.get(file.name)) is None:
            return file.serialized_pb
        definition = FileDescriptorProto.FromString(file.serialized_pb)
        definition.source_code_info.CopyFrom(comments)
        return definition.SerializeToString()


def _refusal(code: StatusCode, message: str) -> ServerReflectionResponse:
    return ServerReflectionResponse(error_response=ErrorResponse(error_code=code, error_message=message))
