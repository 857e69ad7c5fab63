"""One server with the models of `open_inference_models`, for all tests of clients of the Open Inference Protocol."""

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
import tritonclient.grpc as triton
from tests.conformance.grpc_client import target
from tests.conformance.open_inference_models import write_models
from tests.e2e.running_server import RunningServer


@pytest.fixture(scope="session")
def open_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def open_server(open_models: dict[str, Path]) -> Iterator[RunningServer]:
    with RunningServer(open_models) as running:
        running.wait_ready()
        yield running


@pytest.fixture
def client(open_server: RunningServer) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(target(open_server)) as client:
        yield client


@pytest.fixture
def channel(open_server: RunningServer) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(target(open_server)) as channel:
        yield channel
