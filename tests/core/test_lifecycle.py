"""Scaling, unregistering and shutting down: every request is answered, every sequence told, and no process stays."""

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import requests
from tests.e2e import orders
from tests.e2e.gate import Gate
from tests.e2e.recorder import ended, recorder, wait_until_ended
from tests.e2e.running_server import COMMAND, RunningServer, eventually, model_folder

SEQUENCES = "maxNumSequence: 10\nmaxSequenceJobQueueSize: 5\nmaxBatchDelay: 0\n"

#: Takes for ever to load.
LOADING = """
import time


class LoadingHandler:
    def initialize(self, context):
        open(context.system_properties["model_dir"] + "/loading", "w").close()
        time.sleep(600)

    def handle(self, data, context):
        return data
"""

Send = Callable[..., Future[requests.Response]]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """A server without models; tests register what they need."""
    with RunningServer(properties={"drain_timeout": 0}) as server:
        yield server


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(max_workers=16) as pool:
        yield pool


@pytest.fixture
def send(server: RunningServer, pool: ThreadPoolExecutor) -> Send:
    """Post in the background; arguments as those of `RunningServer.predict`."""
    return lambda *args, **more: pool.submit(server.predict, *args, **more)


@pytest.fixture
def stateless(server: RunningServer, tmp_path: Path) -> Iterator[Path]:
    """The folder of the model ``stateless``, with one worker."""
    folder = model_folder(tmp_path, "stateless", orders.HANDLER)
    assert server.register(folder).status_code == 200
    yield folder
    server.unregister("stateless")


@pytest.fixture
def stateful(server: RunningServer, tmp_path: Path) -> Iterator[Path]:
    """The folder of the model ``stateful``, with one worker."""
    folder = recorder(tmp_path, "stateful", SEQUENCES)
    assert server.register(folder).status_code == 200
    yield folder
    server.unregister("stateful")


def pids(server: RunningServer, model: str) -> list[int]:
    return [worker["pid"] for worker in server.describe(model)[0]["workers"]]


def wait_until_gone(processes: list[int]) -> None:
    eventually(lambda: not any(map(psutil.pid_exists, processes)), "the processes are gone")


def assert_refused(response: requests.Response, cause: str) -> None:
    assert (response.status_code, response.headers.get("ts-error-cause")) == (503, cause), response.text


# Scaling


def test_scaling_up_and_down(server: RunningServer, stateless: Path) -> None:
    response = server.scale("stateless", 3)
    assert (response.status_code, response.json()) == (200, {"status": "Workers scaled to 3 for model: stateless"})
    workers = server.describe("stateless")[0]["workers"]
    assert [worker["status"] for worker in workers] == ["READY"] * 3
    assert len({worker["id"] for worker in workers}) == 3
    assert {worker["pid"] for worker in workers} == {process.pid for process in server.workers()}
    assert server.scale("stateless", 1).status_code == 200
    assert server.describe("stateless")[0]["workers"] == workers[:1]
    assert [process.pid for process in server.workers()] == [workers[0]["pid"]]
    assert server.predict("stateless", "hello").text == "hello"


def test_a_worker_that_is_to_go_finishes_what_it_has(server: RunningServer, stateless: Path, send: Send) -> None:
    server.scale("stateless", 2)
    processes = pids(server, "stateless")
    gates = [Gate(stateless, name) for name in ("one", "two")]
    running = [send("stateless", f"wait {gate.path.name}") for gate in gates]
    for gate in gates:
        gate.wait_until_reached()
    assert server.scale("stateless", 1, synchronous="false").status_code == 202
    assert pids(server, "stateless") == processes[:1]
    for gate in gates:
        gate.open()
    assert [each.result().status_code for each in running] == [200, 200]
    wait_until_gone(processes[1:])
    assert server.predict("stateless", "hello").text == "hello"


def test_scaling_to_zero_and_up_again(server: RunningServer, stateless: Path, send: Send) -> None:
    gate = Gate(stateless)
    running = send("stateless", "wait gate")
    gate.wait_until_reached()
    queued = [send("stateless", str(number)) for number in range(3)]
    eventually(lambda: server.pending("stateless") == 3, "the requests wait")
    processes = pids(server, "stateless")
    scaling = server.scale("stateless", 0, synchronous="false")
    assert (scaling.status_code, scaling.json()) == (202, {"status": "Processing worker updates..."})
    for each in queued:
        assert_refused(each.result(), "no_worker")
    gate.open()
    assert running.result().text == "wait gate"
    refused = server.predict("stateless", "hello")
    assert_refused(refused, "no_worker")
    assert int(refused.headers["Retry-After"]) >= 1
    wait_until_gone(processes)
    assert server.scale("stateless", 1).status_code == 200
    assert server.predict("stateless", "hello").text == "hello"


