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
        self.answered = 0
        take(AWAKE)

    def sleep(self):
        if (Path(__file__).parent / "insomnia").exists():
            raise RuntimeError("it lies awake")
        take(ASLEEP)

    def wake(self):
        take(AWAKE)

    def handle(self, data, context):
        assert OWN.read_text() == str(AWAKE)
        self.answered += len(data)
        return [f"{os.getpid()} {self.answered}"] * len(data)
"""
CONFIG = "minWorkers: 0\nmaxWorkers: 1\nloading: on_demand\nsleep: true\nmemory: 700MB\n"
NAMES = [f"m{number}" for number in range(4)]
BUDGET = 1_000_000_000


@pytest.fixture
def gpu(tmp_path: Path) -> Path:
    """The folder that has what each process has on the GPU."""
    folder = tmp_path / "gpu"
    folder.mkdir()
    return folder


@pytest.fixture
def server(tmp_path: Path, gpu: Path) -> Iterator[RunningServer]:
    library = tmp_path / "library"
    library.mkdir()
    (library / "pynvml.py").write_text(stand_in_nvml(1))
    (library / "nvidia-smi").write_text(NVIDIA_SMI)
    (library / "nvidia-smi").chmod(0o755)
    environment = {
        "PATH": os.pathsep.join((str(library), os.environ["PATH"])),
        "PYTHONPATH": os.pathsep.join(map(str, (library, ROOT / "frontend", ROOT / "backend"))),
        "GPU_MEMORY": str(gpu),
    }
    models = {name: model_folder(tmp_path, name, HANDLER, CONFIG) for name in NAMES}
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


def ask(server: RunningServer, name: str) -> tuple[str, int]:
    """Return the process that answered, and how many requests it has answered so far."""
    answer = server.predict(name)
    assert answer.ok, answer.text
    process, count = answer.text.split()
    return process, int(count)


def test_models_are_loaded_once_and_their_memory_never_exceeds_the_budget(server: RunningServer, gpu: Path) -> None:
    asked = random.Random(3).choices(NAMES, k=40)
    with Watcher(gpu) as watcher, ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda name: ask(server, name), asked))
    print(server.log())
    assert 700_000_000 <= watcher.most <= BUDGET
    for name in NAMES:
        own = [answer for answer, of in zip(answers, asked, strict=True) if of == name]
        assert len({process for process, _ in own}) == 1
        assert sorted(count for _, count in own) == list(range(1, len(own) + 1))
        assert server.metric("ts_model_loads_total", model_name=name) == 1
    assert sum(server.metric("ts_model_sleeps_total", model_name=name) or 0 for name in NAMES) >= len(NAMES) - 1


def test_a_model_that_fails_to_sleep_is_unloaded_and_loads_again(server: RunningServer, gpu: Path) -> None:
    first, _ = ask(server, "m0")
    assert server.describe("m0")[0]["workers"]
    insomnia = Path(server.describe("m0")[0]["modelUrl"]) / "insomnia"
    insomnia.touch()
    assert ask(server, "m1")[1] == 1
    assert server.metric("ts_model_evictions_total", model_name="m0") == 1
    assert "m0 1.0 does not sleep, so it is unloaded" in server.log()
    again, count = ask(server, "m0")
    assert (again != first, count) == (True, 1)


def test_a_sleeping_model_whose_worker_is_killed_loads_again(server: RunningServer, gpu: Path) -> None:
    first, _ = ask(server, "m0")
    ask(server, "m1")
    os.kill(int(first), 9)
    again, count = ask(server, "m0")
    assert (again != first, count) == (True, 1)
    assert ask(server, "m1")[1] == 2
