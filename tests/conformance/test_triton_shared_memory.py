"""tritonclient's shared memory, over HTTP and gRPC."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
import tritonclient.utils.shared_memory as shm
from tests.conformance.grpc_client import target
from tests.conformance.triton_tensors import X
from tests.e2e.running_server import RunningServer
from tritonclient.utils import InferenceServerException

SIZE = X.nbytes
KEY = f"torchserve_py_test_{os.getpid()}"


@pytest.fixture(scope="module")
def sharing_server(open_models: dict[str, Path]) -> Iterator[RunningServer]:
    models = {name: open_models[name] for name in ("arithmetic", "echo")}
    with RunningServer(models, {"shared_memory_keys": "torchserve_py_test_*"}) as running:
        running.wait_ready()
        yield running


@pytest.fixture(params=["http", "grpc"])
def sharing(request: pytest.FixtureRequest, sharing_server: RunningServer) -> Iterator[tuple[Any, Any]]:
    """The module of a client, and the client."""
    module: Any = getattr(tritonclient, request.param)
    address = sharing_server.inference.removeprefix("http://") if request.param == "http" else target(sharing_server)
    with module.InferenceServerClient(address) as client:
        yield module, client
        client.unregister_system_shared_memory()


@pytest.fixture
def handle() -> Iterator[Any]:
    made = shm.create_shared_memory_region("data", KEY, 4 * SIZE, create_only=True)
    yield made
    shm.destroy_shared_memory_region(made)


def input_in_memory(module: Any, size: int = SIZE, offset: int = 0) -> Any:
    made = module.InferInput("x", list(X.shape), "FP32")
    made.set_shared_memory("data", size, offset)
    return made


def output_in_memory(module: Any, name: str, offset: int, size: int = SIZE) -> Any:
    made = module.InferRequestedOutput(name)
    made.set_shared_memory("data", size, offset)
    return made


def test_tensors_come_from_and_go_to_shared_memory(sharing: tuple[Any, Any], handle: Any) -> None:
    module, client = sharing
    client.register_system_shared_memory("data", KEY, 4 * SIZE)
    shm.set_shared_memory_region(handle, [X], offset=SIZE)
    outputs = [output_in_memory(module, "next", 2 * SIZE), output_in_memory(module, "double", 3 * SIZE)]
    for _ in range(3):
        result = client.infer("arithmetic", [input_in_memory(module, offset=SIZE)], outputs=outputs)
    described = result.get_output("next")
    assert (
        described["shape"] == list(X.shape) if module is tritonclient.http else list(described.shape) == list(X.shape)
    )
    assert (shm.get_contents_as_numpy(handle, np.float32, X.shape, offset=2 * SIZE) == X + 1).all()
    assert (shm.get_contents_as_numpy(handle, np.float32, X.shape, offset=3 * SIZE) == X * 2).all()
    assert (shm.get_contents_as_numpy(handle, np.float32, X.shape, offset=SIZE) == X).all()


def test_some_tensors_are_in_shared_memory_and_others_are_sent(sharing: tuple[Any, Any], handle: Any) -> None:
    module, client = sharing
    client.register_system_shared_memory("data", KEY, 4 * SIZE)
    shm.set_shared_memory_region(handle, [X])
    outputs = [output_in_memory(module, "next", 2 * SIZE), module.InferRequestedOutput("double")]
    result = client.infer("arithmetic", [input_in_memory(module)], outputs=outputs)
    assert (result.as_numpy("double") == X * 2).all()
    assert (shm.get_contents_as_numpy(handle, np.float32, X.shape, offset=2 * SIZE) == X + 1).all()
    sent = module.InferInput("x", list(X.shape), "FP32")
    sent.set_data_from_numpy(X + 10)
    client.infer("arithmetic", [sent], outputs=[output_in_memory(module, "next", 0)])
    assert (shm.get_contents_as_numpy(handle, np.float32, X.shape) == X + 11).all()
    assert (client.infer("arithmetic", [input_in_memory(module)]).as_numpy("next") == X + 12).all()


def test_regions_are_listed_and_forgotten(sharing: tuple[Any, Any], handle: Any) -> None:
    module, client = sharing
    client.register_system_shared_memory("data", KEY, SIZE, offset=SIZE)
    status = client.get_system_shared_memory_status()
    if module is tritonclient.http:
        assert status == [{"name": "data", "key": KEY, "offset": SIZE, "byte_size": SIZE}]
    else:
        assert status.regions["data"].byte_size == SIZE
    with pytest.raises(InferenceServerException, match="registered already"):
        client.register_system_shared_memory("data", KEY, SIZE)
    client.unregister_system_shared_memory("data")
    with pytest.raises(InferenceServerException, match="no shared memory region 'data'"):
        client.get_system_shared_memory_status("data")
    with pytest.raises(InferenceServerException, match="no shared memory region 'data'"):
        client.infer("arithmetic", [input_in_memory(module)])


def test_what_is_wrong_is_told(sharing: tuple[Any, Any], handle: Any) -> None:
    module, client = sharing
    with pytest.raises(InferenceServerException, match="not allowed by the setting shared_memory_keys"):
        client.register_system_shared_memory("data", "psm_other", SIZE)
    with pytest.raises(InferenceServerException, match="must be the name of a POSIX shared memory object"):
        client.register_system_shared_memory("data", "../torchserve_py_test_", SIZE)
    with pytest.raises(InferenceServerException, match="the region would end at byte"):
        client.register_system_shared_memory("data", KEY, 2**40)
    client.register_system_shared_memory("data", KEY, 2 * SIZE)
    with pytest.raises(InferenceServerException, match="from byte 17 of region 'data', which has 32 bytes"):
        client.infer("arithmetic", [input_in_memory(module, offset=SIZE + 1)])
    with pytest.raises(InferenceServerException, match="needs 16"):
        client.infer("arithmetic", [input_in_memory(module, size=SIZE - 4)])
    with pytest.raises(InferenceServerException, match="its place in region 'data' has 4"):
        client.infer("arithmetic", [input_in_memory(module)], outputs=[output_in_memory(module, "next", 0, 4)])
    os.truncate(f"/dev/shm/{KEY}", 4)
    with pytest.raises(InferenceServerException, match="has become shorter"):
        client.infer("arithmetic", [input_in_memory(module)])
    os.truncate(f"/dev/shm/{KEY}", 4 * SIZE)
    assert (client.infer("arithmetic", [input_in_memory(module)]).as_numpy("next")).shape == X.shape


def test_a_token_is_needed(open_models: dict[str, Path], handle: Any) -> None:
    properties = {"shared_memory_keys": "torchserve_py_test_*"}
    with RunningServer({"echo": open_models["echo"]}, properties, flags=()) as running:
        running.wait_ready()
        with tritonclient.http.InferenceServerClient(running.inference.removeprefix("http://")) as http:
            for call in (
                lambda: http.register_system_shared_memory("data", KEY, SIZE),
                http.get_system_shared_memory_status,
                http.unregister_system_shared_memory,
            ):
                with pytest.raises(InferenceServerException, match=r"(?i)token|authoriz"):
                    call()
        refused = pytest.raises(InferenceServerException, match="PERMISSION_DENIED")
        with tritonclient.grpc.InferenceServerClient(target(running)) as grpc, refused:
            grpc.register_system_shared_memory("data", KEY, SIZE)
