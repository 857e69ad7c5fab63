"""The commands: from a handler to an answer with the lines that TorchServe users know, and what else they can do."""

import signal
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import requests
from tests.e2e.gate import WAITING, Gate
from tests.e2e.running_server import COMMAND, DEADLINE, RunningServer, eventually, model_folder
from tests.e2e.workplace import Workplace

ARCHIVE = """torch-model-archiver --model-name stateful --version 1.0 --handler handlers/stateful/stateful_handler.py \\
    --config-file handlers/stateful/model-config.yaml --export-path model_store"""
START = "torchserve-py --ncs --start --disable-token-auth --model-store model_store --models stateful.mar"
PREDICT = 'curl -H "ts_request_sequence_id: seq_0" localhost:8080/predictions/stateful -T handlers/stateful/sample/'
START_EMPTY = "torchserve-py --ncs --start --model-store model_store"
STOP = "torchserve-py --stop"

WAITING_HANDLER = (
    WAITING
    + """
def handle(data, context):
    if data:
        wait_for(data[0]["body"])
        return ["done"]
"""
)


@pytest.fixture
def workplace(tmp_path: Path) -> Iterator[Workplace]:
    with Workplace(tmp_path) as place:
        yield place


def start(workplace: Workplace, command: str = START_EMPTY) -> psutil.Process:
    assert workplace.run(command)[0] == 0
    try:
        eventually(
            lambda: "Model server started." in workplace.output.read_text(), "the server says that it has started"
        )
    except AssertionError as error:
        raise AssertionError(f"{error}\n{workplace.output.read_text()}") from None
    assert workplace.server is not None
    return workplace.server


