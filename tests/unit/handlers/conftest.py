"""For tests of ready-made handlers: a context with TorchServe's documented methods, and the handlers' modules."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HANDLERS = Path(__file__).resolve().parents[3] / "handlers"


class FakeContext:
    """The documented part of ``ts.context.Context`` for one batch after another."""

    header_key_sequence_id = "ts_request_sequence_id"
    header_key_sequence_start = "ts_request_sequence_start"
    header_key_sequence_end = "ts_request_sequence_end"

    def __init__(self, config: dict[str, Any], model_dir: Path | None = None, manifest: dict[str, Any] | None = None):
        self.model_yaml_config = config
        self.manifest = manifest or {"model": {}}
        self.system_properties = {"model_dir": str(model_dir), "gpu_id": None, "batch_size": config.get("batchSize", 1)}
        self.stopping_criteria: list[Any] | None = None
        self.next_batch([])

    def next_batch(self, requests: list[tuple[str, dict[str, str]]]) -> None:
        """Begin a batch of requests, each given by its request id and headers."""
        self.request_ids = {idx: request_id for idx, (request_id, _) in enumerate(requests)}
        self._headers = [headers for _, headers in requests]
        self.status: dict[int, tuple[int, str]] = {}
        self.response_headers: dict[int, dict[str, str]] = {idx: {} for idx in range(len(requests))}
        self.stopping_criteria = None

    def get_request_id(self, idx: int = 0) -> str | None:
        return self.request_ids.get(idx)

    def get_request_header(self, idx: int, key: str) -> str | None:
        return self._headers[idx].get(key)

    def get_sequence_id(self, idx: int) -> str | None:
        return self.get_request_header(idx, self.header_key_sequence_id)

    def set_response_status(self, code: int = 200, phrase: str = "", idx: int = 0) -> None:
        self.status[idx] = (code, phrase)

    def set_response_header(self, idx: int, key: str, value: str) -> None:
        self.response_headers[idx][key] = value

    def set_response_content_type(self, idx: int, value: str) -> None:
        self.set_response_header(idx, "content-type", value)


@pytest.fixture
def fake_context() -> type[FakeContext]:
    return FakeContext


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
    monkeypatch.delitem(sys.modules, "model", raising=False)
    return load_module(path)
