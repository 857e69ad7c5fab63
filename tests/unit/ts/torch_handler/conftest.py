"""Fixtures: built-in handlers in a worker without its own process."""

import importlib.util
import io
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.unit.ts.frontend_stub import FrontendStub, Worker, row

pytest.importorskip("torch")


@pytest.fixture(scope="session", autouse=True)
def captum_imported() -> None:
    """Import it if it is installed: else a thread of a handler does, and what goes through all modules then fails."""
    if importlib.util.find_spec("captum") is not None:
        importlib.import_module("captum.attr")


class Served:
    """A built-in handler with a model, as the runtime serves it."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    @property
    def handler(self) -> Any:
        """The handler's instance."""
        return self._worker.service.handler

    def answers(self, *bodies: Any, explain: Sequence[int] = ()) -> list[tuple[int, Any]]:
        """Send one batch; return status and decoded body of every row, in the order of the rows.

        Args:
            *bodies: Bytes, or dicts of form fields.
            explain: The rows that ask for an explanation.
        """
        rows = []
        for index, body in enumerate(bodies):
            fields = [[name, None, value] for name, value in body.items()] if isinstance(body, dict) else body
            headers = [("explain", str(index in explain))]
            rows.append(row(str(index), fields, "application/octet-stream", headers))
        results = sorted(self._results(rows), key=lambda result: int(result[0]))
        return [(status, message or _decoded(body)) for _, _, status, _, _, body, message, _ in results]

    def _results(self, rows: list[Any]) -> list[Any]:
        """Run the batch, in a thread: the worker waits until someone reads what no socket's buffer can hold."""
        worker = self._worker
        worker.admit_frame(rows)
        results: list[Any] = []
        with ThreadPoolExecutor(1) as threads:
            step = threads.submit(worker.runtime.step)
            while len(results) < len(rows):
                message = worker.peer.receive()
                results += message[1] if message[0] == "results" else []
            step.result()
        return results


def _decoded(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return bytes(body)


@pytest.fixture
def serve(frontend: FrontendStub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Served]]:
    """Load a built-in handler; keyword arguments are the manifest's, ``config`` is the text of model-config.yaml."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    workers: list[Worker] = []

    def load(handler: str, *, config: str = "", changes: Any = None, **entry: str) -> Served:
        (tmp_path / "model-config.yaml").write_text(config)
        manifest = {"model": {"modelName": "small", "configFile": "model-config.yaml", **entry}}
        workers.append(Worker(frontend, tmp_path, handler, manifest=manifest, **(changes or {})))
        return Served(workers[-1])

    yield load
    for worker in workers:
        worker.connection.close()


@pytest.fixture
def picture() -> Callable[..., bytes]:
    """Make an image file of one colour."""
    image = pytest.importorskip("PIL.Image")

    def make(
        color: Any = (255, 0, 0), size: tuple[int, int] = (300, 260), *, mode: str = "RGB", form: str = "PNG"
    ) -> bytes:
        file = io.BytesIO()
        image.new(mode, size, color).save(file, form)
        return file.getvalue()

    return make
