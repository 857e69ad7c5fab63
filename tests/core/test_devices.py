"""What a worker sees of the host's GPUs, and what happens when a device fails; nvidia-smi and CUDA are stand-ins."""

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests
from tests.e2e.running_server import DEADLINE, RunningServer, eventually, model_folder

NVIDIA_SMI = """#!/bin/sh
[ "$1" = -L ] || exit 1
echo "GPU 0: Stand-in (UUID: GPU-00000000-0000-0000-0000-000000000000)"
echo "GPU 1: Stand-in (UUID: GPU-11111111-1111-1111-1111-111111111111)"
"""

#: ``answer(text, gpu_id)``: what a worker sees; or the error that CUDA raises for a failed assertion in a kernel.
ANSWER = """
import json
import os


def answer(text, gpu_id):
    if text == "fail":
        try:
            raise RuntimeError("CUDA error: device-side assert triggered\\nCUDA kernel errors might be ...")
        except RuntimeError:
            raise ValueError("The labels are wrong")
    names = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
    return json.dumps([os.getpid(), gpu_id, *(os.environ.get(name) for name in names)])
"""
HANDLER = (
    ANSWER
    + """
class Handler:
    def initialize(self, context):
        self.gpu_id = context.system_properties["gpu_id"]

    def handle(self, data, context):
        return [answer(row["body"], self.gpu_id) for row in data]
"""
)
ASYNC_HANDLER = HANDLER.replace("def handle", "async def handle")
MLSERVER_MODEL = (
    ANSWER
    + """
from mlserver import MLModel
from mlserver.codecs import StringCodec
from mlserver.types import InferenceResponse


class Model(MLModel):
    async def predict(self, payload):
        text = StringCodec.decode_input(payload.inputs[0])[0]
        return InferenceResponse(model_name=self.name, outputs=[StringCodec.encode_output("said", [answer(text, 0)])])
"""
)
TRUSS_MODEL = (
    ANSWER
    + """
class Model:
    def predict(self, text):
        return answer(text, 0)
"""
)
#: Totals on a stand-in of a device, which raises what is in the file ``to-host`` or ``to-device`` as states are copied.
#: The cache has room for one state, so that the others are read when they are needed.
TOTALS_HANDLER = """
import os
from pathlib import Path
from types import SimpleNamespace

from ts.sequence import SequenceCache

FOLDER = Path(__file__).parent


def copied(direction, value):
    if (FOLDER / direction).exists():
        raise RuntimeError((FOLDER / direction).read_text())
    return value


class Handler:
    def initialize(self, context):
        to_host = lambda state: copied("to-host", state.total)
        to_device = lambda total: SimpleNamespace(total=copied("to-device", total))
        self.cache = SequenceCache(context, encoders={SimpleNamespace: (to_host, to_device)})

    def handle(self, data, context):
        return [self.step(context.get_sequence_id(index), row["body"]) for index, row in enumerate(data)]

    def step(self, sequence_id, body):
        state = self.cache.setdefault(sequence_id, SimpleNamespace(total=0))
        state.total += int(body)
        return f"{state.total} {os.getpid()}"
"""
TOTALS_CONFIG = """
minWorkers: 1
maxWorkers: 1
sequenceBatching: true
maxNumSequence: 8
sequenceMaxIdleMSec: 60000
handler: {cache: {store: file, capacity: 1}}
"""
BATCHES = "minWorkers: 2\nmaxWorkers: 2\nbatchSize: 4\nmaxBatchDelay: 0\n"
WORKERS = "minWorkers: 2\nmaxWorkers: 2\n"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("models")
    (directory / "bin").mkdir()
    (directory / "bin" / "nvidia-smi").write_text(NVIDIA_SMI)
    (directory / "bin" / "nvidia-smi").chmod(0o755)
    mlserver = model_folder(directory, "mlserver", "", WORKERS)
    (mlserver / "handler.py").unlink()
    (mlserver / "model.py").write_text(MLSERVER_MODEL)
    settings = {"name": "mlserver", "implementation": "model.Model"}
    (mlserver / "model-settings.json").write_text(json.dumps(settings))
    truss = directory / "truss"
    (truss / "model").mkdir(parents=True)
    (truss / "model" / "model.py").write_text(TRUSS_MODEL)
    (truss / "config.yaml").write_text("model_name: truss\nresources:\n  accelerator: T4\n")
    return {
        "batches": model_folder(directory, "batches", HANDLER, BATCHES),
        "calls": model_folder(directory, "calls", ASYNC_HANDLER, f"asyncCommunication: true\n{WORKERS}"),
        "on-cpu": model_folder(directory, "on-cpu", HANDLER, "deviceType: cpu\n"),
        "wide": model_folder(directory, "wide", HANDLER, "parallelType: custom\nparallelLevel: 2\n"),
        "totals": model_folder(directory, "totals", TOTALS_HANDLER, TOTALS_CONFIG),
        "mlserver": mlserver,
        "truss": truss,
    }


