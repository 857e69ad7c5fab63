"""Small things that people notice who come from TorchServe."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from tests.e2e.running_server import ROOT, RunningServer, eventually, model_folder

#: Tells the variable PYTHONPATH of a program that it starts, and raises what it is asked for.
HANDLER = """
import subprocess
from ts.utils.util import PredictionException

def handle(data, context):
    if data is None:
        return []
    if data[0]["body"] == "refuse":
        raise PredictionException("not like that", 400)
    told = subprocess.run(["printenv", "PYTHONPATH"], capture_output=True, text=True)
    return [told.stdout.strip()] * len(data)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("models"), "telling", HANDLER)


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RunningServer]:
    inherited = {"PYTHONPATH": f"/of/the/user:{ROOT / 'frontend'}:{ROOT / 'backend'}"}
    with RunningServer({"telling": folder}, environment=inherited) as running:
        running.wait_ready()
        yield running


def test_programs_that_a_handler_starts_do_not_get_the_servers_packages(server: RunningServer, folder: Path) -> None:
    told = server.predict("telling", "tell").text.split(":")
    # What the server inherited, and the model's folder: the server's own packages stood behind that.
    assert told == ["/of/the/user", str(ROOT / "frontend"), str(ROOT / "backend"), str(folder)]


def test_what_a_handler_refuses_has_torchserves_type(server: RunningServer) -> None:
    answer = server.predict("telling", "refuse")
    assert answer.status_code == 400
    assert answer.json() == {"code": 400, "type": "InternalServerException", "message": "not like that"}


def test_a_form_that_cannot_be_read_is_a_bad_request(server: RunningServer) -> None:
    answer = server.predict("telling", "x", headers={"content-type": "multipart/form-data; boundary=b"})
    assert (answer.status_code, answer.json()["type"]) == (400, "BadRequestException")


def test_the_log_has_the_phrases_that_the_document_names(folder: Path) -> None:
    table = (ROOT / "docs" / "logging.md").read_text().rpartition("| TorchServe | here |")[2]
    rows = [line.split("|")[2] for line in table.splitlines() if line.startswith("| `")]
    phrases = [row.split("`")[1].replace("mnist", "telling") for row in rows]
    assert "Model telling version 1.0 is registered" in phrases
    with RunningServer({"telling": folder}) as server:
        server.wait_ready()
        server.workers()[0].kill()
        eventually(lambda: "starts again in" in server.log(), "the worker is started again")
        assert server.unregister("telling").status_code == 200
        server.terminate()
        missing = [phrase for phrase in phrases if phrase not in server.log()]
    assert missing == []


@pytest.mark.parametrize("path", ["/models/telling", "/models/telling/1.0"])
def test_the_document_of_a_model_tells_all_that_describe_shows(server: RunningServer, path: str) -> None:
    document = requests.options(f"{server.management}{path}", timeout=180).json()
    assert document["info"]["version"] == "0.12.0"
    described = [each["get"] for each in document["paths"].values() if "get" in each]
    schemas = [each["responses"]["200"]["content"]["application/json"]["schema"] for each in described]
    assert schemas
    shown = server.describe("telling")[0]
    for schema in schemas:
        assert set(shown) <= set(schema["items"]["properties"])
        assert set(shown["workers"][0]) <= set(schema["items"]["properties"]["workers"]["items"]["properties"])
