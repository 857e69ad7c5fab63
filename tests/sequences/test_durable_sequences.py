"""Durable sequences in a real server: a worker that dies in a step, a restart, two servers, a full disk."""

import resource
import stat
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from tests.e2e.running_server import RunningServer

from torchserve_py.cli import main

# A number is added; "die" kills the worker, "die once" only the first time, "full" takes the worker's disk away,
# "odd" puts something into the state that no store can hold, "break" streams a part that ends the sequence, and raises,
# "stream" streams a part and adds 1.
HANDLER = """
    import os, resource, signal
    from pathlib import Path
    from ts.handler_utils.utils import send_intermediate_predict_response
    from ts.sequence import SequenceCache

    class Handler:
        def initialize(self, context):
            self.totals = SequenceCache(context)

        def handle(self, data, context):
            if data[0]["body"] == "break":
                context.set_response_header(0, context.header_key_sequence_end, context.get_sequence_id(0))
                send_intermediate_predict_response(["part"], context.request_ids, "OK", 200, context)
                raise RuntimeError("broken")
            if data[0]["body"] == "stream":
                send_intermediate_predict_response(["part "], context.request_ids, "OK", 200, context)
                return [self.step(context.get_sequence_id(0), "1")]
            return [self.step(context.get_sequence_id(index), row["body"]) for index, row in enumerate(data)]

        def step(self, sequence_id, word):
            if word.startswith("die"):
                has_died = Path(os.environ["MARKS"], sequence_id)
                if word == "die" or not has_died.exists():
                    has_died.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                word = "1"
            if word == "full":
                most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
                resource.setrlimit(resource.RLIMIT_FSIZE, (1, most))
                word = "0"
            if word == "odd":
                self.totals[sequence_id] = {"beams": [1, {"best": object()}]}
                return "odd"
            self.totals[sequence_id] = self.totals.get(sequence_id, 0) + int(word)
            return str(self.totals[sequence_id])
"""

CONFIG = """
    minWorkers: 1
    maxWorkers: 1
    sequenceBatching: true
    sequenceMaxIdleMSec: 60000
    maxNumSequence: 100
    handler:
      cache: {store: file, path: %s, lease: 600}
"""


def serve(folder: Path) -> RunningServer:
    model = folder / "tally"
    if not model.exists():
        model.mkdir()
        (model / "handler.py").write_text(textwrap.dedent(HANDLER))
        (model / "model-config.yaml").write_text(textwrap.dedent(CONFIG % (folder / "sequences.db")))
    return RunningServer({"tally": model}, environment={"MARKS": str(folder)})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("durable")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RunningServer]:
    with serve(folder) as running:
        running.wait_ready()
        yield running


def step(
    server: RunningServer, sequence: str, word: str, request_id: str = "", *, ends: bool = False
) -> requests.Response:
    headers = {"ts_request_id": request_id} if request_id else {}
    if ends:
        headers["ts_request_sequence_end"] = "true"
    return server.predict("tally", word, sequence=sequence, headers=headers)


def test_a_step_goes_on_with_another_worker(server: RunningServer) -> None:
    assert step(server, "a", "5").text == "5"
    assert step(server, "a", "die once").text == "6"
    assert step(server, "a", "1").text == "7"


def test_a_request_that_is_sent_again_counts_once(server: RunningServer) -> None:
    assert step(server, "b", "5", "first").text == "5"
    assert step(server, "b", "5", "first").text == "5"
    assert step(server, "b", "5", "second").text == "10"


def test_what_kills_every_worker_ends(server: RunningServer) -> None:
    assert step(server, "c", "5").text == "5"
    answer = step(server, "c", "die")
    assert (answer.status_code, answer.headers["ts-error-cause"]) == (500, "worker_died")
    assert step(server, "c", "1").text == "6"


def test_a_full_disk_is_told_and_nothing_counts(server: RunningServer) -> None:
    assert step(server, "d", "5").text == "5"
    for word in ("full", "1"):
        answer = step(server, "d", word)
        assert (answer.status_code, answer.headers["ts-error-cause"]) == (503, "sequence_store")
        assert "Retry-After" in answer.headers
    for worker in server.workers():
        most = resource.prlimit(worker.pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (most, most))
    assert step(server, "d", "1").text == "6"


def test_a_state_that_cannot_be_stored_is_told_with_the_place_in_it(server: RunningServer) -> None:
    assert step(server, "o", "5").text == "5"
    answer = step(server, "o", "odd")
    assert (answer.status_code, answer.headers["ts-error-cause"]) == (500, "handler_error")
    assert "Retry-After" not in answer.headers
    assert "state['beams'][1]['best'] is a builtins.object, which cannot be stored" in answer.json()["message"]
    assert step(server, "o", "1").text == "6"


