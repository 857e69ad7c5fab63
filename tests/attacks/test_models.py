"""Models whose code was to keep the server busy: with what it prints, and with what it sends to the server."""

from collections.abc import Iterator

import pytest
from tests.attacks.watching import Watch
from tests.e2e.running_server import RunningServer, eventually, model_folder

PRINT = """
import os


def handle(data, context):
    if data:
        with open(1, "wb", closefd=False) as output:
            output.write({printed})
    return data and [b"" for _ in data]
"""
#: What a handler prints, and how many bytes of that are in the log in the end.
PRINTED = {"short-lines": (r'b"x\n" * 60_000', 60_000), "a-long-line": ('b"x" * 5_000_000 + b"\\n"', 5_000_000)}
SEND = """
from ts.protocol.frames import encode


def handle(data, context):
    if data:
        context.send_part.__self__._connection._write(encode(["results", [[0]] * 3_000_000, 0.0]))
    return data and [b"" for _ in data]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("models")
    handlers = {name: PRINT.replace("{printed}", printed) for name, (printed, _) in PRINTED.items()}
    models = {name: model_folder(folder, name, handler) for name, handler in {**handlers, "values": SEND}.items()}
    with RunningServer(models, {"drain_timeout": 1}) as running:
        running.wait_ready()
        yield running


@pytest.mark.parametrize("name", PRINTED)
def test_what_a_model_prints_keeps_no_one_waiting(server: RunningServer, name: str) -> None:
    """The lines of a read were logged in one go: 32,000 of them, for which others waited 4.5 s."""
    before = server.model_log().count("x")
    with Watch(server):
        assert server.predict(name).status_code == 200
        eventually(lambda: server.model_log().count("x") - before >= PRINTED[name][1], "all is in the log")


def test_a_message_of_millions_of_values_costs_the_worker_its_connection(server: RunningServer) -> None:
    """It was built before it was looked at."""
    with Watch(server):
        assert server.predict("values").status_code == 500
        eventually(lambda: "values" in server.log() and "has more than" in server.log(), "the log says why")
