"""Every OpenAPI document against the server that gave it: schemathesis sends what the document allows, and what not."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
from tests.conformance.truss.serving import Truss
from tests.e2e.running_server import DEADLINE, RunningServer, model_folder

#: Cases of each operation beside those that its schema's edges give.
EXAMPLES = 1
MOST_WORKERS = 3
#: No schema says that data fill their shape, are msgpack, or that a maximum is no less than its minimum, so what it
#: allows may still be refused.
FITTING = "positive_data_acceptance"
#: As in TorchServe, a flag that is not "true" is false, and a number that is none is left out.
LENIENT = "negative_data_rejection"
#: A model without a worker cannot describe itself, and says so with 503.
UNAVAILABLE = "not_a_server_error"
#: Some of TorchServe's paths take every method; its documents, and ours, name the one that is meant.
METHODS = "unsupported_method"
SHOW = """
def handle(data, context):
    if data is None:
        return None
    for index in range(len(data)):
        context.set_response_content_type(index, "application/octet-stream")
    return [bytes(8)] * len(data)
"""
TALK = """
from mlserver import MLModel
from mlserver.codecs import StringCodec
from mlserver.types import InferenceResponse


class Talk(MLModel):
    async def predict(self, payload):
        count = StringCodec.encode_output("count", [str(len(payload.inputs))])
        return InferenceResponse(model_name=self.name, outputs=[count])
"""
TALK_SETTINGS = {
    "implementation": "model.Talk",
    "inputs": [{"name": "text", "datatype": "BYTES", "shape": [1]}],
}


@dataclass(frozen=True)
class Document:
    """Where a document is, and which of schemathesis' checks ask for more than a document can say."""

    listener: str
    path: str
    method: str = "GET"
    excluded: tuple[str, ...] = ()


DOCUMENTS = {
    "inference listener": Document("inference", "/", "OPTIONS", excluded=(METHODS,)),
    "metrics listener": Document("metrics", "/", "OPTIONS", excluded=(METHODS,)),
    "predictions of a model": Document("inference", "/predictions/show", "OPTIONS", excluded=(FITTING, METHODS)),
    "open inference": Document("inference", "/v2/docs/dataplane.json"),
    "a TorchServe handler": Document(
        "inference", "/v2/models/show/versions/1.0/docs/dataplane.json", excluded=(FITTING,)
    ),
    "an MLServer model": Document("inference", "/v2/models/talk/docs/dataplane.json", excluded=(FITTING,)),
    "a Truss": Document("inference", "/v1/models/truss/openapi.json", excluded=(FITTING,)),
    # What manages models comes last, because it takes them away.
    "management of a model": Document("management", "/models/show", "OPTIONS", excluded=(FITTING, LENIENT)),
    "management listener": Document("management", "/", "OPTIONS", excluded=(FITTING, LENIENT, METHODS, UNAVAILABLE)),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    directory = tmp_path_factory.mktemp("models")
    talk = directory / "talk"
    talk.mkdir()
    (talk / "model.py").write_text(TALK)
    (talk / "model-settings.json").write_text(json.dumps(TALK_SETTINGS))
    models: dict[str, Path | str] = {
        "show": model_folder(directory, "show", SHOW),
        "talk": talk,
        "truss": Truss("basics:Echo").write(directory, "truss"),
    }
    with RunningServer(models) as running:
        running.wait_ready()
        yield running


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_server_does_what_its_document_says(server: RunningServer, name: str, tmp_path: Path) -> None:
    document = DOCUMENTS[name]
    address = getattr(server, document.listener)
    fetched = requests.request(document.method, f"{address}{document.path}", timeout=DEADLINE)
    assert fetched.status_code == 200, fetched.text
    described = fetched.json()
    _limit_workers(described)
    (tmp_path / "document.json").write_text(json.dumps(described))
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", "document.json", "--url", address, "--no-color"),
        *("--phases", "examples,coverage,fuzzing", "--max-examples", str(EXAMPLES), "--continue-on-failure"),
        *("--generation-deterministic", "--no-shrink"),
        *("--request-timeout", str(DEADLINE)),
        *("--exclude-path", "/drain"),  # after which the server takes no more requests
    ]
    if document.excluded:
        command += ["--exclude-checks", ",".join(document.excluded)]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, f"{run.stdout[-8000:]}\n{run.stderr[-2000:]}"
    assert "generated" in run.stdout


def _limit_workers(described: Any) -> None:
    """Let numbers of workers be what a small machine starts before a request is given up."""
    if isinstance(described, list):
        for each in described:
            _limit_workers(each)
    elif isinstance(described, dict):
        if described.get("name") in ("min_worker", "max_worker", "initial_workers"):
            described["schema"]["maximum"] = MOST_WORKERS
        for each in described.values():
            _limit_workers(each)
