"""A server that was frozen in the middle of a step and overtaken by another: what it computed does not count."""

import signal
import tempfile
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import requests
from tests.e2e.gate import WAITING, Gate
from tests.e2e.running_server import RunningServer, eventually, model_folder
from tests.programs import need_program
from tests.redis_server import RedisServer

# A number is added; "wait" waits for the gate of this server and adds 100.
HANDLER = """
from pathlib import Path

from ts.sequence import SequenceCache


class Handler:
    def initialize(self, context):
        self.totals = SequenceCache(context)

    def handle(self, data, context):
        return [self.step(context.get_sequence_id(index), row["body"]) for index, row in enumerate(data)]

    def step(self, sequence_id, word):
        if word == "wait":
            wait_for(os.environ["GATE"])
            word = "100"
        self.totals[sequence_id] = self.totals.get(sequence_id, 0) + int(word)
        return str(self.totals[sequence_id])
"""

CONFIG = """
    minWorkers: 1
    maxWorkers: 1
    sequenceBatching: true
    sequenceMaxIdleMSec: 60000
    maxNumSequence: 10
    handler:
      cache: {store: %s, %s, lease: 1}
"""


@pytest.fixture(params=["file", "redis"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The store, and how the configuration names its place."""
    if request.param == "file":
        yield "file", f"path: {tmp_path / 'sequences.db'}"
        return
    need_program("redis-server")
    with tempfile.TemporaryDirectory() as directory, RedisServer(Path(directory)) as redis:
        yield "redis", f"url: '{redis.url}'"


def test_a_server_that_wakes_up_after_its_lease_cannot_commit(where: tuple[str, str], tmp_path: Path) -> None:
    model = model_folder(tmp_path, "tally", WAITING + HANDLER, textwrap.dedent(CONFIG % where))
    gate = Gate(tmp_path)
    with (
        RunningServer({"tally": model}, environment={"GATE": str(gate.path)}) as first,
        RunningServer({"tally": model}, environment={"GATE": str(gate.path)}) as second,
        ThreadPoolExecutor(1) as clients,
    ):
        first.wait_ready()
        second.wait_ready()
        assert first.predict("tally", "5", sequence="a").text == "5"
        overtaken = clients.submit(first.predict, "tally", "wait", sequence="a", headers={"ts_request_id": "slow"})
        gate.wait_until_reached()
        frozen = [first.server, *first.workers()]
        _send(frozen, signal.SIGSTOP)
        try:
            answers: list[requests.Response] = []
            eventually(lambda: _continues(second, answers), "the lease of the frozen server is over")
            assert answers[-1].text == "6"
            assert {answer.headers["ts-error-cause"] for answer in answers[:-1]} <= {"sequence_moved"}
            assert second.predict("tally", "1", sequence="a").text == "7"
            gate.open()
        finally:
            _send(frozen, signal.SIGCONT)
        answer = overtaken.result(60)
        assert (answer.status_code, answer.headers["ts-error-cause"]) == (409, "sequence_moved"), answer.text
        assert "Retry-After" in answer.headers
        assert second.predict("tally", "1", sequence="a").text == "8"
        assert second.predict("tally", "100", sequence="a", headers={"ts_request_id": "slow"}).text == "108"


def _send(processes: list[psutil.Process], number: signal.Signals) -> None:
    for each in processes:
        each.send_signal(number)


def _continues(server: RunningServer, answers: list[requests.Response]) -> bool:
    answers.append(server.predict("tally", "1", sequence="a"))
    return answers[-1].status_code == 200
