"""handlers/morse: what its README shows; and pieces of a sound, cut anywhere and in batches with others, give what the
whole sound gives."""

import random
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tests.e2e import documents
from tests.e2e.running_server import HANDLERS
from tests.unit.handlers.conftest import StatefulContext, load_module

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

HANDLER = "morse/morse_handler.py"
SEQUENCE_ID = "ts_request_sequence_id"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model's folder after the examples of its README, which train it."""
    place = tmp_path_factory.mktemp("morse")
    documents.run_all(HANDLERS / "morse" / "README.md", place)
    return place / "handlers" / "morse"


@pytest.fixture
def start(
    handler_module: ModuleType,
    folder: Path,
    stateful_context: type[StatefulContext],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[], Any]:
    """A function that loads the handler afresh, and returns what takes batches of (sequence id, body)."""
    monkeypatch.syspath_prepend(str(folder))

    def load() -> Callable[..., list[Any]]:
        manifest = {"model": {"modelFile": "morse_model.py", "serializedFile": "weights.pt"}}
        context = stateful_context({"batchSize": 8, "maxNumSequence": 100}, folder, manifest)
        handler = handler_module.MorseHandler()
        handler.initialize(context)
        return lambda *rows: context.run(handler, [({SEQUENCE_ID: name}, body) for name, body in rows])

    return load


@pytest.fixture
def sound(handlers_dir: Path) -> Callable[..., bytes]:
    code = load_module(handlers_dir / "morse" / "morse_code.py")

    def sound_of(text: str, **how: Any) -> bytes:
        heard = 0.5 * code.keyed(text, **how).sound
        heard = heard + np.random.default_rng(3).normal(0, 0.02, len(heard))
        data: bytes = (heard * 32_767).astype("<i2").tobytes()
        return data

    return sound_of


@pytest.mark.parametrize("text", ["SOS", "PARIS PARIS", "HELLO WORLD"])
def test_it_reads_what_was_keyed(start: Callable[[], Any], sound: Callable[..., bytes], text: str) -> None:
    assert start()(("a", sound(text)))[0] == f"{text} "


def test_pieces_in_batches_are_read_as_the_whole_is(start: Callable[[], Any], sound: Callable[..., bytes]) -> None:
    order, post = random.Random(5), start()
    texts = {"a": "SOS", "b": "PARIS", "c": "HELLO", "d": "WORLD", "e": "E"}
    whole = {name: post((f"whole {name}", sound(text, tone=500.0)))[0] for name, text in texts.items()}
    left = {name: sound(text, tone=500.0) for name, text in texts.items()}
    read = dict.fromkeys(texts, "")
    while left:
        batch = []
        for name in order.sample(sorted(left), order.randint(1, len(left))):
            size = 2 * order.choice([0, 1, 159, 160, 161, 700, 3_000])
            batch.append((name, left[name][:size]))
            left[name] = left[name][size:]
        for (name, _), text in zip(batch, post(*batch), strict=True):
            read[name] += text
        left = {name: rest for name, rest in left.items() if rest}
    assert read == whole


def test_scores_of_pieces_equal_those_of_the_whole(
    folder: Path, handlers_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(handlers_dir / "morse"))
    module = load_module(handlers_dir / "morse" / "morse_model.py")
    model = module.MorseRecogniser().eval()
    model.load_state_dict(torch.load(folder / "weights.pt", weights_only=True))
    frames = torch.randn(1, 90, module.FRAME) / 10
    with torch.inference_mode():
        state, scores = torch.zeros(1, *model.state_shape, dtype=torch.complex64), []
        for piece in frames.split([1, 30, 7, 52], 1):
            padded = torch.cat([piece, torch.randn(1, 5, module.FRAME)], 1)
            given, state = model(padded, state, torch.tensor([piece.shape[1]]))
            scores.append(given[:, : piece.shape[1]])
        torch.testing.assert_close(torch.cat(scores, 1), model.whole(frames), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("body", "told"),
    [("dots", "Expected 16-bit samples as the body"), (b"odd", "has 3 bytes"), (bytes(2 * 480_001), "480,001")],
)
def test_a_bad_row_fails_alone(start: Callable[[], Any], sound: Callable[..., bytes], body: Any, told: str) -> None:
    answers = start()(("a", sound("E")), ("b", body), ("c", sound("T")))
    assert (answers[0], answers[2]) == ("E ", "T ")
    assert answers[1].status == 400
    assert told in answers[1].message
