"""`vllm_handler` with vLLM itself, on the host, behind a real server: `scripts/test-engines` installs it and runs this.

The model has random weights, so it says nothing in particular: what it is forced to say has a meaning.
"""

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from openai import BadRequestError, OpenAI
from tests.e2e.running_server import DEADLINE, RunningServer

from ts.apis.openai.completion_chunks import ChunkReader, Piece, Replay, merged

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.timeout(900),
    pytest.mark.skipif("TS_VLLM_PYTHON" not in os.environ, reason="TS_VLLM_PYTHON names no interpreter with vLLM"),
]

#: A head of its attention needs a size of 32 or more on the host.
CONFIG = """
minWorkers: 1
maxWorkers: 1
asyncCommunication: true
sequenceBatching: true
sequenceMaxIdleMSec: 600000
maxNumSequence: 100
startupTimeout: 800
responseTimeout: 300
handler:
  model_path: model
  cache: {store: file, path: "%s", lease: 2}
  vllm_engine_config:
    max_model_len: 8192
    max_num_seqs: 4
    enforce_eager: true
    dtype: float32
    gpu_memory_utilization: 0.3
    reasoning_parser: qwen3
    enable_auto_tool_choice: true
    tool_call_parser: hermes
"""
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
CITIES = ["Paris", "Rome"]
WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "strict": True,  # else vLLM lets the arguments be any JSON
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": CITIES}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
NO_THOUGHT = {"chat_template_kwargs": {"enable_thinking": False}}
#: Has the model repeat one letter.
LETTER = {"logit_bias": {"35": 100}}
#: A generation in the background, as the handler asks vLLM for it.
ASKED: dict[str, Any] = {
    "model": "mine",
    "messages": [{"role": "user", "content": "What do you see?"}],
    "stream": True,
    "stream_options": {"include_usage": True},
    "return_token_ids": True,
    "temperature": 0,
    "max_tokens": 24,
    "ignore_eos": True,
    **NO_THOUGHT,
}
PROGRAM = Path(__file__).with_name("continued_generations.py")


def make_folder(folder: Path) -> Path:
    from tests.contracts.scripted_chat import byte_tokenizer

    words = byte_tokenizer()
    words.add_tokens(["<think>", "</think>", "<tool_call>", "</tool_call>"])
    words.save_pretrained(folder / "model")
    torch.manual_seed(0)
    # With weights this large, the likeliest token is far from the next one: it is the same in batches of any size.
    config = transformers.LlamaConfig(
        initializer_range=0.5,
        vocab_size=len(words),
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=8192,
        eos_token_id=words.eos_token_id,
        bos_token_id=None,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder / "model")
    (folder / "model-config.yaml").write_text(CONFIG % (folder / "store.db"))
    (folder / "MAR-INF").mkdir()
    about = {"modelName": "mine", "modelVersion": "1.0", "handler": "vllm_handler", "configFile": "model-config.yaml"}
    (folder / "MAR-INF" / "MANIFEST.json").write_text(json.dumps({"model": about}))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("vllm"))


@contextmanager
def running(folder: Path) -> Iterator[RunningServer]:
    program = (os.environ["TS_VLLM_PYTHON"], "-m", "torchserve_py.cli")
    with RunningServer({"mine": folder}, environment=ENVIRONMENT).started_by(*program) as server:
        server.wait_ready()
        yield server


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RunningServer]:
    with running(folder) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: RunningServer) -> OpenAI:
    return client_of(server)


def client_of(server: RunningServer) -> OpenAI:
    return OpenAI(base_url=f"{server.inference}/v1", api_key="none", max_retries=0, timeout=DEADLINE)


def chat(client: OpenAI, **options: Any) -> Any:
    messages: Any = [{"role": "user", "content": "How are you?"}]
    return client.chat.completions.create(model="mine", messages=messages, **{"max_tokens": 8} | options)


def respond(client: OpenAI, **options: Any) -> Any:
    return client.responses.create(model="mine", max_output_tokens=8, extra_body={**NO_THOUGHT, **LETTER}, **options)


def test_it_answers_to_the_name_of_the_model(client: OpenAI) -> None:
    assert "mine" in [model.id for model in client.models.list()]
    whole = chat(client, extra_body={**NO_THOUGHT, **LETTER})
    assert (whole.choices[0].finish_reason, whole.usage.completion_tokens) == ("length", 8)
    completion = client.completions.create(model="mine", prompt="Once", max_tokens=4, extra_body=LETTER)
    assert len(set(completion.choices[0].text)) == 1
    with pytest.raises(BadRequestError, match="max_tokens"):
        chat(client, max_tokens=-1)


