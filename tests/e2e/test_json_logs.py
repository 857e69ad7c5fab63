"""With ``log_format=json``, what models of every contract log is one JSON object that names its request."""

import json
from pathlib import Path
from typing import Any

from tests.e2e.running_server import RunningServer, eventually

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
