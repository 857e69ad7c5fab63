"""What models log arrives as they logged it, whichever contract they are written for: level, logger, traceback."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.running_server import RunningServer, eventually, model_folder

LOGS = """
def log_much(name):
    logger = logging.getLogger("mine.sub")
    logger.setLevel(logging.DEBUG)
    logger.debug("fine %s", name)
    logger.warning("careful %s", name)
    logging.info("two lines\\nfor %s", name)
    print("printed by", name)
    try:
        {}["key of " + name]
    except KeyError:
        logger.exception("lost by %s", name)
    logger.info("all by %s", name)
"""
HANDLER = f"""
import logging
{LOGS}

def handle(data, context):
    if data is None:  # it initializes
        return None
    log_much("handler")
    return ["done"] * len(data)
"""
MLSERVER_MODEL = f"""
import logging

from mlserver import MLModel
from mlserver.logging import logger as mlservers
from mlserver.types import InferenceResponse
{LOGS}

class Logging(MLModel):
    async def predict(self, payload):
        mlservers.debug("debug of mlserver")
        mlservers.error("error of mlserver")
        log_much("mlserver")
        return InferenceResponse(model_name=self.name, outputs=[])
"""
TRUSS_MODEL = f"""
import logging
{LOGS}

class Model:
    def predict(self, model_input):
        log_much("truss")
        return "done"
"""
NAMES = ("handler", "mlserver", "truss")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("models")
    handler = model_folder(directory, "handler", HANDLER)
    for name in ("mlserver", "structured"):
        mlserver = directory / name
        mlserver.mkdir()
        (mlserver / "logs_much.py").write_text(MLSERVER_MODEL)
        (mlserver / "model-settings.json").write_text(json.dumps({"implementation": "logs_much.Logging"}))
    (mlserver / "settings.json").write_text('{"use_structured_logging": true}')
    truss = directory / "truss" / "model"
    truss.mkdir(parents=True)
    (truss / "model.py").write_text(TRUSS_MODEL)
    (truss.parent / "config.yaml").write_text("{}")
    return {
        "handler": handler,
        "mlserver": directory / "mlserver",
        "structured": directory / "structured",
        "truss": truss.parent,
    }


def logging_server(models: dict[str, Path], **properties: str) -> Iterator[RunningServer]:
    with RunningServer(models, properties) as running:
        running.wait_ready()
        for name in (*NAMES, "structured"):
            question = '{"inputs": []}' if name in ("mlserver", "structured") else "{}"
            answer = running.predict(name, question, headers={"content-type": "application/json"})
            assert answer.status_code == 200, answer.text
        calls = {"handler": 1, "mlserver": 2, "truss": 1}  # "structured" has the code of "mlserver"
        ends = {f"all by {name}": count for name, count in calls.items()}
        eventually(
            lambda: all(running.model_log().count(end) == count for end, count in ends.items()), "all is in the log"
        )
        yield running


@pytest.fixture(scope="module")
def text_server(models: dict[str, Path]) -> Iterator[RunningServer]:
    yield from logging_server(models)


@pytest.fixture(scope="module")
def json_server(models: dict[str, Path]) -> Iterator[RunningServer]:
    yield from logging_server(models, log_format="json")


LINE = re.compile(r"\S+ \[(?P<level>\w+) *\] W-\d+-(?P<model>\w+)_\S+-stdout MODEL_LOG - (?P<text>.*)")


@pytest.mark.parametrize("name", NAMES)
def test_lines_have_the_level_that_the_model_has_given_them(text_server: RunningServer, name: str) -> None:
    found = [LINE.fullmatch(line) for line in text_server.model_log().splitlines()]
    said = [(line["level"], line["text"]) for line in found if line is not None and line["model"] == name]
    start = said.index(("DEBUG", f"fine {name}"))
    level, first = said[start + 5]
    assert level == "ERROR"
    assert re.fullmatch(rf"lost by {name} \[model {name}, request [\w-]+\]", first)
    assert said[start + 1 : start + 5] == [
        ("WARN", f"careful {name}"),
        ("INFO", "two lines"),
        ("INFO", f"for {name}"),
        ("INFO", f"printed by {name}"),
    ]
    end = said.index(("INFO", f"all by {name}"))
    traceback = said[start + 6 : end]
    assert {level for level, _ in traceback} == {"ERROR"}
    assert traceback[0][1] == "Traceback (most recent call last):"
    assert traceback[-1][1] == f"KeyError: 'key of {name}'"


def test_mlservers_own_logger_has_its_levels(text_server: RunningServer) -> None:
    log = text_server.model_log()
    assert re.search(r"\[DEBUG\] W-\d+-mlserver_\S+-stdout MODEL_LOG - debug of mlserver$", log, re.MULTILINE)
    assert re.search(r"\[ERROR\] W-\d+-mlserver_\S+-stdout MODEL_LOG - error of mlserver$", log, re.MULTILINE)


def test_mlservers_own_json_stays_as_it_is_unless_the_servers_lines_are_json(
    text_server: RunningServer, json_server: RunningServer
) -> None:
    def line() -> str | None:
        found = [each for each in text_server.model_log().splitlines() if '"error of mlserver"' in each]
        return found[0].partition(" MODEL_LOG - ")[2] if found else None

    told = json.loads(eventually(line, "MLServer's line") or "")
    assert (told["name"], told["level"], told["model_name"]) == ("mlserver", "ERROR", "structured")
    records = [json.loads(each) for each in json_server.model_log().splitlines()]
    told = [each for each in records if each["message"] == "error of mlserver"]
    assert [(each["level"], each["model_logger"]) for each in told] == [("ERROR", "mlserver")] * 2


@pytest.mark.parametrize("name", NAMES)
def test_a_record_is_one_object_of_json(json_server: RunningServer, name: str) -> None:
    records = [json.loads(line) for line in json_server.model_log().splitlines()]

    def told(text: str) -> dict[str, Any]:
        return next(each for each in records if each["message"] == text)

    for level, text in (("DEBUG", f"fine {name}"), ("WARN", f"careful {name}"), ("ERROR", f"lost by {name}")):
        record = told(text)
        assert (record["level"], record["model_logger"]) == (level, "mine.sub")
        assert record["request_id"] or record["request_ids"]
    assert told(f"two lines\nfor {name}")["model_logger"] == "root"
    exception = told(f"lost by {name}")["exception"]
    assert exception.startswith("Traceback (most recent call last):\n")
    assert exception.endswith(f"\nKeyError: 'key of {name}'")
    assert "model_logger" not in told(f"printed by {name}")
