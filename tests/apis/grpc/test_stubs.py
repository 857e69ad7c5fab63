"""The stubs that are checked in are those of the definitions beside them."""

import os
import subprocess
import sys
from importlib import import_module
from importlib.metadata import distribution
from pathlib import Path

import grpc_tools.protoc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from torchserve_py.apis.grpc import protos
from ts.apis.open_inference import protos as worker_protos

_BACKEND = Path(worker_protos.__path__[0]).parents[2]
PACKAGES = (protos, worker_protos)
DEFINITIONS = [
    (package.__name__, definition)
    for package in PACKAGES
    for definition in sorted(Path(package.__file__).parent.glob("*.proto"))
]


#: Services for which clients have stubs of their own.
OF_GRPC = ("health", "reflection")
#: What reflection tells of the definitions.
WRITTEN = Path(protos.__path__[0]) / "definitions.binpb"


def comments(definition):
    """Return the comments of a definition with what each is about."""
    places = definition.source_code_info.location
    return [(list(each.path), each.leading_comments, each.trailing_comments) for each in places]


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
            "--include_source_info",
            str(definition),
        ]
    )
    assert status == 0
    (compiled,) = FileDescriptorSet.FromString(out.read_bytes()).file
    told = {each.name: each for each in FileDescriptorSet.FromString(WRITTEN.read_bytes()).file}[compiled.name]
    assert comments(told) == comments(compiled), "run scripts/generate-stubs"
    compiled.ClearField("source_code_info")
    module = import_module(f"{package}.{definition.stem}_pb2")
    checked_in = FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    for each in (compiled, checked_in):
        for message in each.message_type:
            clear_json_names(message)
    assert checked_in == compiled, "run scripts/generate-stubs"
    for service in compiled.service if definition.stem not in OF_GRPC else ():
        assert definition.with_name(f"{definition.stem}_pb2_grpc.py").is_file(), "grpc_tools would make one unseen"
        stubs = import_module(f"{package}.{definition.stem}_pb2_grpc")
        assert {method.name for method in service.method} <= set(dir(getattr(stubs, f"{service.name}Servicer")))


_SHARED_PROCESS = """
from tritonclient.grpc.service_pb2 import ModelInferRequest as Theirs
from ts.apis.open_inference.protos.infer_pb2 import ModelInferRequest as Ours

assert Theirs.DESCRIPTOR.full_name == Ours.DESCRIPTOR.full_name
request = Theirs(model_name="m", raw_input_contents=[b"1"])
assert Ours.FromString(request.SerializeToString()).raw_input_contents == [b"1"]
"""


def test_clients_of_the_same_messages_may_be_imported_in_one_process():
    subprocess.run([sys.executable, "-c", _SHARED_PROCESS], check=True, env={**os.environ, "PYTHONPATH": str(_BACKEND)})
