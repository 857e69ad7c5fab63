"""A worker whose code writes to the server's socket itself: nothing of what is malformed reaches a client."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from tests.e2e.running_server import RunningServer, model_folder

# The body is a Python expression: the row that the handler sends past the server's own code ("ID" is the request's id);
# then it answers as usual.
HANDLER = """
from ts.handler_utils.utils import send_intermediate_predict_response
from ts.protocol.frames import encode
from ts.sequence import SequenceCache


class Handler:
    def initialize(self, context):
        if context.model_yaml_config.get("sequenceBatching"):
            self.cache = SequenceCache(context)

    def handle(self, data, context):
        for index, row in enumerate(data):
            order = row["body"]
            if order.startswith("stream "):
                send_intermediate_predict_response(["first"], {0: context.request_ids[0]}, "", 200, context)
                order = order.removeprefix("stream ")
            if order != "as usual":
                row = eval(order, {"ID": context.request_ids[index]})
                context.send_part.__self__._connection._write(encode(["results", [row], 0.0]))
        return ["answered"] * len(data)
"""
SPLIT = "1\\r\\ncontent-length: 0\\r\\n\\r\\nHTTP/1.1 200 OK\\r\\ncontent-length: 6\\r\\n\\r\\nforged"
MALFORMED = {
    "a body of text": '[ID, False, 200, "", [], "text", None]',
    "a body that is a list": '[ID, False, 200, "", [], [1], None]',
    "a fraction of a status": '[ID, False, 200.5, "", [], b"", None]',
    "a header that splits the response": f'[ID, False, 200, "", [["x-a", "{SPLIT}"]], b"", None]',
    "a reason that splits the response": f'[ID, False, 200, "{SPLIT}", [], b"", None]',
    "a header that is a number": '[ID, False, 200, "", [[1, 2]], b"", None]',
    "too few fields": "[ID, False, 200]",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    directory: Path = tmp_path_factory.mktemp("models")
    stored = f"handler:\n  cache: {{store: file, path: {directory}/sequences.db}}\n"
    models = {
        "plain": model_folder(directory, "plain", HANDLER),
        "durable": model_folder(
            directory, "durable", HANDLER, f"sequenceMaxIdleMSec: 60000\nsequenceBatching: true\n{stored}"
        ),
    }
    with RunningServer(models) as running:
        running.wait_ready()
        yield running


def post(session: requests.Session, server: RunningServer, model: str, body: str) -> requests.Response:
    headers = {"ts_request_sequence_id": "s"} if model == "durable" else {}
    headers["content-type"] = "text/plain"
    url = f"{server.inference}/predictions/{model}"
    return session.post(url, data=body, headers=headers, timeout=180)


@pytest.mark.parametrize("model", ["plain", "durable"])
@pytest.mark.parametrize("what", MALFORMED)
def test_a_malformed_answer_is_an_error_of_the_server_and_the_connection_and_the_worker_go_on(
    server: RunningServer, model: str, what: str
) -> None:
    pids = [worker.pid for worker in server.workers()]
    with requests.Session() as session:
        answer = post(session, server, model, MALFORMED[what])
        if model == "durable":
            assert (answer.status_code, answer.headers["ts-error-cause"]) == (503, "outcome_unknown")
            assert "is malformed: " in server.log()
        else:
            assert (answer.status_code, answer.headers["ts-error-cause"]) == (500, "handler_error")
            assert answer.json()["message"].startswith("The result cannot be sent: ")
        assert post(session, server, model, "as usual").text == "answered"
    assert [worker.pid for worker in server.workers()] == pids


@pytest.mark.parametrize("part", ['[ID, True, 200, "", [], "text", None]', '[ID, False, 200, "", [], [1], None]'])
def test_a_malformed_part_breaks_its_stream_off(server: RunningServer, part: str) -> None:
    with requests.Session() as session:
        with pytest.raises(requests.exceptions.ChunkedEncodingError):
            post(session, server, "plain", f"stream {part}")
        assert post(session, server, "plain", "as usual").text == "answered"


def test_a_result_of_no_job_ends_the_worker_and_another_takes_its_place(server: RunningServer) -> None:
    with requests.Session() as session:
        answer = post(session, server, "plain", '[None, False, 200, "", [], b"", None]')
        assert (answer.status_code, answer.headers["ts-error-cause"]) == (500, "worker_died")
        assert post(session, server, "plain", "as usual").text == "answered"
