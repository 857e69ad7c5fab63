"""Errors of a GPU in each phase of a step: the worker is replaced, the client is told, and no sequence loses a step."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from tests.e2e.running_server import RunningServer, eventually, model_folder
from tests.gpu.machine import ON_CPU

pytestmark = [pytest.mark.gpu, pytest.mark.torch]

ASSERT = "CUDA error: device-side assert triggered"

#: Totals on the device. A body may ask for an error in a certain phase; the file ``restore`` lets the
#: next state fail that is read from the store. The cache has room for one state, so the others are read when needed.
TOTALS = """
import os
from pathlib import Path
from types import SimpleNamespace

import torch

from ts.sequence import SequenceCache

FILE = Path(__file__).with_name("restore")


class Handler:
    def initialize(self, context):
        gpu = context.system_properties["gpu_id"]
        self.device = torch.device("cpu" if gpu is None else f"cuda:{gpu}")
        self.cache = SequenceCache(context, encoders={SimpleNamespace: (self.encoded, self.decoded)})

    def fail_later(self):
        # A kernel that fails; the host finds out when it waits for the device.
        if self.device.type == "cpu":
            raise RuntimeError("CUDA error: device-side assert triggered")
        torch._assert_async(torch.zeros(1, device=self.device))

    def encoded(self, total):
        if total.value.item() == 1000:
            self.fail_later()
        return total.value

    def decoded(self, value):
        if FILE.exists():
            self.fail_later()
            value = value + value.sum()
            value.item()
        return SimpleNamespace(value=value)

    def handle(self, data, context):
        return [self.step(context.get_sequence_id(index), context.body(index)) for index in range(len(data))]

    def step(self, sequence_id, body):
        total = self.cache.get(sequence_id) or SimpleNamespace(value=torch.zeros(1, device=self.device))
        if body == "memory":
            torch.empty(1 << 50, dtype=torch.uint8, device=self.device)
        if body == "predict":
            self.fail_later()
            total = SimpleNamespace(value=total.value + 1)
            total.value.item()
        if body == "later":  # nothing waits for the device before the state is copied to the host
            self.cache[sequence_id] = SimpleNamespace(value=total.value + 1)
            self.fail_later()
            return "never sent"
        total = SimpleNamespace(value=total.value + int(body))
        self.cache[sequence_id] = total
        return f"{int(total.value.item())} {os.getpid()}"
"""
CONFIG = """
minWorkers: 1
maxWorkers: 1
batchSize: 4
maxBatchDelay: 0
sequenceBatching: true
maxNumSequence: 8
sequenceMaxIdleMSec: 60000
handler: {cache: {store: file, capacity: 1}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("models"), "totals", TOTALS, CONFIG)


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RunningServer]:
    with RunningServer({"totals": folder}) as running:
        running.wait_ready()
        yield running


def send(server: RunningServer, sequence: str, body: str) -> requests.Response:
    return server.predict("totals", body, sequence=sequence)


def total(server: RunningServer, sequence: str, body: str = "0") -> tuple[int, int]:
    """Add a number to a sequence's total once a worker is there; return the total and the worker's process id."""

    def answered() -> requests.Response | None:
        answer = send(server, sequence, "0")
        return answer if answer.status_code == 200 else None

    eventually(answered, "a worker can read the state")
    value, pid = send(server, sequence, body).text.split()
    return int(value), int(pid)


@pytest.mark.parametrize("phase", ["predict", "later", "encode", "restore"])
def test_a_worker_whose_gpu_fails_is_replaced(server: RunningServer, folder: Path, phase: str) -> None:
    mine, other = f"{phase} mine", f"{phase} other"
    assert total(server, mine, "5")[0] == 5
    value, before = total(server, other, "7")
    assert value == 7
    if phase == "encode":
        assert total(server, mine, "900")[0] == 905
        failed = send(server, mine, "95")
    elif phase == "restore":
        (folder / "restore").touch()
        try:
            failed = send(server, mine, "1")
        finally:
            (folder / "restore").unlink()
    else:
        failed = send(server, mine, phase)
    assert failed.status_code == 500, failed.text
    if not (ON_CPU and phase == "later"):
        assert failed.headers["ts-error-cause"] == "handler_error", server.log()[-3000:]
        assert "device-side assert" in failed.text
        assert "The worker is replaced." in failed.text
    value, after = total(server, other, "1")
    assert value == 8
    assert after != before
    assert total(server, mine, "1")[0] == (906 if phase == "encode" else 6), "the step that failed does not count"


def test_a_worker_survives_that_memory_runs_out(server: RunningServer) -> None:
    assert total(server, "memory other", "7")[0] == 7
    value, before = total(server, "memory mine", "5")
    failed = send(server, "memory mine", "memory")
    assert failed.status_code == 507, failed.text
    assert total(server, "memory other", "1") == (8, before)
    assert total(server, "memory mine", "1") == (value + 1, before)


def test_a_worker_that_was_killed_leaves_its_states_in_the_store(server: RunningServer) -> None:
    value, pid = total(server, "killed", "3")
    os.kill(pid, 9)
    after, other = total(server, "killed", "2")
    assert (value, after) == (3, 5)
    assert other != pid


#: Each state takes 20 MB of a GPU of which the worker may use 140 MB.
LARGE = """
import torch

MEGABYTES = 1_000_000

class Handler:
    def initialize(self, context):
        gpu = context.system_properties["gpu_id"]
        self.device = torch.device(f"cuda:{gpu}")
        whole = torch.cuda.get_device_properties(self.device).total_memory
        torch.cuda.set_per_process_memory_fraction(140 * MEGABYTES / whole, self.device)

    def handle(self, data, context):
        return [self.step(context, row) for row in range(len(data))]

    def step(self, context, row):
        if context.body(row) == "greedy":
            torch.empty(1000 * MEGABYTES, dtype=torch.uint8, device=self.device)
        state = context.state.get(row)
        if state is None:
            state = torch.zeros(5 * MEGABYTES, device=self.device)
        state = state + int(context.body(row))
        context.state[row] = state
        return f"{state.min().item():.0f} {state.max().item():.0f}"
"""


def test_more_states_than_a_gpu_holds_are_served_one_after_the_other(only_cuda: None, tmp_path: Path) -> None:
    config = CONFIG.replace("capacity: 1", "capacity: 100").replace("maxNumSequence: 8", "maxNumSequence: 100")
    with RunningServer({"totals": model_folder(tmp_path, "totals", LARGE, config)}) as server:
        server.wait_ready()
        for turn in (1, 2, 3):
            for number in range(12):
                assert send(server, f"s{number}", str(number)).text == f"{turn * number} {turn * number}"
        assert send(server, "s3", "greedy").status_code == 507
        assert send(server, "s3", "1").text == "10 10"
        assert "idle states leave it" in server.log()