@pytest.fixture(scope="module")
def server(models: dict[str, Path]) -> Iterator[RunningServer]:
    directory = models["truss"].parent
    path = os.pathsep.join([str(directory / "bin"), os.environ["PATH"]])
    with RunningServer(dict(models), {"default_workers_per_model": 2}, {"PATH": path}) as running:
        running.wait_ready()
        yield running


def ask(server: RunningServer, model: str, text: str) -> requests.Response:
    if model == "mlserver":
        inputs = [{"name": "text", "datatype": "BYTES", "shape": [1], "data": [text]}]
        url = f"{server.inference}/v2/models/{model}/infer"
        return requests.post(url, json={"inputs": inputs}, timeout=DEADLINE)
    if model == "truss":
        return requests.post(f"{server.inference}/v1/models/truss:predict", json=text, timeout=DEADLINE)
    return server.predict(model, text)


def seen(server: RunningServer, model: str) -> tuple[int, int | None, str | None, str | None]:
    """What the worker that answers sees: its process, its gpu_id, the devices, their order."""
    response = ask(server, model, "tell")
    assert response.status_code == 200, response.text
    told = response.json()
    if model == "mlserver":
        told = json.loads(told["outputs"][0]["data"][0])
    pid, gpu_id, visible, order = json.loads(told) if isinstance(told, str) else told
    return pid, gpu_id, visible, order


def seen_by_all(server: RunningServer, model: str, workers: int) -> set[tuple[int | None, str | None, str | None]]:
    """The same of all workers of a model; asked until each has answered."""
    found: dict[int, tuple[int | None, str | None, str | None]] = {}

    def all_have_answered() -> bool:
        with ThreadPoolExecutor(4) as pool:
            for pid, *rest in pool.map(lambda _: seen(server, model), range(8)):
                found[pid] = rest[0], rest[1], rest[2]
        return len(found) >= workers

    eventually(all_have_answered, "each worker has answered")
    return set(found.values())


@pytest.mark.parametrize("model", ["batches", "mlserver"])
def test_each_worker_sees_its_own_gpu_and_no_other(server: RunningServer, model: str) -> None:
    assert seen_by_all(server, model, 2) == {(0, "0", "PCI_BUS_ID"), (0, "1", "PCI_BUS_ID")}


def test_a_worker_with_several_gpus_sees_those(server: RunningServer) -> None:
    assert seen(server, "wide")[1:] == (0, "0,1", "PCI_BUS_ID")


def test_a_truss_with_an_accelerator_sees_one(server: RunningServer) -> None:
    assert seen(server, "truss")[2:] in {("0", "PCI_BUS_ID"), ("1", "PCI_BUS_ID")}


def test_a_worker_on_the_cpu_sees_none(server: RunningServer) -> None:
    assert seen(server, "on-cpu")[1:3] == (None, "")


@pytest.mark.parametrize("model", ["batches", "calls", "mlserver", "truss"])
def test_a_worker_that_lost_its_device_is_replaced_and_harms_no_other_job(server: RunningServer, model: str) -> None:
    (before,) = (each["workers"] for each in server.describe(model))
    pids = {each["pid"] for each in before}
    failed = ask(server, model, "fail")
    assert failed.status_code == 500
    if model != "truss":  # which is never told what a model has raised
        assert "CUDA error: device-side assert triggered" in failed.text
        assert "The worker is replaced." in failed.text
    if model != "truss":  # whose clients are told to come again while it has no worker
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda _: ask(server, model, "tell"), range(16)))
        assert [answer.status_code for answer in answers] == [200] * 16

    def replaced() -> bool:
        (described,) = server.describe(model)
        ready = {each["pid"] for each in described["workers"] if each["status"] == "READY"}
        return len(ready) == len(pids) and len(ready - pids) == 1

    eventually(replaced, "a fresh worker has taken the place")


@pytest.mark.parametrize(("direction", "sequence"), [("to-host", "in memory"), ("to-device", "stored")])
@pytest.mark.parametrize(
    ("error", "status"), [("CUDA error: device-side assert triggered", 500), ("CUDA out of memory", 507)]
)
def test_a_device_that_fails_under_a_stored_state(
    server: RunningServer, models: dict[str, Path], direction: str, sequence: str, error: str, status: int
) -> None:
    def send(which: str, number: int) -> requests.Response:
        headers = {"ts_request_sequence_id": f"{which} {direction} {status}"}
        return server.predict("totals", str(number), headers=headers)

    fails = models["totals"] / direction
    _, before = send("stored", 5).text.split()
    assert send("in memory", 5).text == f"5 {before}"
    fails.write_text(error)
    try:
        failed = send(sequence, 1)
    finally:
        fails.unlink()
    assert (failed.status_code, failed.headers["ts-error-cause"]) == (status, "handler_error")
    eventually(lambda: send(sequence, 0).status_code == 200, "a worker can read the state")
    total, after = send(sequence, 1).text.split()
    assert total == "6"
    assert (after != before) == (status == 500)
