"""handlers/chat in a real server, for OpenAI's client: tools, structured output, log probabilities, several answers."""

import json
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai import BadRequestError, OpenAI
from pydantic import BaseModel
from tests.e2e.running_server import DEADLINE, RunningServer

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("llguidance")
pytestmark = pytest.mark.torch

WEATHER = {
    "name": "get_weather",
    "description": "The weather in a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
TOOLS: Any = [{"type": "function", "function": WEATHER}]
QUESTION: Any = [{"role": "user", "content": "How is the weather?"}]
ARGUMENTS = {"city": "Paris"}


class Person(BaseModel):
    name: str
    age: int


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    from tests.contracts.scripted_chat import make_folder

    with RunningServer({"chat": make_folder(tmp_path_factory.mktemp("scripted"))}) as server:
        server.wait_ready()
        yield OpenAI(base_url=f"{server.inference}/v1", api_key="none", max_retries=0, timeout=DEADLINE)


def chat(client: OpenAI, messages: Any = QUESTION, **options: Any) -> Any:
    return client.chat.completions.create(model="chat", messages=messages, **options)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"parallel_tool_calls": False},
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "get_weather"}}},
        {"tools": [{"type": "function", "function": WEATHER | {"strict": True}}]},
    ],
)
def test_a_tool_is_called_and_its_result_is_read(client: OpenAI, options: dict[str, Any]) -> None:
    first = chat(client, **({"tools": TOOLS} | options)).choices[0]
    assert (first.finish_reason, first.message.content) == ("tool_calls", None)
    (call,) = first.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", ARGUMENTS)
    result = {"role": "tool", "tool_call_id": call.id, "content": "21 degrees"}
    last = chat(client, [*QUESTION, first.message, result], tools=TOOLS).choices[0]
    assert (last.finish_reason, last.message.content) == ("stop", "It is 21 degrees in Paris.")


def test_a_call_comes_in_deltas(client: OpenAI) -> None:
    with client.chat.completions.stream(model="chat", messages=QUESTION, tools=TOOLS) as stream:
        kinds = [event.type for event in stream]
        whole = stream.get_final_completion().choices[0]
    assert kinds.count("tool_calls.function.arguments.delta") > 3
    assert json.loads(whole.message.tool_calls[0].function.arguments) == ARGUMENTS  # type: ignore[index]
    assert whole.finish_reason == "tool_calls"


def test_without_tools_or_with_none_of_them_text_is_text(client: OpenAI) -> None:
    answer = chat(client, tools=TOOLS, tool_choice="none").choices[0]
    assert (answer.message.content, answer.message.tool_calls) == ("Hello there.", None)


@pytest.mark.parametrize("question", ["Extract: Ada is 36.", "Say hello."])
def test_an_answer_fits_its_schema_whatever_the_model_says(client: OpenAI, question: str) -> None:
    asked: Any = [{"role": "user", "content": question}]
    answer = client.chat.completions.parse(
        model="chat", messages=asked, response_format=Person, temperature=1.0, seed=5, logit_bias={}, max_tokens=2000
    )
    found = answer.choices[0].message.parsed
    assert isinstance(found, Person)
    assert question.startswith("Say") or found == Person(name="Ada", age=36)


def test_regular_expressions_and_choices(client: OpenAI) -> None:
    for structured, accepted in (({"regex": "[0-9]{3}-x"}, None), ({"choice": ["yes", "no"]}, ("yes", "no"))):
        text = chat(client, extra_body={"structured_outputs": structured}).choices[0].message.content
        assert text in accepted if accepted else text[3:] == "-x"
    with pytest.raises(BadRequestError, match="structured_outputs cannot be followed"):
        chat(client, extra_body={"structured_outputs": {"regex": "(["}})


def test_log_probabilities(client: OpenAI) -> None:
    answer = chat(client, [{"role": "user", "content": "hi"}], logprobs=True, top_logprobs=2, max_tokens=5).choices[0]
    tokens = answer.logprobs.content
    assert "".join(token.token for token in tokens) == answer.message.content == "Hello"
    assert all(token.logprob > -0.01 and token.top_logprobs[0].token == token.token for token in tokens)
    assert len(tokens[0].top_logprobs) == 2
    chunks = chat(client, logprobs=True, max_tokens=5, stream=True)
    likely = [each for chunk in chunks for each in getattr(chunk.choices[0].logprobs, "content", ())]
    assert "".join(token.token for token in likely) == "Hello"


THINK: Any = [{"role": "user", "content": "Please think about it."}]
THOUGHT = "Let me see."


