"""Responses in parts: when they arrive, who runs meanwhile, and what becomes of clients that leave or do not read."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import requests
from tests.e2e.gate import WAITING, Gate
from tests.e2e.raw_client import RawClient
from tests.e2e.running_server import RunningServer, eventually, model_folder

MEGABYTE = 2**20

#: Streams one part per gate, and waits at the gate after it; the end of its work is told in a file.
PARTS = (
    WAITING
    + """
from pathlib import Path

from ts.handler_utils.utils import send_intermediate_predict_response

seen = []


def handle(data, context):
    if data is None:
        return None
    orders = [row["body"] for row in data]
    seen.extend(order.get("name") for order in orders)
    order = orders[0]
    try:
        for number, gate in enumerate(order.get("gates", [])):
            send_intermediate_predict_response([f"part {number}"], context.request_ids, "ok", 200, context)
            wait_for(gate)
        if "raise" in order:
            raise ValueError(order["raise"])
        return [seen if order.get("tell") else "the end"]
    finally:
        if "finished" in order:
            Path(order["finished"]).touch()
"""
)

#: Streams parts of a megabyte to every row of its batch; the first byte of each says which it is.
MEGABYTES = (
    WAITING
    + """
from ts.handler_utils.utils import send_intermediate_predict_response


def handle(data, context):
    if data is None:
        return None
    orders = [row["body"] for row in data]
    for order in orders:
        if "wait" in order:
            wait_for(order["wait"])
            return [b""] * len(data)
    for number in range(orders[0]["parts"]):
        part = bytes([number % 256]) * 2**20
        send_intermediate_predict_response([part] * len(data), context.request_ids, "ok", 200, context)
    return [b"end"] * len(data)
"""
)

#: One step adds one part to each row; a part tells how many rows the step has. ``wait`` is a gate in the second step.
CONTINUOUS = (
    WAITING
    + """
class SteppingHandler:
    def initialize(self, context):
        self.rows = {}

    def handle(self, data, context):
        if context.get_request_header(0, "describe") == "True":
            return [{"rows": len(data), "live": len(self.rows)}]
        ids = [context.get_request_id(index) for index in range(len(data))]
        self.rows = {id: self.rows[id] if id in self.rows else [0, data[index]["body"]] for index, id in enumerate(ids)}
        for row in self.rows.values():
            row[0] += 1
            if row[0] == 2 and "wait" in row[1]:
                wait_for(row[1]["wait"])
        context.stopping_criteria = [self.criterion(*self.rows[id]) for id in ids]
        return [f"{self.rows[id][0]}/{len(ids)}\\n" for id in ids]

    @staticmethod
    def criterion(step, order):
        return lambda result: step >= order["steps"]
