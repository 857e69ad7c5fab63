"""A server that was frozen (a paused container, a suspended machine, a debugger) judges nobody by that time."""

import contextlib
import json
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest
import requests
from tests.e2e import orders
from tests.e2e.gate import WAITING, Gate
from tests.e2e.recorder import recorder
from tests.e2e.running_server import RunningServer, eventually, model_folder
from websockets.sync.client import connect

#: Every limit of the models and of their workers (seconds), and how long a server is frozen.
LIMIT: Final = 2
FROZEN: Final = 3 * LIMIT

#: Waits at a gate until it is loaded.
LATE: Final = (
    WAITING
    + """
class Late:
    def initialize(self, context):
        wait_for(context.system_properties["model_dir"] + "/load")

    def handle(self, data, context):
        return ["loaded"] * len(data)
"""
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("models")
    waits = f"responseTimeout: {LIMIT}\n"
    return {
        "pair": recorder(directory, "pair", "minWorkers: 2\nmaxWorkers: 2\nmaxNumSequence: 10\n"),
        "idle": recorder(directory, "idle", f"sequenceMaxIdleMSec: {LIMIT}000\n"),
        "waits": model_folder(directory, "waits", orders.HANDLER, waits),
    }


@pytest.fixture(scope="module")
def server(folders: dict[str, Path]) -> Iterator[RunningServer]:
    properties = {"drain_timeout": 0, "worker_heartbeat_timeout": LIMIT}
    with RunningServer(folders, properties) as server:
        server.wait_ready()
        yield server


@pytest.fixture
def background() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(max_workers=4) as pool:
        yield pool


@contextlib.contextmanager
def frozen(server: RunningServer, *, workers: bool) -> Iterator[None]:
    """Freeze the server, with or without its ``workers``, while the body runs, and for `FROZEN` seconds at least."""
    began = time.monotonic()
    stopped = [server.server, *(server.server.children(recursive=True) if workers else ())]
    for each in stopped:
        each.suspend()
    try:
        yield
        eventually(lambda: time.monotonic() - began > FROZEN, "the server was frozen for longer than every limit")
    finally:
        for each in stopped:
            each.resume()


ALONE_OR_TOGETHER = pytest.mark.parametrize("workers", [False, True], ids=["alone", "with its workers"])


def pids(server: RunningServer, model: str) -> set[int]:
    return {worker["pid"] for worker in server.describe(model)[0]["workers"]}


def held(server: RunningServer, model: str) -> set[int]:
    """The workers of a model after some checks: those that were to be killed are."""
    checks = 3 * LIMIT / 5
    began = time.monotonic()
    eventually(lambda: time.monotonic() - began > checks, "the limits were checked")
    return pids(server, model)


@ALONE_OR_TOGETHER
def test_the_workers_live_on_and_with_them_every_state(server: RunningServer, workers: bool) -> None:
    before, names = pids(server, "pair"), [f"{workers} {number}" for number in range(6)]
    owners = {server.predict("pair", "pid", sequence=name).text for name in names}
    assert owners == {str(pid) for pid in before}, "each worker has some of the sequences"
    for name in names:
        server.predict("pair", "a", sequence=name)
    with frozen(server, workers=workers):
        pass
    assert held(server, "pair") == before
    assert [server.predict("pair", "b", sequence=name).text for name in names] == ["a,b"] * len(names)
    for name in names:
        server.predict("pair", "end", sequence=name)


@ALONE_OR_TOGETHER
def test_a_job_that_runs_is_answered(
    server: RunningServer, folders: dict[str, Path], background: ThreadPoolExecutor, workers: bool
) -> None:
    before = pids(server, "waits")
    gate = Gate(folders["waits"], f"job-{workers}")
    running: Future[requests.Response] = background.submit(server.predict, "waits", f"wait {gate.path.name}")
    gate.wait_until_reached()
    with frozen(server, workers=workers):
        if not workers:
            gate.open()
    assert held(server, "waits") == before
    gate.open()
    answer = running.result()
    assert (answer.status_code, answer.text) == (200, f"wait {gate.path.name}")


def test_a_worker_that_hangs_is_noticed_afterwards(
    server: RunningServer, folders: dict[str, Path], background: ThreadPoolExecutor
) -> None:
    before = pids(server, "waits")
    gate = Gate(folders["waits"], "hangs")
    running = background.submit(server.predict, "waits", "wait hangs")
    gate.wait_until_reached()
    with frozen(server, workers=True):
        pass
    answer = running.result()
    assert (answer.status_code, answer.headers["ts-error-cause"]) == (500, "response_timeout")
    eventually(lambda: pids(server, "waits").isdisjoint(before | {-1}), "the worker is replaced")
    gate.open()


@ALONE_OR_TOGETHER
def test_a_model_that_loads_meanwhile_is_registered(
    server: RunningServer, tmp_path: Path, background: ThreadPoolExecutor, workers: bool
) -> None:
    folder = model_folder(tmp_path, "late", LATE)
    gate = Gate(folder, "load")
    loading = background.submit(server.register, folder, startup_timeout=LIMIT)
    gate.wait_until_reached()
    with frozen(server, workers=workers):
        if not workers:
            gate.open()
    gate.open()
    assert loading.result().status_code == 200
    assert server.predict("late").text == "loaded"
    assert server.unregister("late").status_code == 200


@ALONE_OR_TOGETHER
def test_an_open_session_and_its_sequence_go_on(server: RunningServer, workers: bool) -> None:
    url = f"{server.inference.replace('http', 'ws', 1)}/sequences/idle?content_type=text/plain"
    with connect(url, ping_interval=None) as socket:

        def step(body: str) -> str:
            socket.send(json.dumps({"body": body}))
            return str(json.loads(socket.recv(timeout=180))["body"])

        socket.recv(timeout=180)
        assert step("a") == "a"
        with frozen(server, workers=workers):
            pass
        assert step("b") == "a,b"
