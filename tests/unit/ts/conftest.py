"""Fixtures: a frontend's listening socket, and workers made from a handler's source."""

import itertools
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.ts.frontend_stub import FrontendStub, Worker

_numbers = itertools.count()


@pytest.fixture
def frontend(tmp_path: Path) -> Iterator[FrontendStub]:
    stub = FrontendStub(tmp_path / "frontend.sock")
    yield stub
    stub.close()


@pytest.fixture
def model(tmp_path: Path) -> Callable[..., str]:
    """Write a handler's source to the model folder; return its file name, which no other test uses."""

    def write(source: str, name: str | None = None) -> str:
        file_name = name or f"handler_{next(_numbers)}.py"
        (tmp_path / file_name).write_text(textwrap.dedent(source))
        return file_name

    return write


@pytest.fixture
def make_worker(
    frontend: FrontendStub, tmp_path: Path, model: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Worker]]:
    """Load a handler's source into a worker without its own process."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    workers: list[Worker] = []

    def make(source: str, **changes: Any) -> Worker:
        worker = Worker(frontend, tmp_path, model(source), **changes)
        workers.append(worker)
        return worker

    yield make
    for worker in workers:
        worker.connection.close()
