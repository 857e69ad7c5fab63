"""handlers/gru_session: stepping many sessions in one batch gives what each session gets alone."""

import importlib.util
import random
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.unit.handlers.conftest import drop_modules_of_models

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

HANDLER = "gru_session/gru_session_handler.py"
SEQUENCE_ID = "ts_request_sequence_id"


class Server:
    """Plays the server's part for one freshly loaded handler."""

    def __init__(self, handler: Any, context: Any):
        self.handler = handler
        self.context = context
        handler.initialize(context)

    def post(self, *rows: tuple[str, Any], **headers: str) -> list[Any]:
        """Send (sequence id, body) rows as one batch. Returns the handler's answers."""
        answers: list[Any] = self.context.run(
            self.handler, [({SEQUENCE_ID: name} | headers, body) for name, body in rows]
        )
        return answers


@pytest.fixture
def make_weights(handlers_dir: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(handlers_dir / "gru_session"))
    spec = importlib.util.spec_from_file_location("make_weights", handlers_dir / "gru_session" / "make_weights.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    drop_modules_of_models()
    return module


@pytest.fixture
def start(
    handler_module: ModuleType,
    make_weights: ModuleType,
    handlers_dir: Path,
    stateful_context: type,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[], Server]:
    """A function that loads the handler afresh from a model folder and returns it behind a ``Server``."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "model.py").write_text((handlers_dir / "gru_session" / "model.py").read_text())
    make_weights.write_weights(tmp_path / "weights.pt")
    manifest = {"model": {"modelFile": "model.py", "serializedFile": "weights.pt"}}

    def load() -> Server:
        context = stateful_context(
            {"batchSize": 8, "maxNumSequence": 100, "sequenceBatching": True}, tmp_path, manifest
        )
        return Server(handler_module.GruSessionHandler(), context)

    return load


def test_batched_sessions_equal_each_session_alone(start: Callable[[], Server]) -> None:
    rng = random.Random(7)
    sessions = {f"s{n}": [[rng.uniform(-2, 2) for _ in range(4)] for _ in range(rng.randint(1, 12))] for n in range(20)}

    batched: dict[str, list[list[float]]] = {name: [] for name in sessions}
    server = start()
    waiting = {name: list(steps) for name, steps in sessions.items()}
    while waiting:  # a random subset of the sessions steps in each batch, in a random order
        names = rng.sample(sorted(waiting), k=rng.randint(1, min(8, len(waiting))))
        for name, answer in zip(names, server.post(*[(name, waiting[name].pop(0)) for name in names]), strict=True):
            batched[name].append(answer["output"])
        waiting = {name: steps for name, steps in waiting.items() if steps}

    for name, steps in sessions.items():
        alone = start()
        outputs = [alone.post((name, step))[0]["output"] for step in steps]
        torch.testing.assert_close(torch.tensor(batched[name]), torch.tensor(outputs), rtol=1e-5, atol=1e-6)


def test_the_hidden_state_matters(start: Callable[[], Server]) -> None:
    server = start()
    step = [0.5, -0.5, 1.0, 0.0]
    first, second = server.post(("a", step))[0], server.post(("a", step))[0]
    assert first != second


@pytest.mark.parametrize("body", [b"nonsense", [1, 2, 3], ["1", 2, 3, 4], [1, 2, 3, float("nan")], {"x": 1}, b"", None])
def test_a_bad_row_fails_alone(start: Callable[[], Server], body: Any) -> None:
    step = [0.1, 0.2, 0.3, 0.4]
    expected = start().post(("a", step), ("c", step))
    server = start()
    answers = server.post(("a", step), ("b", body), ("c", b"[0.1, 0.2, 0.3, 0.4]"))
    assert answers[1].status == 400
    assert [answers[0], answers[2]] == expected


def test_the_weights_are_the_same_every_time_and_load_safely(make_weights: ModuleType, tmp_path: Path) -> None:
    states = []
    for name in ("first.pt", "second.pt"):
        make_weights.write_weights(tmp_path / name)
        states.append(torch.load(tmp_path / name, weights_only=True))
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
