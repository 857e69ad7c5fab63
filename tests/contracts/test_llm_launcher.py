"""`python -m ts.llm_launcher` and the handler vllm_handler, with a stand-in for vLLM and OpenAI's own client."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openai
import pytest
import requests
from tests.e2e.running_server import DEADLINE, eventually
from tests.e2e.workplace import Workplace

pytestmark = pytest.mark.torch
STAND_IN = Path(__file__).parent / "stand_in_vllm"
FLAGS = ("--model_id", "tiny/llm", "--disable_token_auth", "--vllm_engine.max_model_len", "64")


class Launched:
    """The launcher, running in a workplace of its own, and what it serves."""

    def __init__(self, workplace: Workplace, process: subprocess.Popen[bytes], aborted: Path) -> None:
        self.workplace = workplace
        self.process = process
        self.aborted = aborted
        self.model = f"{workplace.inference}/predictions/model/1.0"
        self.client = openai.OpenAI(base_url=f"{self.model}/v1", api_key="none", max_retries=0, timeout=DEADLINE)

    def is_ready(self) -> bool:
        assert self.process.poll() is None, (self.workplace.directory / "output").read_text()
        try:
            return requests.get(f"{self.model}/v1/models", timeout=DEADLINE).status_code == 200
        except requests.ConnectionError:
            return False


def command(*flags: str) -> list[str]:
    return [sys.executable, "-m", "ts.llm_launcher", *flags]


@contextmanager
def launched(directory: Path) -> Iterator[Launched]:
    with Workplace(directory) as workplace:
        aborted = directory / "aborted"
        environment = {**workplace.environment, "STAND_IN_VLLM_ABORTED": str(aborted)}
        environment["PYTHONPATH"] += f"{os.pathsep}{STAND_IN}"
        with (directory / "output").open("wb") as output:
            process = subprocess.Popen(
                command(*FLAGS), cwd=directory, env=environment, stdout=output, stderr=subprocess.STDOUT
            )
        try:
            running = Launched(workplace, process, aborted)
            eventually(running.is_ready, "the model is served")
            yield running
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(DEADLINE)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    with launched(tmp_path_factory.mktemp("llm")) as running:
        yield running


def test_the_flags_reach_the_engine(server: Launched) -> None:
    model, own = server.client.models.list()
    assert (model.id, own.id) == ("tiny/llm", "model")
    assert model.model_dump()["options"] == {
        "model": "tiny/llm",
        "served_model_name": ["tiny/llm", "model"],
        "max_num_seqs": 256,
        "max_model_len": 64,
        "tensor_parallel_size": 1,
    }


def test_openais_client_gets_completions(server: Launched) -> None:
    completion = server.client.completions.create(model="tiny/llm", prompt="one two")
    assert completion.choices[0].text == "one two "
    messages = [{"role": "user", "content": "three four"}]
    chat = server.client.chat.completions.create(model="tiny/llm", messages=messages)
    assert chat.choices[0].message.content == "three four "


def test_openais_own_paths_are_served_without_further_configuration(server: Launched) -> None:
    client = openai.OpenAI(base_url=f"{server.workplace.inference}/v1", api_key="none", max_retries=0, timeout=DEADLINE)
    assert client.completions.create(model="tiny/llm", prompt="one two").choices[0].text == "one two "
    assert [model.id for model in client.models.list()] == ["model", "tiny/llm"]
    with pytest.raises(openai.NotFoundError, match="The model 'other' does not exist"):
        client.completions.create(model="other", prompt="one")


def test_openais_client_streams(server: Launched) -> None:
    parts = server.client.completions.create(model="tiny/llm", prompt="one two three", stream=True)
    assert [part.choices[0].text for part in parts] == ["one ", "two ", "three "]
    messages = [{"role": "user", "content": "four five"}]
    chat = server.client.chat.completions.create(model="tiny/llm", messages=messages, stream=True)
    assert [part.choices[0].delta.content for part in chat] == ["four ", "five "]


def test_a_response_goes_on_from_an_earlier_one(server: Launched) -> None:
    client = openai.OpenAI(base_url=f"{server.workplace.inference}/v1", api_key="none", max_retries=0, timeout=DEADLINE)
    first = client.responses.create(model="tiny/llm", input="one")
    assert first.output_text == "one "
    second = client.responses.create(model="tiny/llm", input="two", previous_response_id=first.id)
    assert second.output_text.split() == ["one", "one", "two"]
    with client.responses.stream(model="tiny/llm", input="three", previous_response_id=first.id) as stream:
        parts = [event.delta for event in stream if event.type == "response.output_text.delta"]
    assert parts == ["one ", "one ", "three "]


def test_a_conversation_keeps_what_was_said(server: Launched) -> None:
    client = openai.OpenAI(base_url=f"{server.workplace.inference}/v1", api_key="none", max_retries=0, timeout=DEADLINE)
    conversation = client.conversations.create(extra_body={"model": "tiny/llm"})
    for word, said in (("one", "one"), ("two", "one one two")):
        response = client.responses.create(model="tiny/llm", input=word, conversation=conversation.id)
        assert response.output_text.split() == said.split()
    assert len(client.conversations.items.list(conversation.id).data) == 4
    client.conversations.delete(conversation.id)
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(conversation.id)


def test_a_completion_leaves_no_sequence_behind(server: Launched) -> None:
    def open_sequences() -> int:
        (described,) = requests.get(f"{server.workplace.management}/models/model", timeout=DEADLINE).json()
        return int(described["openSequences"])

    before = open_sequences()
    messages = [{"role": "user", "content": "three four"}]
    for stream in (False, True):
        done = server.client.chat.completions.create(model="tiny/llm", messages=messages, stream=stream)
        assert not stream or len(list(done)) == 2
    eventually(lambda: open_sequences() == before, "the sequences of both are closed")


def test_a_client_that_leaves_a_stream_ends_its_generation(server: Launched) -> None:
    server.aborted.unlink(missing_ok=True)
    with server.client.completions.create(model="tiny/llm", prompt="then wait", stream=True) as parts:
        first = next(iter(parts))
    eventually(server.aborted.exists, "the generation is cancelled")
    eventually(lambda: server.aborted.read_text() == first.id, "it is the one of the client that left")


def test_what_vllm_refuses_is_told_with_its_status_and_text(server: Launched) -> None:
    with pytest.raises(openai.NotFoundError, match="The model `other` does not exist"):
        server.client.completions.create(model="other", prompt="one")


def test_paths_outside_of_openais_api_are_not_handed_on(server: Launched) -> None:
    refused = requests.post(f"{server.model}/docs", json={}, timeout=DEADLINE)
    assert refused.status_code == 404
    assert "Unknown API endpoint: docs" in refused.text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_server_and_removes_the_model(tmp_path: Path, number: signal.Signals) -> None:
    with launched(tmp_path) as running:
        folder = tmp_path / "model_store" / "model"
        assert json.loads((folder / "MAR-INF" / "MANIFEST.json").read_text())["model"]["handler"] == "vllm_handler"
        running.process.send_signal(number)
        assert running.process.wait(DEADLINE) == 0
        assert not folder.exists()
        assert running.workplace.ports_are_free()


def run(directory: Path, *flags: str, vllm: bool = True) -> tuple[int, str]:
    """Run the launcher, which is to end by itself, and return its exit code and output."""
    with Workplace(directory) as workplace:
        environment = dict(workplace.environment)
        if vllm:
            environment["PYTHONPATH"] += f"{os.pathsep}{STAND_IN}"
        done = subprocess.run(
            command(*flags),
            cwd=directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
    return done.returncode, done.stderr


def test_without_vllm_the_launcher_says_how_to_get_it(tmp_path: Path) -> None:
    assert run(tmp_path, *FLAGS, vllm=False) == (2, "The package vllm is not installed: pip install vllm\n")


def test_an_engine_that_is_not_run_here_is_refused(tmp_path: Path) -> None:
    code, said = run(tmp_path, "--engine", "trt_llm", "--trt_llm_engine.max_batch_size", "8")
    assert (code, said.partition(";")[0]) == (2, "--engine is trt_llm")


def test_a_folder_of_somebody_else_is_not_touched(tmp_path: Path) -> None:
    with Workplace(tmp_path) as workplace:
        mine = tmp_path / "model_store" / "model" / "weights.bin"
        mine.parent.mkdir()
        mine.write_text("mine")
        environment = {**workplace.environment, "PYTHONPATH": f"{workplace.environment['PYTHONPATH']}:{STAND_IN}"}
        done = subprocess.run(
            command(), cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=DEADLINE, check=False
        )
        assert done.returncode == 1
        assert done.stderr == "model_store/model exists already: remove it, or choose another --model_name.\n"
        assert mine.read_text() == "mine"
