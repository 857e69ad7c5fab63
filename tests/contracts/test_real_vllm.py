"""`vllm_handler` with vLLM itself, on the host, behind a real server: `scripts/test-engines` installs it and runs this.

The model has random weights, so it says nothing in particular: what it is forced to say has a meaning.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import BadRequestError, OpenAI
from tests.e2e.running_server import DEADLINE, RunningServer

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
  vllm_engine_config:
    max_model_len: 2048
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


def make_folder(folder: Path) -> Path:
    from tests.contracts.scripted_chat import byte_tokenizer

    words = byte_tokenizer()
    words.add_tokens(["<think>", "</think>", "<tool_call>", "</tool_call>"])
    words.save_pretrained(folder / "model")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(words),
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=2048,
        eos_token_id=words.eos_token_id,
        bos_token_id=None,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder / "model")
    (folder / "model-config.yaml").write_text(CONFIG)
    (folder / "MAR-INF").mkdir()
    about = {"modelName": "mine", "modelVersion": "1.0", "handler": "vllm_handler", "configFile": "model-config.yaml"}
    (folder / "MAR-INF" / "MANIFEST.json").write_text(json.dumps({"model": about}))
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = make_folder(tmp_path_factory.mktemp("vllm"))
    with RunningServer({"mine": folder}, environment=ENVIRONMENT).started_by(
        os.environ["TS_VLLM_PYTHON"], "-m", "torchserve_py.cli"
    ) as server:
        server.wait_ready()
        yield server


@pytest.fixture(scope="module")
def client(server: RunningServer) -> OpenAI:
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
