"""A worker for an asynchronous handler, in a process of its own."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.sequences.steps.conftest import cache_settings, redis_server
from tests.unit.ts.frontend_stub import FrontendStub, Peer, load_message

__all__ = ["cache_settings", "redis_server", "start"]

Start = Callable[..., tuple[subprocess.Popen[str], Peer, Any]]


@pytest.fixture
def start(frontend: FrontendStub, tmp_path: Path, model: Callable[..., str]) -> Start:
    """Start a worker for an asynchronous handler; return it, its jobs connection, and what it says of loading."""

    def start_worker(source: str, **changes: Any) -> tuple[subprocess.Popen[str], Peer, Any]:
        model(source, "handler.py")
        process = frontend.start_worker(tmp_path)
        accepted = [frontend.accept() for _ in range(2)]
        (jobs,) = (peer for peer, hello in accepted if hello["channel"] == "jobs")
        jobs.send("load", load_message(tmp_path, **{"asynchronous": True, "batch_size": 1, **changes}))
        return process, jobs, jobs.receive()[1]

    return start_worker
