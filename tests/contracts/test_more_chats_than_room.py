"""More conversations with handlers/chat than fit into any tier: the answers are those of a server where all fit."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests
from tests.e2e.running_server import DEADLINE, HANDLERS, RunningServer, eventually
from tests.unit.handlers.conftest import load_module

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

CONVERSATIONS = 40
FIT = 6
TURNS = 3
CLIENTS = 4
#: What a conversation of three turns takes: 64 tokens, of two layers, with keys and values of two heads of 16 numbers.
_BYTES = 64 * 2 * 2 * 2 * 16 * 8
THINGS, COLOURS = ("cat", "dog", "hat", "cup"), ("red", "blue", "pink", "green")

# In double precision an answer does not depend on what else is in its batch.
CONFIG = """
    minWorkers: 1
    maxWorkers: 1
    batchSize: 4
    continuousBatching: true
    sequenceBatching: true
    sequenceMaxIdleMSec: 600000
    maxNumSequence: 1000
    handler:
      dtype: float64
      max_tokens: 8
      temperature: 1.0
      kv_bytes: {bytes}
      kv_host_bytes: {bytes}
      cache: {{store: file, path: {store}, lease: 2, capacity: {capacity}}}
"""


def folder_with_room(directory: Path, conversations: int) -> Path:
    """Make the handler's folder, with room for so many conversations in each tier but the store."""
    folder = directory / "chat"
    shutil.copytree(HANDLERS / "chat", folder, ignore=shutil.ignore_patterns("model", "__pycache__"))
    load_module(folder / "train.py").train(folder / "model", steps=0)
    config = CONFIG.format(bytes=conversations * _BYTES, capacity=conversations, store=directory / "sequences.db")
    (folder / "model-config.yaml").write_text(textwrap.dedent(config))
    return folder


def turn(server: RunningServer, conversation: int, number: int) -> str:
    """Send a turn, again if the server is not there or says so; return its answer."""
    thing, colour = THINGS[(conversation + number) % 4], COLOURS[(conversation // 4) % 4]
    body = {"message": f"remember {thing}={colour}" if number % 2 == 0 else f"recall {thing}"}
    body |= {} if number else {"seed": conversation}  # type: ignore[dict-item]
    headers = {
        "ts_request_sequence_id": f"c{conversation}",
        "ts_request_sequence_token": f"t{conversation}",
        "ts_request_step": str(number + 1),
    }

    def answered() -> requests.Response | None:
        try:
            answer = requests.post(f"{server.inference}/predictions/chat", json=body, headers=headers, timeout=DEADLINE)
        except requests.ConnectionError:
            return None
        return None if "Retry-After" in answer.headers else answer

    answer = eventually(answered, "an answer")
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["text"]
    return text


def round_of(server: RunningServer, number: int) -> Iterator[str]:
    """Yield the answers of all conversations to a turn."""
    with ThreadPoolExecutor(CLIENTS) as clients:
        yield from clients.map(lambda conversation: turn(server, conversation, number), range(CONVERSATIONS))


def kill_and_restart(server: RunningServer) -> None:
    assert server.process is not None
    server.server.kill()
    server.process.kill()
    server.process.wait(DEADLINE)
    server.output.write_text("")  # which says that it has started
    server.start()
    server.wait_ready()


def test_all_answers_are_as_if_all_fitted(tmp_path: Path) -> None:
    (tmp_path / "large").mkdir()
    with RunningServer({"chat": folder_with_room(tmp_path / "large", 4 * CONVERSATIONS)}) as server:
        server.wait_ready()
        expected = [list(round_of(server, number)) for number in range(TURNS)]
    assert len(set(expected[0])) > CONVERSATIONS / 2, "conversations differ"
    (tmp_path / "small").mkdir()
    with RunningServer({"chat": folder_with_room(tmp_path / "small", FIT)}) as server:
        server.wait_ready()
        answers = [list(round_of(server, 0))]
        with ThreadPoolExecutor(1) as aside:
            second = aside.submit(lambda: list(round_of(server, 1)))
            server.workers()[0].kill()
            answers.append(second.result())
        described = server.describe("chat", "?customized=true")[0]
        assert described["customizedMetadata"]["kept_prefixes"] < CONVERSATIONS
        kill_and_restart(server)
        answers.append(list(round_of(server, 2)))
    assert answers == expected
