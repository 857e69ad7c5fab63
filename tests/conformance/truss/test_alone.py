"""One Truss on a server of its own: its paths name no model, and the server's own are Truss's; how it shuts down."""

import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.conformance.truss.serving import Serving, Truss, is_error
from tests.e2e.running_server import DEADLINE, eventually

TRUSSES = {"mine": Truss("answers:Counting")}
PROPERTIES = {"access_log": "true"}
AT_GATE = {"mine": Truss("stages:AtGate", {"environment_variables": {"GATES": "{here}"}})}


def test_row_81_only_the_models_metrics_and_no_line_in_the_access_log(serving: Serving) -> None:
    for _ in range(3):
        assert serving.predict("model").json() == "hello"
    response = serving.client.get("/metrics", follow_redirects=True)
    assert str(response.url).endswith("/metrics/")
    assert "greetings_total 3.0" in response.text
    series = [line for line in response.text.splitlines() if not line.startswith("#")]
    assert series == ["greetings_total 3.0"]
    assert serving.client.get("/v1/models/mine/metrics").text == response.text
    eventually(lambda: ":predict" in serving.running.log(), "the access log has the prediction")
    assert "/metrics/" not in serving.running.log()


def test_row_85_paths_and_methods(serving: Serving) -> None:
    client = serving.client
    alive = client.get("/")
    assert (alive.status_code, alive.json()) == (200, True)
    assert client.head("/").status_code == 405
    unknown = client.get("/nothing")
    assert (unknown.status_code, unknown.json()) == (404, {"detail": "Not Found"})
    put = client.put("/v1/models/model:predict", json=1)
    assert (put.status_code, put.json()) == (405, {"detail": "Method Not Allowed"})


@pytest.mark.parametrize("path", ["/v1/models/model", "/v1/models/mine", "/v1/models/model/loaded", "/ping"])
def test_row_13_probes_once_it_is_loaded(path: str, serving: Serving) -> None:
    response = serving.client.get(path)
    assert (response.status_code, response.json()) == (200, {})


def test_sagemakers_paths(serving: Serving) -> None:
    assert serving.client.post("/invocations", json=1).json() == "hello"


# Shutting down.


@pytest.fixture
def stopping(tmp_path: Path) -> Any:
    """Start a server, tell it to stop while one request is in predict and one waits for the slot."""
    opened: list[Serving] = []

    def start(**properties: Any) -> tuple[Serving, Any, Any]:
        serving = Serving(AT_GATE, tmp_path, **properties)
        opened.append(serving.__enter__())
        serving.wait_loaded()
        first = serving.begin("mine", "first")
        eventually(lambda: serving.ask("mine") == ["first"], "the first runs")
        second = serving.begin("mine", "second")
        eventually(lambda: serving.ask("mine") == ["first", "second"], "the second waits for the slot")
        serving.running.process.send_signal(signal.SIGTERM)
        eventually(lambda: serving.call("mine", "completions").status_code == 503, "new work is refused")
        return serving, first, second

    yield start
    for serving in opened:
        serving.__exit__(None, None, None)


def test_row_79_what_was_accepted_is_finished_and_the_port_is_free(stopping: Any) -> None:
    serving, first, second = stopping()
    refused = serving.predict("mine", "third")
    assert (refused.status_code, refused.headers["ts-error-cause"]) == (503, "draining")
    assert "shutting down" in refused.json()["error"]
    for each in (first, second):
        assert not each.done(), each.result().text
    for name in ("first", "second"):
        (serving.folders["mine"] / name).touch()
    assert [first.result().json(), second.result().json()] == ["first", "second"]
    assert serving.running.process.wait(DEADLINE) == 0
    with pytest.raises(httpx.ConnectError):
        serving.client.get("/")


def test_row_80_what_the_drain_limit_does_not_suffice_for_fails(stopping: Any) -> None:
    serving, first, second = stopping(drain_timeout=3)
    (serving.folders["mine"] / "first").touch()
    assert first.result().json() == "first"
    assert is_error(second.result(), 500, 500)
    assert serving.running.process.wait(DEADLINE) == 0
