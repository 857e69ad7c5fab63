"""The stubs that are checked in are those of the definitions beside them."""

from importlib import import_module
from importlib.metadata import distribution
from pathlib import Path

import grpc_tools.protoc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from torchserve_py.api.grpc import protos
from ts.open_inference import protos as worker_protos
from ts.open_inference.protos import infer_pb2

PACKAGES = (protos, worker_protos)
DEFINITIONS = [
    (package.__name__, definition)
    for package in PACKAGES
    for definition in sorted(Path(package.__file__).parent.glob("*.proto"))
]


def clear_json_names(message):
    """Take away what only one of the two forms has."""
    for field in message.field:
        field.ClearField("json_name")
    for nested in message.nested_type:
        clear_json_names(nested)


@pytest.mark.parametrize(("package", "definition"), DEFINITIONS, ids=[path.stem for _, path in DEFINITIONS])
def test_stubs_say_what_the_definition_says(package, definition, tmp_path):
    roots = {Path(each.__file__).parents[len(each.__name__.split("."))] for each in PACKAGES}
    out = tmp_path / "descriptors"
    status = grpc_tools.protoc.main(
        [
            "protoc",
            *(f"--proto_path={root}" for root in roots),
            f"--proto_path={distribution('googleapis-common-protos').locate_file('')}",
            f"--proto_path={Path(grpc_tools.__file__).parent / '_proto'}",
            f"--descriptor_set_out={out}",
            str(definition),
        ]
    )
    assert status == 0
    (compiled,) = FileDescriptorSet.FromString(out.read_bytes()).file
    module = import_module(f"{package}.{definition.stem}_pb2")
    checked_in = FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    for each in (compiled, checked_in):
        for message in each.message_type:
            clear_json_names(message)
    assert checked_in == compiled, "run scripts/generate-stubs"
    for service in compiled.service:
        stubs = import_module(f"{package}.{definition.stem}_pb2_grpc")
        assert {method.name for method in service.method} <= set(dir(getattr(stubs, f"{service.name}Servicer")))


def test_clients_of_the_same_messages_may_be_imported_in_one_process():
    theirs = import_module("tritonclient.grpc.service_pb2").ModelInferRequest  # a TypeError where names collide
    ours = infer_pb2.ModelInferRequest
    assert theirs.DESCRIPTOR.full_name == ours.DESCRIPTOR.full_name
    request = theirs(model_name="m", raw_input_contents=[b"1"])
    assert ours.FromString(request.SerializeToString()).raw_input_contents == [b"1"]
