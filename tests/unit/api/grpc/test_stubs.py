"""The stubs that are checked in are those of the definitions beside them."""

from importlib import import_module
from importlib.metadata import distribution
from pathlib import Path

import grpc_tools.protoc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from torchserve_py.api.grpc import protos

PACKAGE = "torchserve_py.api.grpc.protos"
DEFINITIONS = sorted(Path(protos.__file__).parent.glob("*.proto"))


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda path: path.stem)
def test_stubs_say_what_the_definition_says(definition, tmp_path):
    sources = definition.parents[len(PACKAGE.split("."))]
    out = tmp_path / "descriptors"
    status = grpc_tools.protoc.main(
        [
            "protoc",
            f"--proto_path={sources}",
            f"--proto_path={distribution('googleapis-common-protos').locate_file('')}",
            f"--proto_path={Path(grpc_tools.__file__).parent / '_proto'}",
            f"--descriptor_set_out={out}",
            str(definition),
        ]
    )
    assert status == 0
    (compiled,) = FileDescriptorSet.FromString(out.read_bytes()).file
    module = import_module(f"{PACKAGE}.{definition.stem}_pb2")
    checked_in = FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    for each in (compiled, checked_in):
        for message in each.message_type:
            for field in (*message.field, *(field for nested in message.nested_type for field in nested.field)):
                field.ClearField("json_name")  # only one of the two has it
    assert checked_in == compiled, "run scripts/generate-stubs"
    stubs = import_module(f"{PACKAGE}.{definition.stem}_pb2_grpc")
    for service in compiled.service:
        assert {method.name for method in service.method} <= set(dir(getattr(stubs, f"{service.name}Servicer")))