def test_a_stream_says_the_same_in_parts(client: OpenAI) -> None:
    (letter,) = set(chat(client, extra_body={**NO_THOUGHT, **LETTER}).choices[0].message.content)
    parts = chat(client, extra_body={**NO_THOUGHT, **LETTER}, stream=True)
    texts = [part.choices[0].delta.content for part in parts]
    assert [text for text in texts if text] == [letter] * 8


def test_reasoning_is_apart_from_the_answer(client: OpenAI) -> None:
    message = chat(client, extra_body=LETTER).choices[0].message
    assert (len(message.reasoning), message.content) == (8, None)
    response = client.responses.create(model="mine", input="How are you?", max_output_tokens=8, extra_body=LETTER)
    assert [item.type for item in response.output] == ["reasoning"]
    assert response.output[0].content[0].text == message.reasoning  # type: ignore[union-attr,index]
    assert response.status == "incomplete"


def test_a_response_is_continued(client: OpenAI) -> None:
    first = respond(client, input="one")
    *_, delta, _, _, _, last = respond(client, input="two", previous_response_id=first.id, stream=True)
    assert (delta.type, last.type) == ("response.output_text.delta", "response.incomplete")
    assert last.response.output_text == first.output_text
    assert last.response.usage.input_tokens > first.usage.total_tokens
    items = client.responses.input_items.list(last.response.id, order="asc").data
    assert [item.role for item in items] == ["user", "assistant", "user"]  # type: ignore[union-attr]


@pytest.mark.parametrize("streams", [False, True])
def test_a_response_calls_a_tool_and_reads_its_result(client: OpenAI, streams: bool) -> None:
    asked: Any = {
        "model": "mine",
        "input": "How is the weather?",
        "tools": [{"type": "function", **WEATHER}],
        "tool_choice": {"type": "function", "name": "get_weather"},
        "max_output_tokens": 200,
        "extra_body": NO_THOUGHT,
    }
    first: Any = client.responses.create(**asked, stream=streams)
    if streams:
        events = list(first)
        assert [event.type for event in events].count("response.function_call_arguments.delta") > 1
        first = events[-1].response
    (call,) = [item for item in first.output if item.type == "function_call"]
    assert (call.name, json.loads(call.arguments)["city"] in CITIES) == ("get_weather", True)
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "21 degrees"}
    last = respond(client, input=[result], previous_response_id=first.id)
    assert [item.type for item in last.output] == ["message"]


def test_an_answer_fits_its_schema(client: OpenAI) -> None:
    schema = {"name": "weather", "schema": WEATHER["parameters"], "strict": True}
    answer = chat(
        client,
        max_tokens=200,
        response_format={"type": "json_schema", "json_schema": schema},
        extra_body=NO_THOUGHT,
    )
    assert json.loads(answer.choices[0].message.content)["city"] in CITIES


# A generation that broke off


