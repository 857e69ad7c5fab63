"""What is measured against Truss's own server: a Truss that does nothing, and one whose device must never wait."""

from __future__ import annotations

import json

from benchmarks.benchmark_models import SOURCES, FolderModel, Probe
from benchmarks.loads import HttpLoad

#: Requests per second that the `predict` of the model with stages lets through (models/truss_stages).
PREDICT_LIMIT = 100

_PATH = "/v1/models/model:predict"
_HEADERS = {"Content-Type": "application/json"}
_INPUT = {"text": "x"}
_BODY = json.dumps(_INPUT).encode()


def _is_echo(answer: bytes) -> bool:
    return bool(json.loads(answer) == _INPUT)


_PROBE = Probe(_PATH, _BODY, _is_echo, _HEADERS)
ECHO = FolderModel("model", SOURCES / "truss_echo", _PROBE)
STAGES = FolderModel("model", SOURCES / "truss_stages", _PROBE)


def predict(connections: int) -> HttpLoad:
    """A small JSON document."""
    return HttpLoad(connections, _PATH, _BODY, _HEADERS)
