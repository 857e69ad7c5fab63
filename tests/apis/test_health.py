"""Three questions to a server: /ping, /live and /ready, while it starts, serves, loses workers and stops."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests
from tests.e2e.gate import WAITING, Gate
from tests.e2e.running_server import DEADLINE, RunningServer, eventually, model_folder

#: Waits at the gate that its folder names, first while loading and later for each request that says so.
SLOW = (
    WAITING
    + """
from pathlib import Path


def handle(data, context):
    if data is None:
        wait_for(Path(context.system_properties["model_dir"]) / "loading")
        return None
    for row in data:
        if row["body"]:
            wait_for(row["body"])
    return ["done"] * len(data)
"""
)

HEALTHY, UNHEALTHY, READY, LIVE = ({"status": word} for word in ("Healthy", "Unhealthy", "Ready", "Live"))


def get(server: RunningServer, path: str) -> tuple[int, dict[str, object]]:
    response = requests.get(f"{server.inference}{path}", timeout=180)
    assert response.headers["content-type"] == "application/json"
    return response.status_code, response.json()


def is_ready(server: RunningServer) -> bool:
    return get(server, "/ready")[0] == 200


@pytest.fixture
def loading(tmp_path: Path) -> Iterator[tuple[RunningServer, Gate]]:
    """A server whose only model goes on loading until the gate opens."""
    folder = model_folder(tmp_path, "slow", SLOW)
    with RunningServer({"slow": folder}, {"drain_timeout": 60}) as server:
        yield server, Gate(folder, "loading")


def test_ready_waits_for_the_models_and_live_does_not(loading: tuple[RunningServer, Gate]) -> None:
    server, gate = loading
    gate.wait_until_reached()
    assert get(server, "/live") == (200, LIVE)
    assert get(server, "/ping") == (200, HEALTHY)
    status, body = get(server, "/ready")
    assert status == 503
    assert body == {
        "status": "NotReady",
        "reasons": [
            'The start-up model "slow" (version 1.0) does not have its minimum of workers yet: 0 of 1 are ready.'
        ],
    }
    gate.open()
    eventually(lambda: is_ready(server), "the server is ready")
    assert get(server, "/ready") == (200, READY)
    assert get(server, "/ping") == (200, HEALTHY)


def test_a_server_that_stops_is_live_but_not_ready(loading: tuple[RunningServer, Gate], tmp_path: Path) -> None:
    server, gate = loading
    gate.open()
    server.wait_ready()
    running = Gate(tmp_path, "running")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.predict, "slow", str(running.path))
        running.wait_until_reached()
        server.server.terminate()
        eventually(lambda: not is_ready(server), "the server is not ready any more")
        assert get(server, "/ready")[1]["reasons"] == ["The server is shutting down."]
        assert get(server, "/live") == (200, LIVE)
        refused = server.predict("slow", "")
        assert (refused.status_code, refused.headers["ts-error-cause"]) == (503, "draining")
        running.open()
        assert answer.result().text == "done"
    assert server.process is not None
    assert server.process.wait(60) == 0


def test_a_start_up_model_without_a_handler_makes_the_server_unready_and_the_others_are_served(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    good = model_folder(tmp_path, "good", "def handle(data, context):\n    return data and ['good'] * len(data)\n")
    with RunningServer({"empty": empty, "good": good}, {"drain_timeout": 1}) as server:
        eventually(lambda: server.predict("good").text == "good", "the other model is served")
        assert server.predict("empty").status_code == 404
        assert "empty is not loaded" in server.log()
        ready = requests.get(f"{server.inference}/ready", timeout=DEADLINE)
        reasons = ['The start-up model "empty" could not be loaded; the log says why.']
        assert (ready.status_code, ready.json()["reasons"]) == (503, reasons)
        assert requests.get(f"{server.inference}/ping", timeout=DEADLINE).status_code == 200


def test_a_start_up_model_that_cannot_load_keeps_the_server_unready(tmp_path: Path) -> None:
    bad = model_folder(tmp_path, "bad", "import nothing_of_that_name\n")
    with RunningServer({"bad": bad}, {"drain_timeout": 1}) as server:
        eventually(lambda: "could not load the model" in server.log(), "the model fails to load")
        assert get(server, "/live")[0] == 200
        assert get(server, "/ready")[0] == 503


def test_ping_tells_of_a_model_that_is_given_up(tmp_path: Path) -> None:
    bad = model_folder(tmp_path, "bad", "import nothing_of_that_name\n", "maxRetryTimeoutInSec: 0\n")
    with RunningServer({"bad": bad}, {"drain_timeout": 1}) as server:
        eventually(lambda: get(server, "/ping") == (500, UNHEALTHY), "/ping tells of it")
        refused = server.predict("bad")
        assert (refused.status_code, refused.headers["ts-error-cause"]) == (503, "no_worker")


def test_probes_have_no_further_paths(loading: tuple[RunningServer, Gate]) -> None:
    server, gate = loading
    gate.open()
    for path in ("/ping/x", "/live/x", "/ready/x"):
        assert get(server, path)[0] == 404
