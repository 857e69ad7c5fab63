"""A greedy client and a polite one at a real server: by their addresses, and by their keys."""

import http.client
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.e2e.gate import WAITING, Gate
from tests.e2e.running_server import DEADLINE, RunningServer, eventually, model_folder

#: Notes which requests have run, in their order.
HANDLER = """
def handle(data, context):
    for row in data or ():
        sent = row.get("body") or row.get("data")
        text = sent if isinstance(sent, str) else bytes(sent).decode()
        if text.startswith("wait "):
            wait_for(text.removeprefix("wait "))
        else:
            with open("{log}", "a") as file:
                file.write(text + " ")
    return data and ["done"] * len(data)
"""
KEYS = {"keys": [{"key": name, "weight": weight} for name, weight in (("greedy", 1), ("polite", 1), ("double", 2))]}


@pytest.fixture
def server(tmp_path: Path, request: pytest.FixtureRequest) -> RunningServer:
    handler = WAITING + HANDLER.replace("{log}", str(tmp_path / "log"))
    (tmp_path / "keys.json").write_text(json.dumps(KEYS))
    models = {"m": model_folder(tmp_path, "m", handler, "jobQueueSize: 8\n")}
    if request.param == "keys":
        variables = {"TS_KEYS_FILE": str(tmp_path / "keys.json"), "TS_MANAGEMENT_KEYS": "boss"}
        return RunningServer(models, environment=variables, flags=())
    return RunningServer(models)


def asks(server: RunningServer, *, by_key: bool, name: str, number: int) -> Callable[[str], int]:
    """Return what sends one request of a client and returns the status of the answer."""

    def ask(text: str) -> int:
        address = None if by_key else (f"127.0.2.{number}", 0)
        port = int(server.inference.rpartition(":")[2])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE, source_address=address)
        headers = {"content-type": "text/plain", **({"Authorization": f"Bearer {name}"} if by_key else {})}
        connection.request("POST", "/predictions/m", text, headers)
        try:
            return connection.getresponse().status
        finally:
            connection.close()

    return ask


@pytest.mark.parametrize("server", ["addresses", "keys"], indirect=True)
def test_the_polite_is_answered_in_turn_although_the_greedy_fills_the_queue(
    server: RunningServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    by_key = request.node.callspec.params["server"] == "keys"
    gate = Gate(tmp_path)
    with server, ThreadPoolExecutor(32) as pool:
        server.wait_ready()
        greedy, polite = (
            asks(server, by_key=by_key, name=name, number=number) for number, name in enumerate(("greedy", "polite"), 1)
        )
        running = pool.submit(greedy, f"wait {gate.path}")
        gate.wait_until_reached()
        waiting = [pool.submit(greedy, "g") for _ in range(12)]
        eventually(lambda: sum(each.done() for each in waiting) == 4, "the queue is full, and four are refused")
        others = [pool.submit(polite, "p") for _ in range(2)]
        eventually(lambda: sum(each.done() for each in waiting) == 6, "two of the greedy make room")
        gate.open()
        assert [each.result() for each in (running, *others)] == [200] * 3
        assert sorted(each.result() for each in waiting) == [200] * 6 + [503] * 6
    # The first was with the worker already when the polite one came, behind the one that ran.
    assert (tmp_path / "log").read_text().split() == ["g", "g", "p", "g", "p", "g", "g", "g"]
