"""Parallel workers: several processes that torchrun starts, what each of them gets, and that none outlives the rest."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.e2e.running_server import RunningServer, eventually, model_folder

pytestmark = pytest.mark.torch

#: Every rank adds its share of a sum; only together they know the result. Notes who was called.
HANDLER = """
import os
import time

import torch
import torch.distributed as dist

from ts.handler_utils.utils import send_intermediate_predict_response


class ParallelHandler:
    def initialize(self, context):
        self.rank = int(os.environ["RANK"])
        self.directory = context.system_properties["model_dir"]
        self.gpu_id = context.system_properties["gpu_id"]
        if os.path.exists(f"{self.directory}/broken-{self.rank}"):
            raise RuntimeError("this rank cannot load")
        dist.init_process_group("gloo")
        with open(f"{self.directory}/pid-{self.rank}", "w") as file:
            file.write(str(os.getpid()))

    def handle(self, data, context):
        with open(f"{self.directory}/calls-{self.rank}", "a") as file:
            file.write(f"{len(data)}\\n")
        orders = [row["body"] for row in data]
        if "stream" in orders[0]:
            for number in range(orders[0]["stream"]):
                share = torch.tensor([float(self.rank + number)])
                dist.all_reduce(share)
                send_intermediate_predict_response([str(share.item())], context.request_ids, "ok", 200, context)
            return ["end"]
        if "tell" in orders[0]:
            return [{name: os.environ.get(name) for name in orders[0]["tell"]} for _ in data]
        shares = torch.tensor([order["x"] * (self.rank + 1.0) for order in orders])
        dist.all_reduce(shares)
        return shares.tolist() if self.rank == 0 else "of no interest"
"""

#: Rank 0 drives, the others wait for what it sends them.
PIPELINE = """
import os
import threading

import torch
import torch.distributed as dist


class PipelineHandler:
    def initialize(self, context):
        self.rank = int(os.environ["RANK"])
        self.directory = context.system_properties["model_dir"]
        dist.init_process_group("gloo")
        if self.rank == 1:
            threading.Thread(target=self.second_stage, daemon=True).start()

    def second_stage(self):
        value = torch.zeros(1)
        while True:
            dist.recv(value, 0)
            dist.send(value * 10, 0)

    def handle(self, data, context):
        with open(f"{self.directory}/calls-{self.rank}", "a") as file:
            file.write(f"{len(data)}\\n")
        value = torch.tensor([float(data[0]["body"]["x"])])
        dist.send(value, 1)
        dist.recv(value, 1)
        return [value.item()]
"""

#: One process; the GPUs, if there were any, would all be its own.
CUSTOM = """
import os


def handle(data, context):
    if data is None:
        return None
    return [{"rank": os.environ.get("RANK"), "pid": os.getpid()} for _ in data]
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("models")
    two = "torchrun:\n  nproc-per-node: 2\n  OMP_NUMBER_THREADS: 3\n"
    return {
        "tensor": model_folder(
            directory, "tensor", HANDLER, f"parallelType: tp\nbatchSize: 2\nmaxBatchDelay: 0\n{two}"
        ),
        "pipeline": model_folder(directory, "pipeline", PIPELINE, "parallelType: pp\nparallelLevel: 2\n"),
        "custom": model_folder(directory, "custom", CUSTOM, "parallelType: custom\nparallelLevel: 2\n"),
    }


@pytest.fixture(scope="module")
def server(folders: dict[str, Path]) -> Iterator[RunningServer]:
    with RunningServer(folders, {"drain_timeout": 1, "initial_distribution_port": 31000}) as running:
        running.wait_ready()
        yield running


def ask(server: RunningServer, model: str, **order: Any) -> Any:
    response = server.predict(model, json.dumps(order), headers={"content-type": "application/json"})
    assert response.status_code == 200, response.text
    return response.json()


def ranks(folder: Path) -> list[psutil.Process]:
    """The processes that have loaded the model last."""
    return [psutil.Process(int((folder / f"pid-{rank}").read_text())) for rank in range(2)]


def calls(folder: Path, rank: int) -> list[str]:
    file = folder / f"calls-{rank}"
    return file.read_text().split() if file.exists() else []


def processes_of(server: RunningServer, model: str) -> list[psutil.Process]:
    """All processes below the server that work in the model's folder, launchers included."""
    found = []
    for process in server.server.children(recursive=True):
        try:
            if Path(process.cwd()).name == model:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return found


