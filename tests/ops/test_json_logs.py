"""With ``log_format=json``, each line is a JSON object, and what models of every contract log names its request."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.running_server import RunningServer, eventually, model_folder
from tests.e2e.serve_command import ServeCommand

MLSERVER_MODEL = """
from mlserver import MLModel
from mlserver.logging import logger
from mlserver.types import InferenceResponse


class Logging(MLModel):
    async def predict(self, payload):
        logger.warning("from mlserver")
        return InferenceResponse(model_name=self.name, outputs=[])
"""
TRUSS_MODEL = """
import logging


class Model:
    def predict(self, model_input):
        logging.getLogger("mine").warning("from truss")
        return "done"
"""


def test_what_models_log_names_its_request(tmp_path: Path) -> None:
    mlserver = tmp_path / "ml"
    mlserver.mkdir()
    (mlserver / "logs_much.py").write_text(MLSERVER_MODEL)
    (mlserver / "model-settings.json").write_text(json.dumps({"name": "ml", "implementation": "logs_much.Logging"}))
    truss = tmp_path / "truss" / "model"
    truss.mkdir(parents=True)
    (truss / "model.py").write_text(TRUSS_MODEL)
    (truss.parent / "config.yaml").write_text("model_name: truss\n")
    headers = {"content-type": "application/json", "x-baseten-request-id": "theirs"}
    with RunningServer({"ml": mlserver, "truss": truss.parent}, {"log_format": "json"}) as server:
        server.wait_ready()
        for name, question, text in (
            ("ml", {"inputs": []}, "from mlserver"),
            ("truss", {}, "[request_id=theirs] from truss"),
        ):
            answer = server.predict(name, json.dumps(question), headers=headers)
            assert answer.status_code == 200, answer.text

            def logged(about: str = answer.headers["x-request-id"]) -> list[dict[str, Any]]:
                lines = [line for line in server.model_log().splitlines() if about in line]
                return [each for each in map(json.loads, lines) if each["logger"] == "MODEL_LOG"]

            (record,) = eventually(logged, "the record is in the model log")
            assert (record["level"], record["message"]) == ("WARN", text)
            assert record["request_id"] == answer.headers["x-request-id"]


DECEIVING = """
import logging

from ts.metrics.dimension import Dimension

TEXT = "\\x1b\\x85\\u2028\\u202e\\u200f\\x7f\\ud800 end"


def handle(data, context):
    if data is None:
        return None
    context.metrics.add_counter("Odd", 1, dimensions=[Dimension("kind", TEXT)])
    logging.getLogger("odd").warning("logged %s", TEXT)
    print("printed", TEXT)
    return ["done" for _ in data]
"""


def test_no_text_of_a_model_or_a_client_breaks_logs_or_metrics(tmp_path: Path) -> None:
    odd = model_folder(tmp_path, "odd", DECEIVING, "sequenceBatching: true\nsequenceMaxIdleMSec: 60000\n")
    with RunningServer({"odd": odd}, {"log_format": "json"}) as server:
        server.wait_ready()
        answer = server.predict("odd", sequence="s\x85\u2028\u202e".encode().decode("latin-1"))
        assert answer.status_code == 200, answer.text + server.log()
        assert server.metric("Odd_total", kind=r"\x1b\x85\u2028\u202e\u200f\x7f\ud800 end") == 1
        eventually(lambda: "printed" in server.model_log(), "what the handler has printed is in the log")
        (logged,) = [each for each in map(json.loads, server.model_log().splitlines()) if "logged" in each["message"]]
        assert logged["message"] == "logged \x1b\x85\u2028\u202e\u200f\x7f\\ud800 end"
        eventually(lambda: "/predictions/odd" in server.log(), "the request is in the access log")
        text = server.log()
        assert not [each for each in text if each != "\n" and not each.isprintable()]
        assert "Traceback" not in text


RAISING = """
def handle(data, context):
    return data and [row["body"][100] for row in data]
"""
SERVED = """
from ts import serve


@serve
def raising(text: str) -> str:
    return text[100]
"""


def failure_in(printed: str, request_id: str) -> dict[str, Any]:
    """Return the record with the traceback about a request; every line must be an object."""
    records = [json.loads(line) for line in printed.splitlines()]
    assert all({"time", "level", "logger", "message"} <= record.keys() for record in records)
    return next(each for each in records if each.get("request_id") == request_id and "exception" in each)


def check_failure(record: dict[str, Any], file: str) -> None:
    assert (record["model"], record["model_version"]) == ("raising", "1.0")
    first, *_, last = record["exception"].splitlines()
    assert (first, last) == ("Traceback (most recent call last):", "IndexError: string index out of range")
    assert file in record["exception"]


def test_standard_output_is_json_with_the_traceback_of_a_handler(tmp_path: Path) -> None:
    with RunningServer({"raising": model_folder(tmp_path, "raising", RAISING)}, {"log_format": "json"}) as server:
        server.wait_ready()
        answer = server.predict("raising", "hello")
        assert answer.status_code == 503
        server.terminate()
        started = "Model server started.\n"
        assert server.log().count(started) == 1, "the one line that launchers wait for"
        check_failure(failure_in(server.log().replace(started, ""), answer.headers["x-request-id"]), "handler.py")


@pytest.mark.parametrize("terminal", [True, False])
def test_the_serve_command_prints_json_and_nothing_else(tmp_path: Path, terminal: bool) -> None:
    (tmp_path / "raising.py").write_text(SERVED)
    (tmp_path / "config.properties").write_text("no_such_key=1\n")
    variables = {"TS_LOG_FORMAT": "json"}
    with ServeCommand(tmp_path, "raising.py", variables=variables, terminal=terminal) as command:
        command.wait_until_serving()
        answer = command.predict("raising", "hello")
        assert answer.status_code == 500
        assert command.ended() == 0
        check_failure(failure_in(command.printed(), answer.headers["x-request-id"]), "raising.py")
        records = [json.loads(line) for line in command.printed().splitlines()]
        assert any(each["level"] == "WARN" and "no_such_key" in each["message"] for each in records)
        assert any(each["logger"] == "ACCESS_LOG" and each["status"] == 500 for each in records)
