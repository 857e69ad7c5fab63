"""Workers that die, hang or never get ready: what clients are told, and that the server recovers."""

import hashlib
import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import requests
from tests.e2e import orders
from tests.e2e.gate import WAITING, Gate
from tests.e2e.recorder import recorder
from tests.e2e.running_server import DEADLINE, RunningServer, eventually, model_folder

START = {"ts_request_sequence_start": "true"}
HEARTBEAT_TIMEOUT = 1

#: Fails to load until a file ``mended`` is in the model's folder; notes every attempt in a file.
BROKEN = """
import os


class BrokenHandler:
    def initialize(self, context):
        directory = context.system_properties["model_dir"]
        with open(f"{directory}/attempts", "a") as file:
            file.write(f"{os.getpid()}\\n")
        if not os.path.exists(f"{directory}/mended"):
            FAILURE

    def handle(self, data, context):
        return ["mended"] * len(data)
"""

#: Says which process has a request, and waits at the gate.
WAITS = (
    WAITING
    + """
class WaitingHandler:
    def initialize(self, context):
        self.directory = context.system_properties["model_dir"]

    def handle(self, data, context):
        with open(f"{self.directory}/pid", "w") as file:
            file.write(str(os.getpid()))
        wait_for(f"{self.directory}/gate")
        return ["done"] * len(data)
"""
)


def broken(directory: Path, name: str, failure: str, config: str = "") -> Path:
    return model_folder(directory, name, BROKEN.replace("FAILURE", failure), config)