def test_all_ranks_compute_and_rank_0_answers(server: RunningServer, folders: dict[str, Path]) -> None:
    before = [calls(folders["tensor"], rank) for rank in range(2)]
    assert [ask(server, "tensor", x=x) for x in (1, 2, 5)] == [3.0, 6.0, 15.0]
    assert [calls(folders["tensor"], rank) for rank in range(2)] == [each + ["1"] * 3 for each in before]


def test_a_stream_comes_from_rank_0_alone(server: RunningServer) -> None:
    response = server.predict("tensor", '{"stream": 3}', headers={"content-type": "application/json"})
    assert response.text == "1.03.05.0end"


def test_with_pipeline_parallelism_only_rank_0_gets_requests(server: RunningServer, folders: dict[str, Path]) -> None:
    assert [ask(server, "pipeline", x=x) for x in (1, 2)] == [10.0, 20.0]
    assert calls(folders["pipeline"], 0) == ["1", "1"]
    assert calls(folders["pipeline"], 1) == []


def test_custom_is_one_process(server: RunningServer) -> None:
    (process,) = processes_of(server, "custom")
    assert ask(server, "custom") == {"rank": os.environ.get("RANK"), "pid": process.pid}


def test_describe_and_environment(server: RunningServer, folders: dict[str, Path]) -> None:
    described = server.describe("tensor")[0]
    assert (described["parallelType"], described["parallelLevel"]) == ("tp", 2)
    (worker,) = described["workers"]
    assert worker["pid"] == ranks(folders["tensor"])[0].pid
    pipeline, custom = (server.describe(model)[0]["workers"][0]["id"] for model in ("pipeline", "custom"))
    assert sorted([int(worker["id"]), int(pipeline)]) == [31000, 31002]
    assert int(custom) < 31000
    told = ask(server, "tensor", tell=["WORLD_SIZE", "LOCAL_RANK", "OMP_NUM_THREADS", "LOGLEVEL", "TS_WORKER_TOKEN"])
    assert told == {
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "OMP_NUM_THREADS": "3",
        "LOGLEVEL": "INFO",
        "TS_WORKER_TOKEN": None,
    }
    assert (server.directory / "logs" / "torchelastic_ts").is_dir()


@pytest.mark.parametrize("rank", [0, 1])
def test_the_loss_of_any_rank_is_the_loss_of_the_worker(
    server: RunningServer, folders: dict[str, Path], rank: int
) -> None:
    old = processes_of(server, "tensor")
    assert len(old) == 3  # torchrun and two ranks
    ranks(folders["tensor"])[rank].kill()

    def replaced() -> bool:
        (worker,) = server.describe("tensor")[0]["workers"]
        return worker["status"] == "READY" and worker["pid"] not in [each.pid for each in old]

    eventually(replaced, "the worker is replaced")
    assert not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in old)
    assert ask(server, "tensor", x=1) == 3.0


def test_a_rank_that_cannot_load_fails_the_worker(server: RunningServer, tmp_path: Path) -> None:
    config = "parallelType: tp\nparallelLevel: 2\nmaxRetryTimeoutInSec: 0\n"
    folder = model_folder(tmp_path, "broken", HANDLER, config)
    (folder / "broken-1").touch()
    started = time.monotonic()
    assert server.register(folder).status_code == 500
    assert time.monotonic() - started < 60
    assert "this rank cannot load" in server.log()
    server.unregister("broken")
    eventually(lambda: not processes_of(server, "broken"), "no process is left behind")


def test_scaling_down_ends_all_processes(server: RunningServer) -> None:
    assert server.scale("pipeline", 0).status_code == 200
    assert processes_of(server, "pipeline") == []
    assert server.scale("pipeline", 1).status_code == 200
    assert ask(server, "pipeline", x=3) == 30.0


def test_no_process_outlives_a_server_that_is_killed(folders: dict[str, Path]) -> None:
    with RunningServer({"tensor": folders["tensor"]}) as running:
        running.wait_ready()
        processes = processes_of(running, "tensor")
        assert len(processes) == 3
        running.server.kill()
        gone, alive = psutil.wait_procs(processes, timeout=180)
        assert not [each for each in alive if each.status() != psutil.STATUS_ZOMBIE]
        assert len(gone) + len(alive) == 3