def test_scaling_down_loses_sequences_whose_state_is_not_where_it_can_move_from(
    server: RunningServer, stateful: Path, send: Send
) -> None:
    server.scale("stateful", 2)
    assert server.predict("stateful", "a", sequence="old").text == "a"  # with the first worker
    assert server.predict("stateful", "a", sequence="new").text == "a"  # with the second, which has more room
    gate = Gate(stateful)
    running = send("stateful", "wait gate", sequence="new")
    gate.wait_until_reached()
    waiting = send("stateful", "b", sequence="new")
    eventually(lambda: server.pending("stateful") == 1, "the request waits")
    server.scale("stateful", 1, synchronous="false")
    eventually(lambda: server.describe("stateful")[0]["maxWorkers"] == 1, "one of the workers goes")
    gate.open()
    assert running.result().text == "a,wait gate"
    assert waiting.result().text == "a,wait gate,b"
    wait_until_ended(stateful, "new", "worker_lost")
    lost = server.predict("stateful", "c", sequence="new")
    assert (lost.status_code, lost.headers["ts-error-cause"]) == (410, "sequence_lost")
    assert server.predict("stateful", "b", sequence="old").text == "a,b"
    assert "old" not in ended(stateful)


# Unregistering


def test_unregistering_answers_every_request(server: RunningServer, stateful: Path, send: Send) -> None:
    gate = Gate(stateful)
    assert server.predict("stateful", "a", sequence="idle").text == "a"
    waiting = [send("stateful", text, sequence="busy") for text in ("wait gate",)]
    gate.wait_until_reached()
    waiting += [send("stateful", "b", sequence=sequence) for sequence in ("busy", "idle", "other")]
    eventually(lambda: server.pending("stateful") == 3, "the requests wait")
    processes = pids(server, "stateful")
    with ThreadPoolExecutor() as pool:
        unregistering = pool.submit(server.unregister, "stateful")
        described = f"{server.management}/models/stateful"
        eventually(lambda: requests.get(described, timeout=10).status_code == 404, "no new request finds the model")
        gate.open()
        assert [each.result().text for each in waiting] == ["wait gate", "wait gate,b", "a,b", "b"]
        response = unregistering.result()
    assert (response.status_code, response.json()) == (200, {"status": 'Model "stateful" unregistered'})
    assert server.predict("stateful", "b", sequence="idle").status_code == 404
    assert not any(map(psutil.pid_exists, processes))
    assert ended(stateful) == {"idle": ["unregistered"], "busy": ["unregistered"], "other": ["unregistered"]}
    assert server.register(stateful).status_code == 200
    assert server.predict("stateful", "b", sequence="idle").json()["type"] == "SequenceLostException"
    assert server.predict("stateful", "b", sequence="begun later").text == "b"


def test_a_model_that_still_loads_can_be_unregistered(server: RunningServer, tmp_path: Path) -> None:
    folder = model_folder(tmp_path, "loading", LOADING)
    with ThreadPoolExecutor() as pool:
        registering = pool.submit(server.register, folder)
        eventually((folder / "loading").exists, "the model loads")
        processes = pids(server, "loading")
        assert server.unregister("loading").status_code == 200
        assert registering.result().status_code == 404
    assert not any(map(psutil.pid_exists, processes))
    assert requests.get(f"{server.management}/models/loading", timeout=10).status_code == 404


# Shutting down


def exit_code(server: RunningServer) -> int:
    """Wait for the end of the server that was told to stop."""
    assert server.process is not None
    return server.process.wait(60)


def assert_nothing_left(server: RunningServer, processes: list[int]) -> None:
    assert not any(map(psutil.pid_exists, processes))
    assert list(server.temp.iterdir()) == [], "files are left in the temporary directory"


def all_pids(server: RunningServer) -> list[int]:
    return [process.pid for process in (server.server, *server.workers())]


def wait_until_draining(server: RunningServer) -> None:
    def draining() -> bool:
        return requests.get(f"{server.inference}/ready", timeout=10).status_code == 503

    eventually(draining, "the server is not ready any more")


