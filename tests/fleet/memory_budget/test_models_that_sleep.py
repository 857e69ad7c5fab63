"""Models take turns on a GPU, asleep or awake: a real server, and a stand-in of a GPU, which workers fill."""

import os
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.e2e.running_server import ROOT, RunningServer, model_folder
from tests.e2e.stand_in_nvml import stand_in_nvml

NVIDIA_SMI = """#!/bin/sh
[ "$1" = -L ] || exit 1
echo "GPU 0: Stand-in (UUID: GPU-00000000-0000-0000-0000-000000000000)"
"""
HANDLER = """
import os
from pathlib import Path

OWN = Path(os.environ["GPU_MEMORY"]) / str(os.getpid())
AWAKE, ASLEEP = 700_000_000, 20_000_000


def take(size):
    new = OWN.parents[1] / f"new {os.getpid()}"
    new.write_text(str(size))
    new.replace(OWN)


class Handler:
    def initialize(self, context):
        assert AWAKE <= context.system_properties["gpu_room"] <= 1_000_000_000
        self.answered = 0
        take(AWAKE)

    def sleep(self):
        fail("insomnia")
        take(ASLEEP)

    def wake(self):
        fail("coma")
        take(AWAKE)

    def handle(self, data, context):
        assert OWN.read_text() == str(AWAKE)
        return [f"{os.getpid()} {self.count(index, context)}" for index in range(len(data))]

    def count(self, index, context):
        self.answered += 1
        return self.answered


def fail(why):
    if (Path(__file__).parent / why).exists():
        raise RuntimeError(f"it has {why}")
"""
#: A handler that counts the steps of sequences.
STEPS = HANDLER.replace(
    """        self.answered += 1
        return self.answered
""",
    """        context.state[index] = context.state.get(index, 0) + 1
        return context.state[index]
""",
)
CONFIG = "minWorkers: 0\nmaxWorkers: 1\nloading: on_demand\nsleep: true\nmemory: 700MB\n"
SEQUENCES = f"{CONFIG}sequenceBatching: true\nsequenceMaxIdleMSec: 600000\nmaxNumSequence: 10\n"
STORES = "memory", "file"
NAMES = [f"m{number}" for number in range(4)]
BUDGET = 1_000_000_000


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that has what each process has on the GPU."""
    return tmp_path_factory.mktemp("gpu")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, gpu: Path) -> Iterator[RunningServer]:
    library, folder = tmp_path_factory.mktemp("library"), tmp_path_factory.mktemp("models")
    (library / "pynvml.py").write_text(stand_in_nvml(1))
    (library / "nvidia-smi").write_text(NVIDIA_SMI)
    (library / "nvidia-smi").chmod(0o755)
    environment = {
        "PATH": os.pathsep.join((str(library), os.environ["PATH"])),
        "PYTHONPATH": os.pathsep.join(map(str, (library, ROOT / "frontend", ROOT / "backend"))),
        "GPU_MEMORY": str(gpu),
    }
    models = {name: model_folder(folder, name, HANDLER, CONFIG) for name in (*NAMES, "insomnia", "coma", "killed")}
    for store in STORES:
        models[store] = model_folder(folder, store, STEPS, f"{SEQUENCES}handler: {{cache: {{store: {store}}}}}\n")
    with RunningServer(models, {"gpu_memory_budget": BUDGET}, environment) as server:
        server.wait_ready()
        yield server


class Watcher:
    """Adds up what processes have on the GPU, again and again, from a thread."""

    def __init__(self, gpu: Path) -> None:
        self.most = 0
        self._gpu = gpu
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "Watcher":
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.005):
            before = self._sizes()
            if before == self._sizes():  # else one was read before it fell asleep, and another after it has woken
                self.most = max(self.most, sum(before.values()))

    def _sizes(self) -> dict[str, int]:
        return {each.name: int(each.read_text()) for each in self._gpu.iterdir()}


def ask(server: RunningServer, name: str, **headers: str) -> tuple[str, int]:
    """Return the process that answered, and how many requests it has answered so far."""
    answer = server.predict(name, headers=headers)
    assert answer.ok, answer.text
    process, count = answer.text.split()
    return process, int(count)


def test_models_are_loaded_once_and_their_memory_never_exceeds_the_budget(server: RunningServer, gpu: Path) -> None:
    asked = random.Random(3).choices(NAMES, k=24)
    with Watcher(gpu) as watcher, ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda name: ask(server, name), asked))
    assert 700_000_000 <= watcher.most <= BUDGET
    sleeps = 0.0
    for name in NAMES:
        own = [answer for answer, of in zip(answers, asked, strict=True) if of == name]
        assert len({process for process, _ in own}) == 1
        assert sorted(count for _, count in own) == list(range(1, len(own) + 1))
        assert server.metric("ts_model_loads_total", model_name=name) == 1
        # To sleep and to wake are no requests.
        for counted in ("ts_outcomes_total", "ts_request_seconds_count", "ts_handler_seconds_count"):
            assert server.metric(counted, model_name=name) == len(own)
        assert server.metric("ts_batch_size_sum", model_name=name) == len(own)
        sleeps += server.metric("ts_model_sleeps_total", model_name=name)
    assert sleeps >= len(NAMES) - 1


def test_a_model_that_fails_to_sleep_is_unloaded_and_loads_again(server: RunningServer) -> None:
    first, _ = ask(server, "insomnia")
    (Path(server.describe("insomnia")[0]["modelUrl"]) / "insomnia").touch()
    ask(server, "m1")
    assert server.metric("ts_model_evictions_total", model_name="insomnia") == 1
    assert "Model insomnia 1.0 does not sleep, so its worker ends: RuntimeError: it has insomnia" in server.log()
    again, count = ask(server, "insomnia")
    assert (again != first, count) == (True, 1)


def test_a_worker_that_fails_to_wake_is_replaced_and_the_request_waits(server: RunningServer) -> None:
    first, _ = ask(server, "coma")
    coma = Path(server.describe("coma")[0]["modelUrl"]) / "coma"
    coma.touch()
    ask(server, "m1")
    again, count = ask(server, "coma")
    assert (again != first, count) == (True, 1)
    coma.unlink()
    ask(server, "m1")
    assert ask(server, "coma") == (again, 2)
    assert server.metric("ts_outcomes_total", model_name="coma") == 3
    assert "its handler does not wake: RuntimeError: it has coma" in server.log()


def test_a_sleeping_model_whose_worker_is_killed_loads_again(server: RunningServer) -> None:
    first, _ = ask(server, "killed")
    ask(server, "m1")
    os.kill(int(first), 9)
    again, count = ask(server, "killed")
    assert (again != first, count) == (True, 1)


@pytest.mark.parametrize("store", STORES)
def test_a_sequence_goes_on_with_the_worker_that_has_slept(server: RunningServer, store: str) -> None:
    steps = []
    for _ in range(2):
        steps.append(ask(server, store, ts_request_sequence_id="one"))
        ask(server, "m1")
    assert server.metric("ts_open_sequences", model_name=store) == 1
    steps.append(ask(server, store, ts_request_sequence_id="one", ts_request_sequence_end="true"))
    assert steps == [(steps[0][0], number) for number in (1, 2, 3)]
    assert server.metric("ts_model_sleeps_total", model_name=store) == 2
    assert server.metric("ts_model_wake_seconds_count", model_name=store) == 2
