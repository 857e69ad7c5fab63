"""Models in MLflow's format: how they are told, and what MLflow's code gets of a request.

`tests/moves_in/mlflow_models.py` compares answers with those of MLflow's own server.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from torchserve_py.core.archive.model_files import open_model
from ts.context import Context
from ts.contracts.mlflow.load_mlflow import load
from ts.contracts.mlflow.mlflow_handler import MlflowHandler
from ts.jobs.errors import LoadError, RowFailure
from ts.jobs.row import Row


class Answered(NamedTuple):
    response: str
    status: int
    mimetype: str


class Refusal(Exception):
    message = "no table"

    def serialize_as_json(self) -> str:
        return '{"error_code": "BAD_REQUEST"}'

    def get_http_status_code(self) -> int:
        return 400


class Model:
    """A model, and MLflow's server, which answers with what it gets."""

    VERSION = "3.1"
    metadata: Any

    def get_input_schema(self) -> str:
        return "schema"

    def invocations(self, data: Any, content_type: str, model: Any, input_schema: Any) -> Answered:
        if data == "refuse":
            raise Refusal
        if data == "no memory":
            try:
                raise MemoryError
            except MemoryError:
                raise Refusal  # noqa: B904 - as MLflow raises it
        return Answered(f"{data!r} {content_type} {input_schema}", 200, "application/json")


@pytest.fixture
def handler(monkeypatch: pytest.MonkeyPatch) -> MlflowHandler:
    model = Model()
    model.metadata = model
    modules = {name: ModuleType(name) for name in ("mlflow", "mlflow.exceptions", "mlflow.pyfunc")}
    modules["mlflow.exceptions"].__dict__["MlflowException"] = Refusal
    modules["mlflow.pyfunc"].__dict__["load_model"] = lambda folder: model
    for name, module in {**modules, "mlflow.pyfunc.scoring_server": model}.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("_MLFLOW_IS_IN_SERVING_ENVIRONMENT", "true")
    made = MlflowHandler()
    made.initialize(Context("m", "/m", {}, 1, None, "0"))
    return made


def ask(handler: MlflowHandler, body: bytes, content_type: str) -> tuple[Any, int | None, str | None]:
    context = Context("m", "/m", {}, 1, None, "0")
    row = Row("a", {"body": body}, [(b"content-type", content_type.encode())], [])
    context.request_processor = [row]
    (answer,) = handler.handle([row.data], context)
    return answer, row.get_response_status_code(), row.get_response_headers().get("content-type")


@pytest.mark.parametrize(
    ("body", "content_type", "given"),
    [
        (b"a,b\n", "text/csv", "'a,b\\n' text/csv schema"),
        (b"\xe9", "Text/CSV; charset=latin-1", "'é' text/csv schema"),
        (b"[1]", "application/json; charset=utf-8", "'[1]' application/json schema"),
        (b"PAR1", "application/vnd.apache.parquet", "b'PAR1' application/vnd.apache.parquet schema"),
    ],
)
def test_mlflow_gets_text_and_bytes(handler: MlflowHandler, body: bytes, content_type: str, given: str) -> None:
    assert ask(handler, body, content_type) == (given, 200, "application/json")


def test_errors_are_mlflows_but_for_memory_and_charsets(handler: MlflowHandler) -> None:
    assert ask(handler, b"refuse", "text/csv") == ('{"error_code": "BAD_REQUEST"}', 400, "application/json")
    for body, content_type, status in ((b"no memory", "text/csv", 507), (b"a", "text/csv; charset=utf-9", 415)):
        with pytest.raises(RowFailure) as failed:
            ask(handler, body, content_type)
        assert failed.value.status == status


@pytest.mark.parametrize(
    ("beside", "contract"),
    [
        ("python_model.pkl", "mlflow"),
        ("model-settings.json", "mlserver"),
        ("handler.py", "torchserve"),
        ("inference.py", "mlflow"),
    ],
)
def test_a_folder_with_an_mlmodel_is_told(tmp_path: Path, beside: str, contract: str) -> None:
    for name in ("MLmodel", "requirements.txt", beside):
        (tmp_path / name).touch()
    opened = open_model(tmp_path, tmp_path)
    assert (opened.contract, opened.manifest.requirements_file) == (contract, "requirements.txt")


def test_the_version_is_mlflows(handler: MlflowHandler) -> None:
    assert handler.handle([{"version": b""}], Context("m", "/m", {}, 1, None, "0")) == ["3.1"]


@pytest.mark.skipif(importlib.util.find_spec("mlflow") is not None, reason="MLflow is installed")
def test_a_worker_without_mlflow_says_so() -> None:
    with pytest.raises(LoadError, match="pip install mlflow, or let the server install"):
        load({}, None, None)  # type: ignore[typeddict-item, arg-type]