def test_the_head_of_a_stream_names_the_step_although_a_proxy_has_named_the_request(server: RunningServer) -> None:
    headers = {"x-request-id": "of-a-proxy", "ts_request_sequence_end": "true"}
    step(server, "streamed", "5")
    torn = server.predict("tally", "stream", sequence="streamed", headers=headers)
    assert (torn.text, torn.headers["x-request-id"]) == ("part 6", "of-a-proxy")
    again = step(server, "streamed", "stream", torn.headers["ts_request_id"], ends=True)
    assert again.text == "part 6"


def test_a_last_step_that_does_not_count_ends_nothing(server: RunningServer) -> None:
    assert step(server, "last", "5").text == "5"
    assert step(server, "last", "odd", ends=True).status_code == 500
    assert step(server, "last", "1").text == "6"
    with pytest.raises(requests.exceptions.ChunkedEncodingError):
        step(server, "last", "break")
    assert step(server, "last", "1").text == "7"


def test_who_asks_for_the_last_answer_again_keeps_nobody_from_beginning_anew(
    server: RunningServer, folder: Path
) -> None:
    with serve(folder) as other:
        other.wait_ready()
        step(server, "over", "5")
        assert step(server, "over", "1", "last", ends=True).text == "6"
        for _ in range(5):
            assert step(server, "over", "1", "last", ends=True).text == "6"
            assert step(other, "over", "2", ends=True).text == "2"
            step(server, "over", "5")
            assert step(server, "over", "1", "last", ends=True).text == "6"


def test_a_file_that_nobody_named_outlives_the_server(tmp_path: Path) -> None:
    model = tmp_path / "tally"
    model.mkdir()
    (model / "handler.py").write_text(textwrap.dedent(HANDLER))
    config = textwrap.dedent(CONFIG).replace("{store: file, path: %s, lease: 600}", "{store: file}")
    (model / "model-config.yaml").write_text(config)
    with RunningServer({"tally": model}) as server:
        server.wait_ready()
        assert step(server, "a", "5").text == "5"
        folder = server.directory / "data" / "sequences"
        modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in [folder, *folder.iterdir()]}
        assert modes.pop("sequences") == 0o700
        assert modes.pop("tally.db-asks", 0o700) == 0o700
        assert modes == dict.fromkeys(["tally.db", "tally.db-wal", "tally.db-shm"], 0o600)
        server.terminate()
        server.output.unlink()
        server.start()
        server.wait_ready()
        assert step(server, "a", "1").text == "6"


def test_a_store_that_cannot_be_opened_is_told_without_a_traceback(server: RunningServer, folder: Path) -> None:
    model = folder / "misplaced"
    model.mkdir()
    (model / "handler.py").write_text(textwrap.dedent(HANDLER))
    (model / "model-config.yaml").write_text(textwrap.dedent(CONFIG % folder))
    response = server.register(model, initial_workers=1, synchronous="true")
    assert response.status_code == 500
    assert "it is a folder, not a regular file" in response.json()["message"]
    told = [line for line in server.model_log().splitlines() if "-misplaced_" in line]
    assert any("it is a folder, not a regular file" in line for line in told)
    assert not any("Traceback" in line for line in told)


def test_a_server_that_holds_an_idle_sequence_lets_another_have_it(server: RunningServer, folder: Path) -> None:
    """Its lease holds for ten minutes."""
    assert step(server, "f", "5").text == "5"
    with serve(folder) as other:
        other.wait_ready()
        for total, each in ((6, other), (7, server), (8, other)):
            assert step(each, "f", "1").text == str(total)


def test_a_fork_goes_on_beside_the_original(
    server: RunningServer, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [step(server, "origin", word, word).text for word in ("5", "7")] == ["5", "12"]
    fork = ["store", "fork", str(folder / "sequences.db"), "--model", "tally", "--sequence", "origin", "--as", "copy"]
    assert main(fork) == 0
    said = capsys.readouterr().out
    assert said.startswith("forked: 'copy' goes on after step 2; its token is ")
    assert step(server, "copy", "7", "7").text == "12"
    answer = step(server, "copy", "100", "later")
    assert (answer.text, answer.headers["ts_sequence_token"]) == ("112", said.split()[-1])
    assert step(server, "origin", "1", "later").text == "13"
    assert step(server, "copy", "die once").text == "113"
    assert main(fork) == 2
    assert "'copy' is in the store; choose an id that was not used before" in capsys.readouterr().err


def test_another_server_goes_on_when_the_first_has_ended(server: RunningServer, folder: Path) -> None:
    assert step(server, "e", "5", "last").text == "5"
    with serve(folder) as other:
        other.wait_ready()
        server.server.kill()  # it cannot say goodbye, and its lease holds for ten minutes
        server.launcher.wait(30)
        assert step(other, "e", "5", "last").text == "5"
        assert step(other, "e", "1").text == "6"