def test_a_thought_is_kept_apart_from_the_answer(client: OpenAI) -> None:
    whole = chat(client, THINK)
    message = whole.choices[0].message
    assert (message.reasoning, message.reasoning_content, message.content) == (THOUGHT, THOUGHT, "Hello there.")
    tokens = len("<>") + len(f"\n{THOUGHT}\n")
    assert whole.usage.completion_tokens_details.reasoning_tokens == tokens
    assert whole.usage.completion_tokens == tokens + len("\n\nHello there.") + 1
    assert chat(client).usage.completion_tokens_details.reasoning_tokens == 0
    hidden = chat(client, THINK, extra_body={"include_reasoning": False}).choices[0].message
    assert (hidden.content, hidden.model_extra) == ("Hello there.", {})


def test_a_thought_is_streamed_before_the_answer(client: OpenAI) -> None:
    deltas = [chunk.choices[0].delta for chunk in chat(client, THINK, stream=True)]
    kinds = ["reasoning" if "reasoning" in delta.model_extra else "content" for delta in deltas]
    assert "".join(delta.reasoning for delta in deltas if "reasoning" in delta.model_extra) == THOUGHT
    assert "".join(delta.content or "" for delta in deltas) == "Hello there."
    assert kinds.index("reasoning") < len(kinds) - 1 - kinds[::-1].index("reasoning") < kinds.index("content", 2)


def test_a_client_can_forbid_to_think(client: OpenAI) -> None:
    for asked in ({"chat_template_kwargs": {"enable_thinking": False}}, {"reasoning_effort": "none"}):
        answer = chat(client, THINK, extra_body=asked)
        assert (answer.choices[0].message.content, answer.choices[0].message.model_extra) == ("Hello there.", {})
        assert answer.usage.completion_tokens_details.reasoning_tokens == 0
    with pytest.raises(BadRequestError, match="reasoning_effort is 5") as refused:
        chat(client, THINK, extra_body={"reasoning_effort": 5})
    assert refused.value.param == "reasoning_effort"


def test_a_schema_holds_after_a_thought(client: OpenAI) -> None:
    asked: Any = [{"role": "user", "content": "think, then Extract: Ada is 36."}]
    for messages, thought in ((asked, THOUGHT), ([{"role": "user", "content": "Extract: Ada is 36."}], None)):
        answer = client.chat.completions.parse(model="chat", messages=messages, response_format=Person)
        message = answer.choices[0].message
        assert message.parsed == Person(name="Ada", age=36)
        assert (message.model_extra or {}).get("reasoning") == thought


def test_a_tool_is_called_after_a_thought(client: OpenAI) -> None:
    asked: Any = [{"role": "user", "content": "think: how is the weather?"}]
    first = chat(client, asked, tools=TOOLS).choices[0]
    assert (first.finish_reason, first.message.content, first.message.reasoning) == ("tool_calls", None, THOUGHT)
    (call,) = first.message.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": "21 degrees"}
    last = chat(client, [*asked, first.message, result], tools=TOOLS).choices[0].message
    assert last.content == "It is 21 degrees in Paris. As I thought."


def test_log_probabilities_are_of_the_answer_and_stops_end_it(client: OpenAI) -> None:
    answer = chat(client, THINK, logprobs=True, stop=["see", "there"]).choices[0]
    assert (answer.message.reasoning, answer.message.content, answer.finish_reason) == (THOUGHT, "Hello ", "stop")
    assert "".join(token.token for token in answer.logprobs.content).strip() == "Hello there"


def test_a_limit_can_come_before_the_answer(client: OpenAI) -> None:
    answer = chat(client, THINK, max_tokens=8).choices[0]
    assert (answer.message.reasoning, answer.message.content, answer.finish_reason) == ("Let me", None, "length")


def test_responses_have_thoughts_as_items(client: OpenAI) -> None:
    first = client.responses.create(model="chat", input="Please think about it.")
    kinds = [item.type for item in first.output]
    assert (kinds, first.output_text) == (["reasoning", "message"], "Hello there.")
    assert first.output[0].content[0].text == THOUGHT  # type: ignore[union-attr,index]
    assert first.usage is not None
    assert first.usage.output_tokens_details.reasoning_tokens > 0
    with client.responses.stream(model="chat", input="Please think about it.") as stream:
        events = [event.type for event in stream]
    parts = [event for event in dict.fromkeys(events) if "text" in event]
    assert parts == [f"response.{kind}_text.{what}" for kind in ("reasoning", "output") for what in ("delta", "done")]
    tools: Any = [{"type": "function", **WEATHER}]
    asked = client.responses.create(model="chat", input="think: how is the weather?", tools=tools)
    assert [item.type for item in asked.output] == ["reasoning", "function_call"]
    result: Any = {"type": "function_call_output", "call_id": asked.output[1].call_id, "output": "21 degrees"}  # type: ignore[union-attr]
    last = client.responses.create(model="chat", input=[result], tools=tools, previous_response_id=asked.id)
    assert last.output_text == "It is 21 degrees in Paris. As I thought."
    quiet = client.responses.create(model="chat", input="Please think about it.", reasoning={"effort": "none"})
    assert [item.type for item in quiet.output] == ["message"]


