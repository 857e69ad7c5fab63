"""A worker that runs a batch already has the next one; its jobs can still be cancelled, moved, or lost by nobody."""

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import requests
from tests.e2e.gate import WAITING, Gate
from tests.e2e.running_server import DEADLINE, RunningServer, eventually, model_folder

#: A request ``wait PATH`` waits at a gate; every request is noted in a file, with the process that handles it.
HANDLER = (
    WAITING
    + """

class Handler:
    def initialize(self, context):
        self.notes = os.path.join(context.system_properties["model_dir"], "notes")

    def handle(self, data, context):
        texts = [bytes(row.get("data") or row.get("body")).decode() for row in data]
        with open(self.notes, "a") as file:
            file.write(f"{os.getpid()} {','.join(texts)}\\n")
        for text in texts:
            if text.startswith("wait "):
                wait_for(text.removeprefix("wait "))
        time.sleep(0.01)  # for shorter steps nothing is sent ahead
        return [f"{text} of {len(texts)}" for text in texts]
"""
)

Send = Callable[[str, str], "Future[requests.Response]"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("models")
    pair = "minWorkers: 2\nmaxWorkers: 2\n"
    return {
        "single": model_folder(directory, "single", HANDLER),
        "pair": model_folder(directory, "pair", HANDLER, pair),
        "batches": model_folder(directory, "batches", HANDLER, "batchSize: 2\nmaxBatchDelay: 20\n"),
    }


@pytest.fixture(scope="module")
def server(folders: dict[str, Path]) -> Iterator[RunningServer]:
    with RunningServer(models=folders) as running:
        yield running


@pytest.fixture
def send(server: RunningServer) -> Iterator[Send]:
    with ThreadPoolExecutor(8) as threads:

        def post(model: str, text: str) -> requests.Response:
            return requests.post(f"{server.inference}/predictions/{model}", data=text.encode(), timeout=DEADLINE)

        yield lambda model, text: threads.submit(post, model, text)


def handled(folder: Path) -> list[str]:
    """The batches that the model has handled, in order."""
    file = folder / "notes"
    return [line.split(" ", 1)[1] for line in file.read_text().splitlines()] if file.exists() else []


def handlers(server: RunningServer, model: str) -> dict[str, int]:
    workers = requests.get(f"{server.management}/models/{model}", timeout=DEADLINE).json()[0]["workers"]
    return {each["id"]: each["pid"] for each in workers}


def queued(server: RunningServer, model: str) -> int:
    status = requests.get(f"{server.management}/models/{model}", timeout=DEADLINE).json()[0]["jobQueueStatus"]
    return int(status["pendingRequests"])


def waits(server: RunningServer, model: str, number: int) -> None:
    eventually(lambda: queued(server, model) == number, f"{number} requests wait")


def test_what_a_killed_worker_had_not_begun_is_run_by_its_successor(
    server: RunningServer, folders: dict[str, Path], send: Send, tmp_path: Path
) -> None:
    gate = Gate(tmp_path)
    first = send("single", f"wait {gate.path}")
    gate.wait_until_reached()
    second = send("single", "second")
    waits(server, "single", 1)
    (pid,) = handlers(server, "single").values()
    psutil.Process(pid).send_signal(signal.SIGKILL)
    gate.open()
    assert first.result().status_code == 200  # it runs once more, alone
    assert (second.result().status_code, second.result().text) == (200, "second of 1")
    assert handled(folders["single"]).count("second") == 1


def test_a_client_that_leaves_costs_the_model_nothing(
    server: RunningServer, folders: dict[str, Path], send: Send, tmp_path: Path
) -> None:
    gate = Gate(tmp_path)
    first = send("single", f"wait {gate.path}")
    gate.wait_until_reached()
    with pytest.raises(requests.Timeout):
        requests.post(f"{server.inference}/predictions/single", data=b"left", timeout=0.5)
    waits(server, "single", 0)
    third = send("single", "third")
    waits(server, "single", 1)
    gate.open()
    assert first.result().status_code == third.result().status_code == 200
    assert "left" not in handled(folders["single"])


def test_the_next_batch_goes_to_the_worker_that_becomes_idle_first(
    server: RunningServer, send: Send, tmp_path: Path
) -> None:
    gates = [Gate(tmp_path, name) for name in ("slow", "fast")]
    first = [send("pair", f"wait {gate.path}") for gate in gates]
    for gate in gates:
        gate.wait_until_reached()
    following = [send("pair", text) for text in ("a", "b", "c")]
    waits(server, "pair", 3)
    gates[1].open()
    assert [each.result().text for each in following] == ["a of 1", "b of 1", "c of 1"]
    assert not first[0].done()
    gates[0].open()
    assert first[0].result().status_code == first[1].result().status_code == 200


def test_requests_join_a_batch_that_was_sent_ahead(
    server: RunningServer, folders: dict[str, Path], send: Send, tmp_path: Path
) -> None:
    gate = Gate(tmp_path)
    first = send("batches", f"wait {gate.path}")
    gate.wait_until_reached()
    texts = ["a", "b", "c"]
    following = []
    for number, text in enumerate(texts, 1):
        following.append(send("batches", text))
        waits(server, "batches", number)
    gate.open()
    assert first.result().status_code == 200
    assert [each.result().text for each in following] == ["a of 2", "b of 2", "c of 1"]
    assert handled(folders["batches"])[-2:] == ["a,b", "c"]
