"""The status codes are those of gRPC's own library."""

import grpc

from torchserve_py.net.http2.grpc_status import StatusCode


def test_names_and_numbers_are_those_of_grpcio() -> None:
    assert {each.name: each.value for each in StatusCode} == {each.name: each.value[0] for each in grpc.StatusCode}