def test_a_thought_that_was_cut_off_belongs_to_no_later_answer(client: OpenAI) -> None:
    cut = client.responses.create(model="chat", input="Please think about it.", max_output_tokens=14)
    assert (cut.status, [item.type for item in cut.output]) == ("incomplete", ["reasoning"])
    tools: Any = [{"type": "function", **WEATHER}]
    asked = client.responses.create(model="chat", input="How is the weather?", tools=tools, previous_response_id=cut.id)
    result: Any = {"type": "function_call_output", "call_id": asked.output[0].call_id, "output": "21 degrees"}  # type: ignore[union-attr]
    last = client.responses.create(model="chat", input=[result], tools=tools, previous_response_id=asked.id)
    assert last.output_text == "It is 21 degrees in Paris."


def test_a_conversation_of_the_servers_own_keeps_thoughts_apart(client: OpenAI) -> None:
    url, sequence = str(client.base_url).replace("/v1/", "/predictions/chat"), {"ts_request_sequence_id": "own"}
    answer = httpx.post(url, json={"message": "think"}, headers=sequence).json()
    assert (answer["text"], answer["reasoning"]) == ("Hello there.", THOUGHT)
    text = {"content-type": "text/plain"} | sequence
    assert httpx.post(url, content="Please think.", headers=text).text == "Hello there. As I thought."


def test_several_answers(client: OpenAI) -> None:
    whole = chat(client, n=3, temperature=2.0, seed=1, logit_bias={"5": 29, "6": 29})
    texts = [choice.message.content for choice in whole.choices]
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    assert len(set(texts)) > 1
    assert whole.usage.prompt_tokens == chat(client).usage.prompt_tokens
    streamed: dict[int, str] = dict.fromkeys(range(3), "")
    for chunk in chat(client, n=3, temperature=2.0, seed=1, logit_bias={"5": 29, "6": 29}, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert list(streamed.values()) == texts


def test_a_bias_and_penalties_change_what_is_said(client: OpenAI) -> None:
    (letter,) = chat(client, logprobs=True, max_tokens=1, top_logprobs=1).choices[0].logprobs.content
    assert letter.token == "H"
    bias = {str(number): 100 for number in (3,)}
    assert set(chat(client, logit_bias=bias, max_tokens=4).choices[0].message.content) == {"$"}
    # A penalty takes away what the bias has given, once it was said.
    first = chat(client, logit_bias={"3": 31}, presence_penalty=2, max_tokens=4).choices[0].message.content
    assert first[0] == "$"
    assert first[1] != "$"


def test_completions_of_prompts(client: OpenAI) -> None:
    one = client.completions.create(
        model="chat", prompt="Once", max_tokens=4, logprobs=1, extra_body={"ignore_eos": True}
    )
    assert (one.object, one.usage.completion_tokens) == ("text_completion", 4)  # type: ignore[union-attr]
    assert len(one.choices[0].logprobs.tokens) == 4  # type: ignore[union-attr,arg-type]
    prompts = ["<|im_start|>assistant\n", [65, 66]]
    many = client.completions.create(model="chat", prompt=prompts, n=2, max_tokens=8)  # type: ignore[arg-type]
    assert [choice.index for choice in many.choices] == [0, 1, 2, 3]
    events = list(
        client.completions.create(model="chat", prompt="Once", stream=True, stream_options={"include_usage": True})
    )
    assert events[-1].usage is not None


def test_fields_that_cannot_change_the_answer_are_ignored_and_others_named(client: OpenAI) -> None:
    plain: Any = {
        "min_p": 0,
        "top_k": -1,
        "ignore_eos": False,
        "cache_salt": "a",
        "prediction": {},
        "length_penalty": 1,
    }
    assert chat(client, user="me", store=True, extra_body=plain).choices[0].message.content == "Hello there."
    with pytest.raises(BadRequestError, match="length_penalty is not supported") as refused:
        chat(client, extra_body={"length_penalty": 0.5})
    assert refused.value.param == "length_penalty"


def teardown_module() -> None:
    for name in [name for name in sys.modules if name.startswith("chat_")]:
        del sys.modules[name]
