"""handlers/chat in real servers: conversations that survive their worker and their server, clients that leave."""

import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
import requests
from tests.e2e.running_server import DEADLINE, HANDLERS, RunningServer, eventually
from tests.unit.handlers.conftest import load_module

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

CONFIG = """
    minWorkers: 1
    maxWorkers: 1
    batchSize: 8
    continuousBatching: true
    sequenceBatching: true
    sequenceMaxIdleMSec: 600000
    maxNumSequence: 100
    openai: true
    handler:
      max_tokens: 12
      temperature: 1.0
      kv_bytes: 4000000
      cache: {store: file, path: %s, lease: 2}
"""
TURNS = ("remember cat=red", "recall cat", "remember dog=blue", "recall dog")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The handler with the model of its script before it has learned anything: it says what its seed decides."""
    folder = tmp_path_factory.mktemp("chat")
    shutil.copytree(HANDLERS / "chat", folder / "chat", ignore=shutil.ignore_patterns("model", "__pycache__"))
    load_module(folder / "chat" / "train.py").train(folder / "chat" / "model", steps=0)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "chat" / "model")
    with torch.no_grad():  # it hardly ever ends what it says
        model.get_input_embeddings().weight[model.config.eos_token_id] = 0.0
    model.save_pretrained(folder / "chat" / "model")
    (folder / "chat" / "model-config.yaml").write_text(textwrap.dedent(CONFIG % (folder / "sequences.db")))
    return folder / "chat"


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RunningServer]:
    with RunningServer({"chat": folder}) as running:
        running.wait_ready()
        yield running


def turn(server: RunningServer, sequence: str, number: int, token: str = "") -> str:
    """Send a turn of a conversation with a seed, again if the server says so; return its answer."""
    headers = {"ts_request_sequence_id": sequence, "ts_request_step": str(number + 1)}
    if token:
        headers["ts_request_sequence_token"] = token
    body = {"message": TURNS[number]} | ({} if number else {"seed": 5})

    def answered() -> requests.Response | None:
        answer = requests.post(f"{server.inference}/predictions/chat", json=body, headers=headers, timeout=DEADLINE)
        return None if "Retry-After" in answer.headers else answer

    answer = eventually(answered, "an answer")
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["text"]
    return text


@pytest.fixture(scope="module")
def undisturbed(server: RunningServer) -> list[str]:
    """The answers of a conversation that nothing happens to."""
    answers = [turn(server, "undisturbed", number) for number in range(4)]
    assert len(set(answers)) == 4
    return answers


def test_a_conversation_continues_after_its_worker_was_killed(server: RunningServer, undisturbed: list[str]) -> None:
    assert [turn(server, "a", number) for number in (0, 1)] == undisturbed[:2]
    (worker,) = server.workers()
    worker.kill()
    assert [turn(server, "a", number) for number in (2, 3)] == undisturbed[2:]


def test_a_conversation_continues_on_another_server(
    server: RunningServer, folder: Path, undisturbed: list[str]
) -> None:
    with RunningServer({"chat": folder}) as other:
        other.wait_ready()
        assert turn(other, "b", 0, "token") == undisturbed[0]
        other.kill_everything()
    assert turn(server, "b", 1, "token") == undisturbed[1]
    # A turn that is sent again gets the answer that it had.
    assert turn(server, "b", 1, "token") == undisturbed[1]


def test_openai_clients(server: RunningServer) -> None:
    client = openai.OpenAI(base_url=f"{server.inference}/v1", api_key="none", max_retries=0, timeout=DEADLINE)
    said = [{"role": "user", "content": " ".join(TURNS * 3)}]
    whole = client.chat.completions.create(model="chat", messages=said, seed=3)  # type: ignore[call-overload]
    assert whole.choices[0].finish_reason in ("stop", "length")
    chunks = list(
        client.chat.completions.create(model="chat", messages=said, seed=3, stream=True)  # type: ignore[call-overload]
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    history = [*said, {"role": "assistant", "content": text}, {"role": "user", "content": TURNS[1]}]
    longer = client.chat.completions.create(model="chat", messages=history, seed=3)  # type: ignore[call-overload]
    assert longer.usage.prompt_tokens_details.cached_tokens >= 16
    tools = [{"type": "function", "function": {"name": "look"}}]
    with pytest.raises(
        openai.BadRequestError, match="the chat template of this model has no known format of calls"
    ) as refused:
        client.chat.completions.create(model="chat", messages=said, tools=tools)  # type: ignore[call-overload]
    assert refused.value.param == "tools"


def test_a_client_that_leaves_ends_its_answer(server: RunningServer, undisturbed: list[str]) -> None:
    assert turn(server, "c", 0) == undisturbed[0]
    headers = {"ts_request_sequence_id": "c"}
    body = {"message": "remember hat=pink", "max_tokens": 3000, "temperature": 0, "stream": True}
    with requests.post(
        f"{server.inference}/predictions/chat", json=body, headers=headers, stream=True, timeout=DEADLINE
    ) as answer:
        next(answer.iter_content(1))
    # The turn does not count: the next one continues from the one before it.
    assert turn(server, "c", 1) == undisturbed[1]


def test_bad_input_is_named(server: RunningServer) -> None:
    answer = requests.post(
        f"{server.inference}/predictions/chat", json={"message": "a", "max_token": 3}, timeout=DEADLINE
    )
    assert answer.status_code == 400
    assert "max_token is not supported" in answer.text


def test_the_model_describes_itself(server: RunningServer) -> None:
    (described,) = server.describe("chat", "?customized=true")
    assert described["customizedMetadata"]["model_type"] == "llama"


def teardown_module() -> None:
    for name in [name for name in sys.modules if name.startswith("chat_")]:
        del sys.modules[name]
