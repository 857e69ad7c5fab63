"""Processes that a handler leaves behind in sessions of their own: none outlives the server, none stays as a zombie."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from tests.e2e.running_server import RunningServer, eventually, model_folder

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other kernels have no subreapers")

#: A number N leaves N processes behind that are each other's parents, each in a session of its own, and answers with
#: their process ids; they sleep. ``0`` leaves one that ends at once. ``exit`` ends the worker.
HANDLER = """
import os
import time


def leave(count, writes):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.setsid()
            os.write(writes, f"{os.getpid()} ".encode())
            if count > 1:
                leave(count - 1, writes)
            os.close(writes)
            time.sleep(600 if count else 0)
        os._exit(0)


def handle(data, context):
    if data is None:
        return None
    if data[0]["body"] == "exit":
        os._exit(3)
    reads, writes = os.pipe()
    leave(int(data[0]["body"]), writes)
    os.close(writes)
    with open(reads) as told:
        return [told.read()]
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    folder = model_folder(tmp_path, "m", HANDLER, "maxRetryTimeoutInSec: 600\n")
    with RunningServer({"m": folder}) as running:
        running.wait_ready()
        yield running


@pytest.fixture
def sleeping() -> Iterator[Callable[[], psutil.Process]]:
    """Start processes that sleep and have nothing to do with a server; they are ended after the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> psutil.Process:
        started.append(subprocess.Popen(["sleep", "600"]))
        return psutil.Process(started[-1].pid)

    yield start
    for each in started:
        each.kill()
        each.wait()


def left_by(server: RunningServer, order: str) -> list[psutil.Process]:
    return [psutil.Process(int(pid)) for pid in server.predict("m", order).text.split()]


def test_none_outlives_the_server(server: RunningServer, sleeping: Callable[[], psutil.Process]) -> None:
    other = sleeping()
    left = left_by(server, "3")
    assert len(left) == 3
    assert server.predict("m", "exit").status_code == 500
    assert all(each.is_running() for each in left)
    assert server.terminate() == 0
    assert [each for each in left if each.is_running()] == []
    assert other.is_running()
    assert f"Process {left[0].pid}, which a worker has left behind, is killed" in server.log()


def test_one_that_ends_is_reaped_and_workers_are_still_waited_for(server: RunningServer) -> None:
    ended = int(server.predict("m", "0").text)
    assert server.predict("m", "exit").status_code == 500
    eventually(lambda: "exited with code 3" in server.log(), "the server knows how its worker has ended")
    eventually(lambda: not psutil.pid_exists(ended), "the server has reaped it")


def test_children_of_the_program_that_became_the_server_are_spared(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, "m", HANDLER)
    pid_file = tmp_path / "pid"
    with RunningServer({"m": folder}) as server:
        assert server.terminate() == 0
        server.command = ["sh", "-c", f'sleep 600 & echo $! > {pid_file}; exec "$@"', "sh", *server.command]
        server.output.write_text("")
        server.start()
        server.wait_ready()
        sidecar = psutil.Process(int(pid_file.read_text()))
        try:
            (left,) = left_by(server, "1")
            assert server.terminate() == 0
            assert sidecar.is_running()
            assert not left.is_running()
        finally:
            sidecar.kill()