"""
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("models")
    models = {
        "parts": model_folder(folder, "parts", PARTS),
        "megabytes": model_folder(folder, "megabytes", MEGABYTES, "batchSize: 2\nmaxBatchDelay: 1\n"),
        "continuous": model_folder(folder, "continuous", CONTINUOUS, "continuousBatching: true\nbatchSize: 4\n"),
    }
    with RunningServer(models, {"drain_timeout": 1}) as running:
        running.wait_ready()
        yield running


def start(server: RunningServer, model: str, order: dict[str, Any], **more: Any) -> RawClient:
    """Send a request and return the connection, with nothing read from it."""
    client = RawClient(server.inference, **more)
    client.post(f"/predictions/{model}", json.dumps(order).encode(), "Content-Type: application/json")
    return client


def ask(server: RunningServer, model: str, **order: Any) -> requests.Response:
    return requests.post(f"{server.inference}/predictions/{model}", json=order, timeout=180)


def pending(server: RunningServer, model: str) -> int:
    count: int = server.describe(model)[0]["jobQueueStatus"]["pendingRequests"]
    return count


def is_pending(server: RunningServer, model: str, count: int) -> bool:
    return pending(server, model) == count


# Parts


def test_parts_arrive_one_by_one(server: RunningServer, tmp_path: Path) -> None:
    gates = [Gate(tmp_path, str(number)) for number in range(3)]
    with start(server, "parts", {"gates": [str(gate.path) for gate in gates]}) as client:
        head = client.head()
        assert (head.status, head.headers["transfer-encoding"]) == (200, "chunked")
        assert head.headers["ts_stream_next"] == "true"
        for number, gate in enumerate(gates):
            assert client.chunk() == b"part %d" % number
            gate.open()
        assert client.chunk() == b"the end"
        assert client.chunk() == b""
        client.post("/predictions/parts", b"{}", "Content-Type: application/json")
        assert client.body(client.head()) == b"the end"


def test_an_error_after_the_first_part_breaks_the_stream_off(server: RunningServer, tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    with start(server, "parts", {"gates": [str(gate.path)], "raise": "boom"}) as client:
        assert client.head().status == 200
        assert client.chunk() == b"part 0"
        gate.open()
        with pytest.raises(ConnectionError):
            client.chunk()
        assert client.is_closed()
    with pytest.raises(requests.exceptions.ChunkedEncodingError):
        ask(server, "parts", gates=[str(gate.path)], **{"raise": "boom"})
    assert ask(server, "parts").text == "the end"


def test_an_error_before_the_first_part_is_an_ordinary_one(server: RunningServer) -> None:
    response = ask(server, "parts", **{"raise": "boom"})
    assert (response.status_code, response.json()["message"]) == (503, "Prediction failed")


def test_a_client_that_leaves_stops_the_handler_at_its_next_part(server: RunningServer, tmp_path: Path) -> None:
    gate, finished = Gate(tmp_path), tmp_path / "finished"
    never = str(tmp_path / "never")
    ended = jobs_ended(server, "parts")
    with start(server, "parts", {"gates": [str(gate.path), never], "finished": str(finished)}) as client:
        client.head()
        assert client.chunk() == b"part 0"
        gate.wait_until_reached()
    eventually(lambda: jobs_ended(server, "parts") == ended + 1, "the server notices that the client is gone")
    gate.open()
    eventually(finished.exists, "the handler stops")
    assert not Path(f"{never}.reached").exists()
    assert ask(server, "parts").text == "the end"


def test_a_queued_request_whose_client_leaves_is_never_run(server: RunningServer, tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    with start(server, "parts", {"name": "running", "gates": [str(gate.path)]}) as running:
        gate.wait_until_reached()
        with start(server, "parts", {"name": "leaves"}):
            eventually(partial(is_pending, server, "parts", 1), "the request waits")
        eventually(partial(is_pending, server, "parts", 0), "the request is dropped")
        gate.open()
        running.head()
        assert running.chunk() == b"part 0"
        assert running.chunk() == b"the end"
    seen = ask(server, "parts", name="after", tell=True).json()
    assert "running" in seen
    assert "after" in seen
    assert "leaves" not in seen


def jobs_ended(server: RunningServer, model: str) -> float:
    text = requests.get(f"{server.metrics}/metrics", params={"name[]": "ts_request_seconds_count"}, timeout=180).text
    samples = [line for line in text.splitlines() if f'model_name="{model}"' in line]
    assert samples, text
    return sum(float(line.rpartition(" ")[2]) for line in samples)


# Continuous batching


def test_a_request_joins_a_running_batch_between_steps(server: RunningServer) -> None:
    with start(server, "continuous", {"steps": 10**9}) as endless:
        endless.head()
        assert endless.chunk() == b"1/1\n"
        joined = ask(server, "continuous", steps=3)
        assert joined.text == "1/2\n2/2\n3/2\n"
        assert joined.headers["ts_stream_next"] == "true"
        while endless.chunk().endswith(b"/1\n"):
            pass  # before the other joined
    eventually(lambda: ask(server, "continuous", steps=1).text == "1/1\n", "the endless row has left")


def test_a_client_that_leaves_is_gone_from_the_next_step(server: RunningServer, tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    ended = jobs_ended(server, "continuous")
    with start(server, "continuous", {"steps": 10**9}) as leaver:
        leaver.head()
        leaver.chunk()
        stayer = start(server, "continuous", {"steps": 4, "wait": str(gate.path)})
        gate.wait_until_reached()
    with stayer:
        eventually(lambda: jobs_ended(server, "continuous") == ended + 1, "the server notices that the client is gone")
        gate.open()
        stayer.head()
        assert [stayer.chunk() for _ in range(5)] == [b"1/2\n", b"2/2\n", b"3/1\n", b"4/1\n", b""]


def test_more_requests_than_the_batch_takes_wait_for_their_turn(server: RunningServer) -> None:
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: ask(server, "continuous", steps=5), range(12)))
    for answer in answers:
        parts = answer.text.splitlines()
        assert [part.partition("/")[0] for part in parts] == ["1", "2", "3", "4", "5"]
        assert {int(part.partition("/")[2]) for part in parts} <= {1, 2, 3, 4}


def test_a_request_to_describe_the_model_runs_between_steps(server: RunningServer) -> None:
    with start(server, "continuous", {"steps": 10**9}) as endless:
        endless.head()
        endless.chunk()
        described = server.describe("continuous", "?customized=true")[0]
        assert described["customizedMetadata"] == {"rows": 1, "live": 1}
        assert endless.chunk().endswith(b"/1\n")


# Slow readers


def resident(server: RunningServer, field: str) -> int:
    """Return ``VmRSS`` (now) or ``VmHWM`` (the most so far) of the frontend in bytes."""
    status = Path(f"/proc/{server.server.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


@pytest.fixture
def memory_limit(server: RunningServer) -> Iterator[None]:
    """Fail the test if the frontend ever held 64 MB more than before it."""
    before = resident(server, "VmRSS")
    Path(f"/proc/{server.server.pid}/clear_refs").write_text("5")  # forget the peak
    yield
    assert resident(server, "VmHWM") - before < 64 * MEGABYTE


@pytest.mark.usefixtures("memory_limit")
def test_a_slow_reader_gets_everything_and_costs_little_memory(server: RunningServer) -> None:
    with start(server, "megabytes", {"parts": 200}, receive_buffer=16384) as client:
        client.head()
        assert client.chunk() == bytes([0]) * MEGABYTE
        # It stops reading for as long as others are served.
        assert [ask(server, "parts").text for _ in range(50)] == ["the end"] * 50
        for number in range(1, 200):
            assert client.chunk() == bytes([number]) * MEGABYTE
        assert client.chunk() == b"end"
        assert client.chunk() == b""


@pytest.mark.usefixtures("memory_limit")
def test_a_client_that_does_not_read_does_not_hold_up_its_batch_mate(server: RunningServer, tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    with start(server, "megabytes", {"wait": str(gate.path)}) as busy:
        gate.wait_until_reached()
        with start(server, "megabytes", {"parts": 100}, receive_buffer=16384) as sleeper:
            eventually(partial(is_pending, server, "megabytes", 1), "one request waits")
            with start(server, "megabytes", {"parts": 100}) as reader:
                eventually(partial(is_pending, server, "megabytes", 2), "both requests wait")
                gate.open()
                assert busy.head().status == 200
                reader.head()
                for number in range(100):
                    assert reader.chunk() == bytes([number]) * MEGABYTE
                assert reader.chunk() == b"end"
                assert reader.chunk() == b""
            # What was written for the sleeper is there to read, but it is told that it has not got everything.
            sleeper.head()
            with pytest.raises(ConnectionError):
                while sleeper.chunk():
                    pass
    assert ask(server, "megabytes", parts=0).text == "end"


def test_a_client_that_stops_reading_for_good_is_dropped(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, "megabytes", MEGABYTES)
    with RunningServer({"megabytes": folder}, {"drain_timeout": 1, "default_response_timeout": 1}) as server:
        server.wait_ready()
        workers = server.workers()
        with start(server, "megabytes", {"parts": 200}, receive_buffer=16384) as sleeper:
            sleeper.head()
            assert ask(server, "megabytes", parts=0).text == "end"
            with pytest.raises(ConnectionError):
                while sleeper.chunk():
                    pass
        assert server.workers() == workers
