"""tritonclient changes what is served while requests are under way: nothing that was accepted is lost."""

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import requests
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton
from tests.conformance.grpc_client import target
from tests.e2e.gate import WAITING, Gate
from tests.e2e.running_server import RunningServer, eventually, model_folder
from tritonclient.utils import InferenceServerException

#: Answers with its version, once the gate is open that it is sent the path of.
SLOW = (
    WAITING
    + """
def handle(data, context):
    if data is None:
        return None
    for row in data:
        x = row["body"]
        x = x.decode() if isinstance(x, bytes | bytearray) else x
        if x != "now":
            wait_for(x)
    return ["VERSION"] * len(data)
"""
)


@pytest.fixture
def http(open_server: RunningServer) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(open_server.inference.removeprefix("http://"), concurrency=8) as client:
        yield client


def slow_folder(directory: Path, name: str, says: str, version: str = "") -> Path:
    folder = model_folder(directory, name, SLOW.replace("VERSION", says))
    if version:
        (folder / "MAR-INF").mkdir()
        manifest = {"model": {"modelVersion": version, "handler": "handler.py"}}
        (folder / "MAR-INF" / "MANIFEST.json").write_text(json.dumps(manifest))
    return folder


def ask(server: RunningServer, model: str, wait: Gate | None = None, version: str = "") -> str:
    """What the model says; a client of its own, since those of tritonclient belong to one thread."""
    text = "now" if wait is None else str(wait.path)
    sent = triton.InferInput("x", [1], "BYTES")
    sent.set_data_from_numpy(np.array([text], np.object_))
    with triton.InferenceServerClient(server.inference.removeprefix("http://")) as client:
        return client.infer(model, [sent], model_version=version).as_numpy("x")[0].decode()


def state_of(http: triton.InferenceServerClient, model: str) -> str:
    return next(entry["state"] for entry in http.get_model_repository_index() if entry["name"] == model)


def test_unloading_lets_requests_finish(http, open_server, tmp_path):
    slow_folder(open_server.model_store, "leaving", "old")
    http.load_model("leaving")
    gate = Gate(tmp_path)
    with ThreadPoolExecutor(4) as pool:
        running = pool.submit(ask, open_server, "leaving", gate)
        gate.wait_until_reached()
        queued = pool.submit(ask, open_server, "leaving")
        eventually(lambda: open_server.pending("leaving") == 1, "the second request waits")
        unloading = pool.submit(requests.post, f"{open_server.inference}/v2/repository/models/leaving/unload", "")
        eventually(lambda: state_of(http, "leaving") == "UNLOADING", "the model is being unloaded")
        with pytest.raises(InferenceServerException, match="Model leaving not found"):
            ask(open_server, "leaving")
        assert not http.is_model_ready("leaving")
        assert not running.done() and not queued.done() and not unloading.done()
        gate.open()
        assert (running.result(), queued.result()) == ("old", "old")
        assert unloading.result().status_code == 200
    assert state_of(http, "leaving") == "UNAVAILABLE"


def test_replacing_lets_requests_finish(http, open_server, tmp_path):
    folder = slow_folder(open_server.model_store, "renewed", "old")
    http.load_model("renewed")
    worker = open_server.describe("renewed")[0]["workers"][0]["id"]
    gate = Gate(tmp_path)
    with ThreadPoolExecutor(4) as pool:
        running = pool.submit(ask, open_server, "renewed", gate)
        gate.wait_until_reached()
        (folder / "handler.py").write_text(SLOW.replace("VERSION", "new"))
        loading = pool.submit(requests.post, f"{open_server.inference}/v2/repository/models/renewed/load", "")
        eventually(lambda: open_server.describe("renewed")[0]["workers"][0]["id"] != worker, "the new one is served")
        assert ask(open_server, "renewed") == "new"
        assert not running.done()
        gate.open()
        assert running.result() == "old"
        assert loading.result().status_code == 200
    assert ask(open_server, "renewed") == "new"
    http.unload_model("renewed")


def test_the_latest_version_answers_until_somebody_chooses_another(http, open_server):
    for version in ("9", "10"):
        folder = slow_folder(open_server.model_store, f"many-{version}", f"version {version}", version)
        registered = requests.post(
            f"{open_server.management}/models",
            params={"url": folder.name, "model_name": "many", "initial_workers": "1", "synchronous": "true"},
            timeout=180,
        )
        assert registered.status_code == 200, registered.text
    assert ask(open_server, "many") == "version 10"
    assert ask(open_server, "many", version="9") == "version 9"
    assert http.get_model_metadata("many")["versions"] == ["9", "10"]
    with triton_grpc.InferenceServerClient(target(open_server)) as grpc_client:
        sent = triton_grpc.InferInput("x", [1], "BYTES")
        sent.set_data_from_numpy(np.array(["now"], np.object_))
        assert grpc_client.infer("many", [sent]).as_numpy("x")[0] == b"version 10"
        assert requests.post(f"{open_server.inference}/predictions/many", "now", timeout=180).text == "version 9"
        chosen = requests.put(f"{open_server.management}/models/many/9/set-default", timeout=180)
        assert chosen.status_code == 200
        assert grpc_client.infer("many", [sent]).as_numpy("x")[0] == b"version 9"
    assert ask(open_server, "many") == "version 9"
    http.unload_model("many")
    http.load_model("many")  # both versions come back, and the choice with them
    assert ask(open_server, "many") == "version 9"
    assert ask(open_server, "many", version="10") == "version 10"
    shutil.rmtree(open_server.model_store / "many-9")
    http.load_model("many")  # as it is on disk now
    assert http.get_model_metadata("many")["versions"] == ["10"]
    assert ask(open_server, "many") == "version 10"
    http.unload_model("many")