def is_gone(process: psutil.Process) -> bool:
    """Whether it has ended, though its parent may not have asked for its exit code yet."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_from_a_handler_to_an_answer(workplace: Workplace) -> None:
    assert workplace.run(ARCHIVE)[0] == 0
    assert (workplace.directory / "model_store" / "stateful.mar").is_file()
    server = start(workplace, START)
    assert workplace.pid_file.read_text() == str(server.pid)
    assert workplace.run(PREDICT + "sample1.txt") == (0, "5")
    assert workplace.run(PREDICT + "sample2.txt") == (0, "17")
    assert workplace.run(PREDICT + "sample3.txt") == (0, "17")
    processes = server.children(recursive=True)
    assert sum("ts.process.worker" in process.cmdline() for process in processes) == 1
    code, printed = workplace.run(STOP)
    first, last = printed.splitlines()
    assert first == f"Stopping process {server.pid} at {workplace.inference}, started in {workplace.directory}."
    assert (code, last) == (0, "TorchServe has stopped.")
    assert is_gone(server)
    assert all(is_gone(process) for process in processes)
    assert not workplace.pid_file.exists()
    assert workplace.ports_are_free()


def test_a_second_start_says_what_is_running(workplace: Workplace) -> None:
    server = start(workplace)
    code, printed = workplace.run("torchserve --start --model-store model_store")
    assert code == 1
    first, second = printed.splitlines()
    assert first == "TorchServe is already running, please use torchserve --stop to stop TorchServe."
    assert f"process {server.pid}" in second
    assert server.is_running()
    assert workplace.pid_file.read_text() == str(server.pid)


def test_a_server_in_the_background_writes_no_metrics_over_a_terminal(workplace: Workplace) -> None:
    assert workplace.run(START_EMPTY, terminal=True)[0] == 0
    terminal, metrics = workplace.output, workplace.directory / "logs" / "ts_metrics.log"
    eventually(lambda: "Model server started." in terminal.read_text(), "the server has started")
    requests.get(f"{workplace.inference}/no_such_path", timeout=DEADLINE)
    eventually(lambda: "Requests4XX" in metrics.read_text(), "the metric is in its file")
    requests.get(f"{workplace.inference}/last", timeout=DEADLINE)
    eventually(lambda: "/last" in terminal.read_text(), "the terminal has what was logged after it")
    assert "METRICS" not in terminal.read_text()


def test_start_and_stop_twice(workplace: Workplace) -> None:
    first = start(workplace)
    assert workplace.run(STOP)[0] == 0
    second = start(workplace)
    assert second.pid != first.pid
    assert (workplace.directory / "key_file.json").exists()
    assert workplace.run(STOP)[0] == 0
    assert not (workplace.directory / "key_file.json").exists()
    assert workplace.run(STOP) == (0, "TorchServe is not currently running.\n")


def test_a_killed_server_does_not_prevent_the_next(workplace: Workplace) -> None:
    workplace.run(ARCHIVE)
    server = start(workplace, START)
    workers = server.children(recursive=True)
    server.kill()
    eventually(lambda: all(is_gone(worker) for worker in workers), "the workers end with their server")
    code, printed = workplace.run(START)
    assert code == 0
    assert printed.startswith("Removing orphan pid file.\n")
    eventually(lambda: "Model server started." in workplace.output.read_text(), "the next server has started")


def test_stop_drains(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, "waiting", WAITING_HANDLER)
    place = tmp_path / "place"
    place.mkdir()
    gate = Gate(tmp_path)
    with Workplace(place, {"drain_timeout": 60}) as workplace, ThreadPoolExecutor(2) as pool:
        server = start(workplace, f"{START.rpartition(' ')[0]} {folder}")
        url = f"{workplace.inference}/predictions/waiting"
        headers = {"content-type": "text/plain"}
        answer = pool.submit(requests.post, url, data=str(gate.path), headers=headers, timeout=180)
        gate.wait_until_reached()
        stopping = pool.submit(workplace.run, STOP)
        ready = f"{workplace.inference}/ready"
        eventually(lambda: requests.get(ready, timeout=180).status_code == 503, "the server is stopping")
        assert server.is_running()
        assert not stopping.done()
        gate.open()
        assert answer.result().text == "done"
        code, printed = stopping.result()
        assert (code, printed.splitlines()[-1]) == (0, "TorchServe has stopped.")
        assert is_gone(server)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_foreground_server_drains_and_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    folder = model_folder(tmp_path, "model", "def handle(data, context):\n    return data\n")
    running = RunningServer({"model": folder}, {"drain_timeout": 1})
    with running.started_by(*COMMAND) as server:
        server.wait_ready()
        processes = [server.server, *server.workers()]
        assert len(processes) == 2
        assert server.terminate(number) == 0
        assert all(is_gone(process) for process in processes)
        assert list(server.temp.glob(".model_server*")) == []


def test_nothing_survives_a_foreground_process_that_is_killed(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, "model", "def handle(data, context):\n    return data\n")
    with RunningServer({"model": folder}).started_by(*COMMAND) as server:
        server.wait_ready()
        processes = [server.server, *server.workers()]
        assert len(processes) == 2
        assert server.process is not None
        assert server.process.pid == server.server.pid == int((server.temp / ".model_server.pid").read_text())
        server.process.kill()
        eventually(lambda: all(is_gone(process) for process in processes), "the server and its workers are gone")


# What can be wrong


def test_a_bad_value_is_told_before_anything_starts(workplace: Workplace) -> None:
    lines = workplace.config.read_text().splitlines()
    workplace.config.write_text("\n".join([*lines, "job_queue_size=abc"]))
    code, printed = workplace.run(START)
    assert code == 1
    expected = f"config.properties:{len(lines) + 1}: job_queue_size = abc: it must be an integer from 1"
    assert printed.startswith("Invalid configuration: ")
    assert expected in printed
    assert workplace.server is None
    assert not workplace.pid_file.exists()


def test_a_missing_model_store_is_told(workplace: Workplace) -> None:
    assert workplace.run("torchserve-py --start") == (1, "Missing mandatory parameter --model-store\n")
    code, printed = workplace.run("torchserve-py --start --model-store nowhere")
    assert (code, printed) == (1, "--model-store directory not found: nowhere\n")


@pytest.mark.parametrize("foreground", [True, False])
def test_a_port_in_use_is_told_and_leaves_no_process(workplace: Workplace, foreground: bool) -> None:
    workplace.run(ARCHIVE)
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", workplace.ports[1]))
        taken.listen()
        code, printed = workplace.run(f"{START} {'--foreground' if foreground else ''}")
    assert code == 1
    assert workplace.server is None
    assert f"management_address: cannot listen at http://127.0.0.1:{workplace.ports[1]}" in printed
    assert "the address is in use" in printed
    assert "Model server started." not in printed
    assert "Traceback" not in printed
    eventually(lambda: not processes_of(workplace), "no process is left")
    assert workplace.run(STOP)[1].splitlines()[-1] == "TorchServe is not currently running."


def processes_of(workplace: Workplace) -> list[psutil.Process]:
    """Return every process that works in the directory."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TS_CONFIG_FILE") == str(workplace.config):
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_version_and_help(workplace: Workplace) -> None:
    code, printed = workplace.run("torchserve-py --version")
    assert code == 0
    assert printed.startswith("TorchServe Version is ")
    code, printed = workplace.run("torch-model-archiver --help")
    assert code == 0
    assert "--serialized-file" in printed


def test_print_config_tells_where_each_value_comes_from(workplace: Workplace) -> None:
    code, printed = workplace.run("torchserve-py --print-config --model-store model_store")
    assert code == 0
    lines = {line.split()[0]: line.split(maxsplit=2)[1:] for line in printed.splitlines() if line.strip()}
    assert lines["drain_timeout"][0] == "1"
    assert "config.properties" in lines["drain_timeout"][1]
    assert "--model-store" in lines["model_store"][1]
    assert lines["max_response_size"] == ["6553500", "default"]
    assert workplace.server is None


def test_an_archive_that_cannot_be_made_is_told(workplace: Workplace) -> None:
    command = "torch-model-archiver --model-name x --version 1.0 --export-path model_store --handler nowhere.py"
    code, printed = workplace.run(command)
    assert code != 0
    assert "nowhere.py" in printed
    assert "Traceback" not in printed
    assert subprocess.run(["ls", workplace.directory / "model_store"], capture_output=True, check=True).stdout == b""