def attempts(folder: Path) -> list[int]:
    """The ids of the processes that have tried to load the model."""
    file = folder / "attempts"
    return [int(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("models")
    return {
        "stateful": recorder(
            directory, "stateful", "batchSize: 2\nmaxBatchDelay: 0\nmaxNumSequence: 10\nmaxSequenceJobQueueSize: 5\n"
        ),
        "pair": recorder(directory, "pair", "minWorkers: 2\nmaxWorkers: 2\nmaxNumSequence: 10\n"),
        "stateless": model_folder(directory, "stateless", orders.HANDLER),
        "two": model_folder(directory, "two", WAITS, "minWorkers: 2\nmaxWorkers: 2\n"),
        "batches": model_folder(directory, "batches", orders.HANDLER, "batchSize: 4\nmaxBatchDelay: 2000\n"),
        "impatient": model_folder(directory, "impatient", orders.HANDLER, "responseTimeout: 1\n"),
    }


@pytest.fixture(scope="module")
def server(folders: dict[str, Path]) -> Iterator[RunningServer]:
    properties = {"drain_timeout": 0, "worker_heartbeat_timeout": HEARTBEAT_TIMEOUT}
    with RunningServer(folders, properties) as server:
        server.wait_ready()
        yield server


@pytest.fixture
def send(server: RunningServer) -> Iterator[Callable[..., Future[requests.Response]]]:
    """Post in the background; arguments as those of `RunningServer.predict`."""
    with ThreadPoolExecutor(max_workers=16) as pool:
        yield lambda *args, **more: pool.submit(server.predict, *args, **more)


def worker_of(server: RunningServer, model: str) -> psutil.Process:
    """The process of a model's only worker."""
    (worker,) = server.describe(model)[0]["workers"]
    return psutil.Process(worker["pid"])


def wait_until_replaced(server: RunningServer, model: str, old: psutil.Process) -> None:
    """Return when another process is in the place of the worker ``old``, which is gone."""

    def replaced() -> bool:
        (worker,) = server.describe(model)[0]["workers"]
        return bool(worker["status"] == "READY" and worker["pid"] != old.pid)

    eventually(replaced, f"the worker of {model} is replaced")
    assert not old.is_running()


def assert_failed(response: requests.Response, status: int, cause: str) -> None:
    assert (response.status_code, response.headers.get("ts-error-cause")) == (status, cause), response.text
    assert response.json()["code"] == status


# Death


def test_the_death_of_a_stateful_worker_loses_its_sequences_and_nothing_else(
    server: RunningServer, folders: dict[str, Path], send: Callable[..., Future[requests.Response]]
) -> None:
    gate = Gate(folders["stateful"])
    before = server.describe("stateful")[0]["workers"][0]
    assert server.predict("stateful", "a", sequence="idle").text == "a"
    assert server.predict("stateful", "a", sequence="waiting").text == "a"
    running = send("stateful", "wait gate", sequence="running")
    gate.wait_until_reached()
    queued = [send("stateful", "b", sequence=sequence) for sequence in ("running", "running", "waiting")]
    eventually(lambda: server.pending("stateful") == len(queued), "the requests wait")

    worker = worker_of(server, "stateful")
    worker.kill()

    died = running.result()
    assert_failed(died, 500, "worker_died")
    assert died.json() == {"code": 500, "type": "InternalServerException", "message": "Worker died."}
    for each in queued:
        assert_failed(each.result(), 410, "sequence_lost")
    wait_until_replaced(server, "stateful", worker)
    assert server.describe("stateful")[0]["workers"][0]["id"] == before["id"]
    assert server.metric("ts_worker_restarts_total", model_name="stateful") == 1
    for sequence in ("idle", "waiting", "running"):
        lost = server.predict("stateful", "c", sequence=sequence)
        assert_failed(lost, 410, "sequence_lost")
        assert lost.json()["type"] == "SequenceLostException"
    assert server.predict("stateful", "a", sequence="new").text == "a"
    assert server.predict("stateful", "d", sequence="idle", headers=START).text == "d"
    assert server.predict("stateful", "e", sequence="idle").text == "d,e"


def test_the_sequences_of_the_other_workers_go_on(server: RunningServer) -> None:
    sequences = [f"s{number}" for number in range(8)]
    worker_by_sequence = {sequence: server.predict("pair", "pid", sequence=sequence).text for sequence in sequences}
    first, second = sorted(set(worker_by_sequence.values()))
    assert [list(worker_by_sequence.values()).count(worker) for worker in (first, second)] == [4, 4]
    for text in ("a", "b"):
        for sequence in sequences:
            assert server.predict("pair", text, sequence=sequence).status_code == 200
    psutil.Process(int(first)).kill()
    for sequence in sequences:
        if worker_by_sequence[sequence] == second:
            assert server.predict("pair", "c", sequence=sequence).text == "a,b,c"
        else:
            lost = [server.predict("pair", "c", sequence=sequence) for _ in range(2)]
            assert lost[0].headers["ts-error-cause"] in ("worker_died", "sequence_lost")
            assert_failed(lost[1], 410, "sequence_lost")
    assert server.predict("pair", "a", sequence="new").text == "a"


def test_a_stream_breaks_off_where_its_worker_dies(server: RunningServer, folders: dict[str, Path]) -> None:
    gate = Gate(folders["stateless"], "streaming")
    with server.predict("stateless", "stream streaming", stream=True) as stream:
        parts = stream.iter_content(None)
        assert next(parts) == b"first"
        gate.wait_until_reached()
        worker_of(server, "stateless").kill()
        with pytest.raises(requests.exceptions.ChunkedEncodingError):
            next(parts)
    assert server.predict("stateless", "hello").text == "hello"


def test_stateless_requests_that_wait_are_served_by_the_next_worker(
    server: RunningServer, folders: dict[str, Path], send: Callable[..., Future[requests.Response]]
) -> None:
    gate = Gate(folders["stateless"], "killed")
    running = send("stateless", "wait killed")
    gate.wait_until_reached()
    queued = [send("stateless", str(number)) for number in range(5)]
    eventually(lambda: server.pending("stateless") == len(queued), "the requests wait")
    worker_of(server, "stateless").kill()
    gate.open()
    assert running.result().text == "wait killed"
    assert [each.result().text for each in queued] == ["0", "1", "2", "3", "4"]


def test_a_request_that_ends_two_workers_is_named_and_ends(server: RunningServer) -> None:
    worker = worker_of(server, "stateless")
    before = server.metric("ts_worker_restarts_total", model_name="stateless")
    killer = server.predict("stateless", "exit 3")
    assert_failed(killer, 500, "worker_died")
    assert killer.json() == {"code": 500, "type": "InternalServerException", "message": "Worker died."}
    wait_until_replaced(server, "stateless", worker)
    assert server.predict("stateless", "hello").text == "hello"
    assert f"(pid {worker.pid}) exited with code 3" in server.log()
    assert server.metric("ts_worker_restarts_total", model_name="stateless") == before + 2
    named = f"Request {killer.headers['x-request-id']} does not run again: 2 workers have died with it"
    digest = hashlib.sha256(b"exit 3").hexdigest()[:16]
    (line,) = [line for line in server.log().splitlines() if named in line]
    assert line.endswith(f"; 6 bytes, SHA-256 {digest}…")


def test_a_request_does_not_end_with_a_worker_that_had_not_read_it(
    server: RunningServer, folders: dict[str, Path], send: Callable[..., Future[requests.Response]]
) -> None:
    """As if both workers were killed at once: the second stands still from before the request is sent to it."""
    gate = Gate(folders["two"])
    running = send("two", "hello")
    gate.wait_until_reached()
    busy = int((folders["two"] / "pid").read_text())
    workers = {worker["pid"]: worker["id"] for worker in server.describe("two")[0]["workers"]}
    (second,) = (psutil.Process(pid) for pid in workers if pid != busy)
    second.suspend()
    psutil.Process(busy).kill()
    sent_again = f"Worker {workers[busy]} is gone; requests that it had and that run once more: 1"
    eventually(lambda: sent_again in server.log(), "it is sent again")
    second.kill()
    gate.open()
    assert running.result().text == "done"


def test_neighbours_of_a_request_that_kills_its_worker_are_answered(
    server: RunningServer, send: Callable[..., Future[requests.Response]]
) -> None:
    """Each batch of four has one that kills every worker."""
    for _ in range(3):
        killer = send("batches", "exit 3")
        others = [send("batches", str(number)) for number in range(3)]
        assert [each.result().text for each in others] == ["0", "1", "2"]
        assert_failed(killer.result(), 500, "worker_died")


def test_a_child_that_outlives_the_worker_keeps_nobody_waiting(
    server: RunningServer, folders: dict[str, Path], send: Callable[..., Future[requests.Response]]
) -> None:
    """The child holds the worker's connections and outputs open."""
    child = psutil.Process(int(server.predict("stateless", "fork away").text))
    try:
        gate = Gate(folders["stateless"], "forked")
        running = send("stateless", "wait forked")
        gate.wait_until_reached()
        worker = worker_of(server, "stateless")
        worker.kill()
        gate.open()
        assert running.result().text == "wait forked"
        wait_until_replaced(server, "stateless", worker)
        assert server.predict("stateless", "hello").text == "hello"
        assert child.is_running()
    finally:
        child.kill()


def test_what_a_handler_has_started_ends_with_its_worker(server: RunningServer) -> None:
    child = psutil.Process(int(server.predict("stateless", "fork").text))
    worker = worker_of(server, "stateless")
    worker.kill()
    wait_until_replaced(server, "stateless", worker)
    eventually(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, "the child is gone")


def test_memory_that_runs_out_in_the_handler_does_not_cost_the_worker(server: RunningServer) -> None:
    worker = worker_of(server, "stateless")
    response = server.predict("stateless", "exhaust")
    assert_failed(response, 507, "handler_error")
    assert response.json()["message"] == "Out of resources"
    assert worker_of(server, "stateless") == worker


def test_what_a_handler_prints_is_in_the_model_log(server: RunningServer) -> None:
    assert server.predict("stateless", "print hello").status_code == 200
    (worker,) = server.describe("stateless")[0]["workers"]
    for stream in ("stdout", "stderr"):
        line = f"W-{worker['id']}-stateless_1.0-{stream} MODEL_LOG - hello to {stream}"
        eventually(lambda line=line: line in server.model_log(), f"the line {line!r} is in the model log")  # type: ignore[misc]


# Hanging


def test_a_stopped_worker_is_noticed_and_replaced(
    server: RunningServer, folders: dict[str, Path], send: Callable[..., Future[requests.Response]]
) -> None:
    gate = Gate(folders["stateless"], "stopped")
    running = send("stateless", "wait stopped")
    gate.wait_until_reached()
    worker = worker_of(server, "stateless")
    worker.send_signal(signal.SIGSTOP)
    gate.open()
    assert running.result().text == "wait stopped"
    wait_until_replaced(server, "stateless", worker)
    assert server.predict("stateless", "hello").text == "hello"


def test_a_stopped_idle_worker_is_noticed_and_replaced(server: RunningServer) -> None:
    assert server.predict("stateful", "a", sequence="kept").status_code == 200
    worker = worker_of(server, "stateful")
    worker.send_signal(signal.SIGSTOP)
    wait_until_replaced(server, "stateful", worker)
    assert_failed(server.predict("stateful", "b", sequence="kept"), 410, "sequence_lost")


def test_a_long_inference_is_no_hang(server: RunningServer) -> None:
    worker = worker_of(server, "stateless")
    assert server.predict("stateless", f"sleep {2.5 * HEARTBEAT_TIMEOUT}").status_code == 200
    assert worker_of(server, "stateless") == worker


def test_a_handler_that_takes_too_long_is_given_up(
    server: RunningServer, folders: dict[str, Path], send: Callable[..., Future[requests.Response]]
) -> None:
    worker = worker_of(server, "impatient")
    gate = Gate(folders["impatient"])
    running = send("impatient", "wait gate")
    gate.wait_until_reached()
    queued = send("impatient", "next")
    assert_failed(running.result(), 500, "response_timeout")
    assert queued.result().text == "next"
    wait_until_replaced(server, "impatient", worker)


# Loading


@pytest.mark.parametrize(
    ("name", "failure", "status"),
    [
        ("raises", 'raise RuntimeError("no weights")', 500),
        ("exhausts", "raise MemoryError", 507),
        ("exits", "os._exit(7)", 500),
        ("is_killed", "os.kill(os.getpid(), 9)", 507),
    ],
)
def test_a_model_that_does_not_load_is_not_registered(
    server: RunningServer, tmp_path: Path, name: str, failure: str, status: int
) -> None:
    folder = broken(tmp_path, name, failure)
    response = server.register(folder)
    assert response.status_code == status
    body = response.json()
    assert (body["code"], body["type"]) == (status, "InternalServerException")
    assert body["message"].startswith(f"Failed to start workers for model {name} version: 1.0: ")
    assert requests.get(f"{server.management}/models/{name}", timeout=10).status_code == 404
    assert attempts(folder)
    assert not any(psutil.pid_exists(pid) for pid in attempts(folder))
    (folder / "mended").touch()
    assert server.register(folder).status_code == 200
    assert server.predict(name).text == "mended"
    assert server.unregister(name).status_code == 200


def test_requests_for_a_model_that_memory_does_not_suffice_for_are_told(server: RunningServer, tmp_path: Path) -> None:
    folder = broken(tmp_path, "large", "raise MemoryError")
    assert server.register(folder, synchronous="false").status_code == 202

    def told() -> str:
        answer = server.predict("large")
        return answer.json()["message"] if answer.status_code == 503 else ""

    message = eventually(told, "it is given up")
    assert message.endswith(". Its workers do not start, because memory runs out.")
    url = f"{server.inference}/v2/models/large/infer"
    answer = requests.post(url, json={"inputs": []}, timeout=DEADLINE)
    why = r"Its workers do not start, because memory runs out\."
    told_there = (
        rf'Model large is not ready\. {why}|Model "large" has no worker\. {why}( Its workers fail; .* in \d+ s\.)?'
    )
    assert re.fullmatch(told_there, answer.json()["error"])
    assert server.unregister("large").status_code == 200


def test_why_a_model_does_not_load_is_in_the_logs(server: RunningServer, tmp_path: Path) -> None:
    server.register(broken(tmp_path, "told", 'raise RuntimeError("no weights")'))
    assert "could not load the model" in server.log()
    assert "RuntimeError: no weights" in server.log()
    eventually(lambda: "Traceback" in server.model_log(), "the traceback is in the model log")


def test_a_start_up_model_is_tried_again_until_its_time_is_over(tmp_path: Path) -> None:
    hopeless = broken(tmp_path, "hopeless", "raise ValueError", "maxRetryTimeoutInSec: 1\n")
    mending = broken(tmp_path, "mending", "os._exit(1)", "maxRetryTimeoutInSec: 60\n")
    with (
        RunningServer({"hopeless": hopeless, "mending": mending}, {"drain_timeout": 0}) as server,
        ThreadPoolExecutor() as pool,
    ):
        queued = {name: pool.submit(server.predict, name) for name in ("hopeless", "mending")}
        assert requests.get(f"{server.inference}/ready", timeout=10).status_code == 503
        assert_failed(queued["hopeless"].result(), 503, "no_worker")
        assert len(attempts(hopeless)) >= 2
        refused = server.predict("hopeless")
        assert_failed(refused, 503, "no_worker")
        (worker,) = server.describe("hopeless")[0]["workers"]
        assert 30 < worker["startsAgainInSec"] <= 60
        assert "ValueError" in worker["failure"]
        assert re.search(r"Its workers fail; the next one starts in \d+ s\.$", refused.json()["message"])
        assert 30 < int(refused.headers["retry-after"]) <= 60
        assert server.metric("ts_workers_wanted", model_name="hopeless") == 1
        assert server.metric("ts_workers_given_up", model_name="hopeless") == 1
        assert requests.get(f"{server.inference}/ping", timeout=10).status_code == 500

        eventually(lambda: len(attempts(mending)) >= 2, "the other model is tried again")
        (mending / "mended").touch()
        assert queued["mending"].result().text == "mended"

        (hopeless / "mended").touch()
        assert server.scale("hopeless", 1).status_code == 200
        assert server.predict("hopeless").text == "mended"
        server.wait_ready()
        assert requests.get(f"{server.inference}/ping", timeout=10).status_code == 200


def test_a_script_that_reads_the_log_finds_the_traceback_of_each_attempt_to_load(tmp_path: Path) -> None:
    source = """
def handle(data, context):
    load_weights()

def load_weights():
    assert False
"""
    with RunningServer() as server:
        folder = model_folder(tmp_path, "broken", source)
        assert server.register(folder, synchronous="false").status_code == 202
        eventually(lambda: server.log().count("AssertionError") >= 4, "it was tried four times")
        *attempts, _ = server.log().split("AssertionError")
    for attempt in attempts:
        for line in ("Traceback (most recent call last):", "in handle", "load_weights()", "assert False"):
            assert line in attempt
