"""Asynchronous models with sequences: calls at once, clients that leave, workers that die, a restart."""

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests
from tests.e2e.running_server import DEADLINE, RunningServer, eventually, model_folder

from torchserve_py.client import Client

#: Adds up. After its number a body may name a file: the call writes it, with the suffix ``.reached``, and waits until
#: there is one with the suffix ``.go``.
APP = """
import asyncio
from pathlib import Path

from ts import serve


@serve
async def total(number: int, state: dict, wait_for: str = "") -> int:
    state["total"] = state.get("total", 0) + number
    if wait_for:
        Path(wait_for + ".reached").touch()
        while not Path(wait_for + ".go").exists():
            await asyncio.sleep(0.01)
    return state["total"]
"""

CONFIG = """
minWorkers: 1
maxWorkers: 1
asyncCommunication: true
sequenceBatching: true
sequenceMaxIdleMSec: 600000
maxNumSequence: 100
maxSequenceJobQueueSize: 8
handler:
  cache: {store: file, path: %s, lease: 600}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("async-sequences")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RunningServer]:
    model = model_folder(folder, "total", APP, CONFIG % (folder / "sequences.db"))
    with RunningServer({"total": model}) as running:
        running.wait_ready()
        yield running


def step(server: RunningServer, sequence: str, number: int, wait_for: Path | None = None, **headers: str) -> Any:
    """The answer to a step: the total, or the status of an error."""
    body = {"number": number, "wait_for": str(wait_for or "")}
    named = {"ts_request_sequence_id": sequence, **headers}
    answer = requests.post(f"{server.inference}/predictions/total", json=body, headers=named, timeout=DEADLINE)
    return answer.json() if answer.status_code == 200 else answer.status_code


def reached(wait_for: Path) -> Any:
    return eventually(Path(f"{wait_for}.reached").exists, f"{wait_for.name} is reached")


def go(wait_for: Path) -> None:
    Path(f"{wait_for}.go").touch()


def test_sequences_run_at_once_and_the_steps_of_each_in_order(server: RunningServer, folder: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        waiting = pool.submit(step, server, "slow", 5, folder / "x")
        reached(folder / "x")
        second = pool.submit(step, server, "slow", 1)
        assert [step(server, "quick", 1) for _ in range(3)] == [1, 2, 3]
        assert not second.done()
        go(folder / "x")
        assert (waiting.result(DEADLINE), second.result(DEADLINE)) == (5, 6)


def test_a_step_whose_client_leaves_does_not_count(server: RunningServer, folder: Path) -> None:
    assert step(server, "left", 5) == 5
    body = {"number": 100, "wait_for": str(folder / "left")}
    with pytest.raises(requests.ReadTimeout):
        requests.post(
            f"{server.inference}/predictions/total",
            json=body,
            headers={"ts_request_sequence_id": "left"},
            timeout=(DEADLINE, 1),
        )
    reached(folder / "left")
    assert step(server, "left", 1) == 6


def test_the_client_s_sessions_work_as_with_other_models(server: RunningServer) -> None:
    with Client(server.inference) as client, client.session("total") as session:
        assert [session.step({"number": number}).json() for number in (1, 2, 3)] == [1, 3, 6]


def test_a_killed_worker_costs_no_acknowledged_step(server: RunningServer, folder: Path) -> None:
    assert [step(server, name, 5) for name in ("a", "b")] == [5, 5]
    (worker,) = server.workers()
    with ThreadPoolExecutor(2) as pool:
        token = {"ts_request_step": "2", "ts_request_sequence_token": _token(server, "c", 5)}
        lost = pool.submit(step, server, "c", 1, folder / "c", **token)
        reached(folder / "c")
        os.kill(worker.pid, signal.SIGKILL)
        go(folder / "c")
        assert lost.result(DEADLINE) in (6, 500, 503)
    _until(lambda: step(server, "c", 1, folder / "c", **token), 6)
    assert [_until(lambda name=name: step(server, name, 1), 6) for name in ("a", "b")] == [6, 6]


def test_sequences_go_on_after_a_restart(server: RunningServer, folder: Path) -> None:
    assert step(server, "kept", 5) == 5
    assert server.terminate() == 0
    with RunningServer({"total": folder / "total"}) as again:
        again.wait_ready()
        assert step(again, "kept", 1) == 6


def _token(server: RunningServer, sequence: str, number: int) -> str:
    """Begin a sequence; return its token."""
    answer = requests.post(
        f"{server.inference}/predictions/total",
        json={"number": number},
        headers={"ts_request_sequence_id": sequence, "ts_request_step": "1"},
        timeout=DEADLINE,
    )
    assert answer.json() == number
    return answer.headers["ts_sequence_token"]


def _until(asked: Any, answer: Any) -> Any:
    """Ask again until the answer comes, as clients do while a worker is replaced."""
    end = time.monotonic() + DEADLINE
    while (last := asked()) != answer:
        assert last in (409, 500, 503), last
        assert time.monotonic() < end, f"no answer but {last}"
        time.sleep(0.1)
    return last