def test_sigterm_drains(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    folders = {
        "stateful": recorder(tmp_path, "stateful", SEQUENCES),
        "stateless": model_folder(tmp_path, "stateless", orders.HANDLER),
    }
    with RunningServer(folders, {"drain_timeout": 60}).started_by(*COMMAND) as server:
        server.wait_ready()
        processes = all_pids(server)
        assert (server.temp / ".model_server.pid").read_text() == str(server.server.pid)
        assert server.predict("stateful", "a", sequence="open").text == "a"
        gate = Gate(folders["stateless"])
        running = pool.submit(server.predict, "stateless", "wait gate")
        gate.wait_until_reached()
        queued = pool.submit(server.predict, "stateless", "queued")
        eventually(lambda: server.pending("stateless") == 1, "the request waits")

        server.launcher.terminate()

        wait_until_draining(server)
        late = {"sequence": "late", "headers": {"ts_request_sequence_end": "true"}}
        # A moment after the server has said that it is not ready, a request may still be in time.
        eventually(lambda: server.predict("stateful", "a", **late).status_code == 503, "new sequences are refused")
        assert_refused(server.predict("stateful", "a", **late), "draining")
        assert_refused(server.predict("stateless", "late"), "draining")
        assert server.predict("stateful", "b", sequence="open").text == "a,b"
        gate.open()
        assert [running.result().text, queued.result().text] == ["wait gate", "queued"]
        assert server.predict("stateful", "end", sequence="open").text == "a,b,end"
        assert exit_code(server) == 0
        assert_nothing_left(server, processes)


def test_the_drain_has_a_limit(tmp_path: Path) -> None:
    folder = recorder(tmp_path, "stateful", SEQUENCES)
    with RunningServer({"stateful": folder}, {"drain_timeout": 1}) as server:
        server.wait_ready()
        processes = all_pids(server)
        assert server.predict("stateful", "a", sequence="open").text == "a"
        assert server.terminate() == 0
        assert ended(folder) == {"open": ["drained"]}
        assert_nothing_left(server, processes)


def test_a_second_sigterm_cuts_the_drain_short(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    """The handler never comes back; the drain would take ten minutes."""
    folders = {
        "stateful": recorder(tmp_path, "stateful", SEQUENCES),
        "stateless": model_folder(tmp_path, "stateless", orders.HANDLER),
        "loading": model_folder(tmp_path, "loading", LOADING),
    }
    with RunningServer(folders, {"drain_timeout": 600}) as server:
        eventually((folders["loading"] / "loading").exists, "a model loads")
        assert server.predict("stateful", "a", sequence="open").text == "a"
        gate = Gate(folders["stateless"])
        running = pool.submit(server.predict, "stateless", "wait gate")
        gate.wait_until_reached()
        waiting = pool.submit(server.predict, "loading")
        eventually(lambda: server.pending("loading") == 1, "the request waits")
        processes = all_pids(server)
        server.launcher.terminate()
        eventually(lambda: "Draining" in server.log(), "the server drains")
        assert server.terminate() == 0
        cut = running.result()  # it may have had its effect, so that nobody may simply send it again
        assert (cut.status_code, cut.headers["ts-error-cause"]) == (500, "interrupted")
        assert "Retry-After" not in cut.headers
        assert_refused(waiting.result(), "draining")
        assert ended(folders["stateful"]) == {"open": ["drained"]}
        assert_nothing_left(server, processes)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_with_nothing_to_do_stops_at_once(tmp_path: Path, number: signal.Signals) -> None:
    folder = model_folder(tmp_path, "stateless", orders.HANDLER)
    with RunningServer({"stateless": folder}, {"drain_timeout": 600}) as server:
        server.wait_ready()
        processes = all_pids(server)
        assert server.terminate(number) == 0
        assert_nothing_left(server, processes)


def test_no_worker_outlives_a_frontend_that_is_killed(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    folders = {
        "idle": model_folder(tmp_path, "idle", orders.HANDLER),
        "busy": model_folder(tmp_path, "busy", orders.HANDLER),
        "loading": model_folder(tmp_path, "loading", LOADING),
    }
    with RunningServer(folders) as server:
        eventually((folders["loading"] / "loading").exists, "a model loads")
        assert server.predict("idle", "hello").text == "hello"
        running = pool.submit(server.predict, "busy", "wait gate")
        Gate(folders["busy"]).wait_until_reached()
        workers = [process.pid for process in server.workers()]
        assert len(workers) == 3
        server.server.kill()
        wait_until_gone(workers)
        assert isinstance(running.exception(), requests.ConnectionError)
        assert exit_code(server) != 0
