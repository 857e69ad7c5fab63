from torchserve_py.apis.grpc.protos import open_inference_pb2 as _open_inference_pb2
from ts.apis.open_inference.protos import infer_pb2 as _infer_pb2
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

DESCRIPTOR: _descriptor.FileDescriptor