class Generations:
    """`continued_generations.py`, which vLLM's interpreter runs."""

    def __init__(self, folder: Path) -> None:
        engine = {**yaml.safe_load(CONFIG)["handler"]["vllm_engine_config"], "model": str(folder / "model")}
        self.words = transformers.AutoTokenizer.from_pretrained(folder / "model")
        self.process = subprocess.Popen(
            [os.environ["TS_VLLM_PYTHON"], PROGRAM, json.dumps({"vllm_engine_config": engine})],
            env={**os.environ, **ENVIRONMENT},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def streams(self, every: int = 0, tokens: Sequence[int] = (), **body: Any) -> dict[int, str]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{json.dumps([ASKED | body, every, tokens])}\n")
        self.process.stdin.flush()
        return {int(place): text for place, text in json.loads(self.process.stdout.readline()).items()}

    def check(self, every: int = 5, **body: Any) -> list[Piece]:
        """Check that a generation continues from some of its tokens; return its pieces."""
        streams = self.streams(every, **body)
        whole = Stream(streams.pop(0))
        assert len(streams) > 1
        for place, text in streams.items():
            pieces, again = whole.until(place), Stream(text)
            replay = Replay(pieces)
            rest = [new for piece in again.until(len(again.tokens)) if (new := replay.rest(piece)) is not None]
            assert merged([*pieces, *rest]) == merged(whole.until(len(whole.tokens)))
            assert (again.tokens, again.reason, again.used) == (whole.tokens, whole.reason, whole.used)
        return merged(whole.until(len(whole.tokens)))


class Stream(ChunkReader):
    """What a stream of a chat completion says."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._parts = [(self.read(f"{event}\n\n"), len(self.tokens)) for event in text.split("\n\n")]
        assert self.usage is not None
        self.used = (self.usage["prompt_tokens"], self.usage["completion_tokens"])

    def until(self, count: int) -> list[Piece]:
        """Return the pieces that had come with so many tokens."""
        return [piece for pieces, tokens in self._parts if tokens <= count for piece in pieces]


@pytest.fixture(scope="module")
def generations(folder: Path) -> Iterator[Generations]:
    made = Generations(folder)
    with made.process as process:
        yield made
        assert process.stdin is not None
        process.stdin.close()


@pytest.mark.parametrize(
    "more",
    [
        {},
        # Each token is a letter: Responses keep no log probability of one without text, such as half a letter.
        {"logprobs": True, "top_logprobs": 2, "allowed_token_ids": [*range(32, 58)]},
        {"repetition_penalty": 1.3},
        {"frequency_penalty": 1.5, "presence_penalty": 0.5},
        {"ignore_eos": False, "min_tokens": 9, "logit_bias": {"188": 8}},
        {"chat_template_kwargs": {}},
    ],
    ids=["plain", "logprobs", "repetition", "penalties", "least", "thought"],
)
def test_a_generation_continues(generations: Generations, more: dict[str, Any]) -> None:
    (piece,) = generations.check(**more)
    assert bool(piece.get("logprobs")) == ("logprobs" in more)
    assert ("reasoning" in piece) == ("chat_template_kwargs" in more)


@pytest.mark.parametrize("more", [{}, {"include_stop_str_in_output": True}], ids=["plain", "included"])
def test_a_stop_string_may_begin_before_and_end_behind_the_border(
    generations: Generations, more: dict[str, Any]
) -> None:
    letters = {"allowed_token_ids": [*range(32, 58)]}
    (piece,) = generations.check(24, **letters)
    text = piece["content"]
    place = next(at for at in range(8, 20) if text.find(text[at : at + 4]) == at)
    stop = text[place : place + 4]
    (stopped,) = generations.check(1, stop=[stop], **letters, **more)
    assert stopped["content"] == text[:place] + (stop if more else "")


def test_drawn_text_goes_on_behind_what_was_drawn(generations: Generations) -> None:
    streams = generations.streams(5, temperature=1, seed=5)
    whole = Stream(streams.pop(0))
    for place, text in streams.items():
        again = Stream(text)
        assert again.tokens[:place] == whole.tokens[:place]
        assert again.used == whole.used


def test_calls_are_read_of_tokens_that_were_committed(generations: Generations) -> None:
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call><|im_end|>'
    tokens = generations.words.encode(call, add_special_tokens=False)
    tools = [{"type": "function", "function": WEATHER | {"strict": False}}]
    for end in (len(tokens), len(tokens) - 1):  # the last one ends the answer
        (text,) = generations.streams(tokens=tokens[:end], tools=tools, max_tokens=200, ignore_eos=False).values()
        (piece, *_) = merged(Stream(text).until(len(tokens)))
        function = piece["tool_calls"][0]["function"]
        assert (function["name"], json.loads(function["arguments"])) == ("get_weather", {"city": "Paris"})
        assert end < len(tokens) or Stream(text).reason == "tool_calls"


def test_a_background_response_outlives_its_worker_and_its_server(
    folder: Path, server: RunningServer, client: OpenAI
) -> None:
    asked: Any = {"model": "mine", "input": "What do you see?", "max_output_tokens": 1500, "temperature": 0}
    asked |= {"extra_body": {**NO_THOUGHT, "ignore_eos": True}, "background": True, "stream": True}
    *_, whole = client.responses.create(**asked)
    seen: list[Any] = []
    for event in client.responses.create(**asked):
        seen.append(event)
        if event.sequence_number == 5:
            for worker in server.workers():
                worker.kill()
        elif event.sequence_number == 12:  # the next worker has made it
            break
    server.server.kill()
    server.kill_everything()
    with running(folder) as second:
        name, last = seen[0].response.id, seen[-1].sequence_number
        seen += client_of(second).responses.retrieve(name, stream=True, starting_after=last)
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    said = "".join(event.delta for event in seen if event.type == "response.output_text.delta")
    assert said == seen[-1].response.output_text == whole.response.output_text
    assert seen[-1].response.usage == whole.response.usage
