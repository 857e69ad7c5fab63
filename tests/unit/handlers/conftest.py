"""For tests of ready-made handlers: contexts, and the handlers' modules."""

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ts.context import Context, RequestProcessor
from ts.sequence import SequenceCache

HANDLERS = Path(__file__).resolve().parents[3] / "handlers"


class FakeContext(Context):
    """The context of one batch after another."""

    def __init__(self, config: dict[str, Any], model_dir: Path | None = None, manifest: dict[str, Any] | None = None):
        rows = config.get("batchSize", 1)
        super().__init__(
            "model", str(model_dir), manifest or {"model": {}}, rows, None, "1.0", model_yaml_config=config
        )
        self.next_batch([])

    def next_batch(self, requests: list[tuple[str, dict[str, str]]]) -> None:
        """Begin a batch of requests, each given by its request id and headers."""
        self.request_ids = {idx: request_id for idx, (request_id, _) in enumerate(requests)}
        self.request_processor = [RequestProcessor(headers) for _, headers in requests]
        self.stopping_criteria = None

    @property
    def status(self) -> dict[int, tuple[int | None, str | None]]:
        """Status and reason phrase of the rows that have another one than 200."""
        heads = {idx: self.get_response_status(idx) for idx in range(len(self.request_processor))}
        return {idx: head for idx, head in heads.items() if head[0] != 200}

    @property
    def response_headers(self) -> dict[int, dict[str, str]]:
        return {idx: self.get_response_headers(idx) for idx in range(len(self.request_processor))}


class StatefulContext(FakeContext):
    """The same for a model with sequences, whose states are in memory."""

    def run(self, handler: Any, requests: Sequence[tuple[dict[str, str], Any]]) -> list[Any]:
        """Return the answers to a batch of requests, given by headers and body; a `RowError` for a row that failed."""
        if self.sequence_cache is None:
            SequenceCache(self)
        data = [{"body": body} for _, body in requests]
        self.next_batch([(f"r{idx}", headers) for idx, (headers, _) in enumerate(requests)])
        self.row_values = data
        answers = handler.handle(data, self)
        return [row.error or answer for row, answer in zip(self.request_processor, answers, strict=True)]


@pytest.fixture
def stateful_context() -> type[StatefulContext]:
    return StatefulContext


@pytest.fixture
def fake_context() -> type[FakeContext]:
    return FakeContext


#: The files of examples with the class of their model.
_MODEL_FILES = ("model", "morse_model")


@pytest.fixture(autouse=True)
def _no_modules_of_other_models() -> Iterator[None]:
    """A worker has one model; here many have files of the same names."""
    yield
    drop_modules_of_models()


def drop_modules_of_models() -> None:
    """Forget the imported files of models."""
    for name in _MODEL_FILES:
        sys.modules.pop(name, None)


def load_module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def handlers_dir() -> Path:
    return HANDLERS


@pytest.fixture
def handler_module(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that a test file's ``HANDLER`` names, imported as a worker does, its folder first on the path."""
    path = HANDLERS / request.module.HANDLER
    monkeypatch.syspath_prepend(str(path.parent))
    module = load_module(path)
    drop_modules_of_models()  # that the handler has imported here: a worker imports those of the model's folder
    return module
