"""What agents need of Responses, with OpenAI's client: tools and their outputs, structured answers and thoughts."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import BaseModel
from tests.apis.openai import scripted_model
from tests.e2e.running_server import DEADLINE, RunningServer

CONFIG = """
minWorkers: 1
maxWorkers: 1
openai: true
sequenceBatching: true
sequenceMaxIdleMSec: 600000
maxNumSequence: 100
"""
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": True,
}


class City(BaseModel):
    city: str


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    folder = tmp_path_factory.mktemp("models") / "agent"
    folder.mkdir()
    (folder / "handler.py").write_text(Path(scripted_model.__file__).read_text())
    (folder / "model-config.yaml").write_text(CONFIG)
    with RunningServer({"agent": folder}) as running:
        running.wait_ready()
        yield openai.OpenAI(base_url=f"{running.inference}/v1", api_key="none", max_retries=0, timeout=DEADLINE)


def create(client: openai.OpenAI, **asked: Any) -> Any:
    return client.responses.create(**{"model": "agent", "input": "a"} | asked)


def told(response: Any) -> Any:
    """Return the messages that the model got, which it has repeated."""
    return json.loads(response.output_text)


def test_a_tool_is_called_and_answers(client: openai.OpenAI) -> None:
    first = create(client, tools=[WEATHER], parallel_tool_calls=False)
    (call,) = first.output
    assert (call.type, call.name, call.arguments, call.status) == (
        *("function_call", "get_weather", '{"city": "Rome"}', "completed"),
    )
    assert (first.output_text, first.parallel_tool_calls, first.tools[0].name) == ("", False, "get_weather")
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    second = create(client, input=[output], previous_response_id=first.id, tools=[WEATHER])
    assert second.output_text == "The tool said sunny."
    third = create(client, input="b", previous_response_id=second.id, tools=[WEATHER], tool_choice="none")
    calls = [{"id": "call_1", "type": "function", "function": {"name": call.name, "arguments": call.arguments}}]
    assert told(third) == [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
        {"role": "assistant", "content": "The tool said sunny."},
        {"role": "user", "content": "b"},
    ]
    given = client.responses.input_items.list(third.id, order="asc").data
    assert [item.type for item in given[:3]] == ["message", "function_call", "function_call_output"]
    whole = [{"role": "user", "content": "a"}, *(each.model_dump() for each in first.output), output]
    assert create(client, input=whole, store=False).output_text == "The tool said sunny."


def test_events_of_a_call(client: openai.OpenAI) -> None:
    with client.responses.stream(model="agent", input="a", tools=[WEATHER]) as stream:  # type: ignore[list-item]
        events = list(stream)
        final = stream.get_final_response()
    assert [event.type for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert final.output[0].arguments == '{"city": "Rome"}'  # type: ignore[union-attr]


def test_a_structured_answer(client: openai.OpenAI) -> None:
    parsed = client.responses.parse(model="agent", input="a", text_format=City)
    assert parsed.output_parsed == City(city="Rome")
    assert parsed.text is not None
    assert parsed.text.format is not None
    assert parsed.text.format.type == "json_schema"


def test_thoughts_come_before_the_answer_and_stay_in_the_history(client: openai.OpenAI) -> None:
    with client.responses.stream(model="agent", input="think", reasoning={"effort": "low"}) as stream:
        kinds = [event.type for event in stream]
        first = stream.get_final_response()
    assert kinds.index("response.reasoning_text.delta") < kinds.index("response.output_text.delta")
    assert [item.type for item in first.output] == ["reasoning", "message"]
    assert first.output[0].content[0].text == "I think."  # type: ignore[union-attr, index]
    assert first.reasoning is not None
    assert first.reasoning.effort == "low"
    second = create(client, input="b", previous_response_id=first.id)
    assert told(second)[1] == {"role": "assistant", "content": first.output_text, "reasoning": "I think."}


def test_images_and_the_tools_that_are_allowed(client: openai.OpenAI) -> None:
    parts = [{"type": "input_text", "text": "what"}, {"type": "input_image", "image_url": "data:image/png;base64,AA=="}]
    seen = told(create(client, input=[{"role": "user", "content": parts}]))
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "auto"}}
    assert seen == [{"role": "user", "content": [{"type": "text", "text": "what"}, image]}]
    other = WEATHER | {"name": "other"}
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "other"}]}
    assert create(client, tools=[WEATHER, other], tool_choice=allowed).output[0].name == "other"


def test_a_namespace_of_tools_and_tools_that_the_server_does_not_have(client: openai.OpenAI) -> None:
    space = {"type": "namespace", "name": "web", "description": "", "tools": [WEATHER]}
    first = create(client, tools=[space, {"type": "web_search"}])
    assert [tool.type for tool in first.tools] == ["namespace"], "what the model does not get is not in the response"
    call = first.output[0]
    assert (call.name, call.namespace) == ("get_weather", "web")
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    asked = {"input": [call.model_dump(), output, {"role": "user", "content": "b"}], "tool_choice": "none"}
    called = told(create(client, tools=[space], **asked))[0]["tool_calls"][0]["function"]["name"]
    assert called == "web__get_weather"


def test_the_tokens_of_a_request_are_counted_and_nothing_is_kept(client: openai.OpenAI) -> None:
    first = create(client)
    counted = client.responses.input_tokens.count(model="agent", input="bc", previous_response_id=first.id)
    then = create(client, input="bc", previous_response_id=first.id)
    assert counted.input_tokens == then.usage.input_tokens
    alone = client.responses.input_tokens.count(model="agent", input="a")
    assert alone.input_tokens == first.usage.input_tokens


def test_what_changes_nothing_is_accepted_and_the_rest_is_refused_by_name(client: openai.OpenAI) -> None:
    answer = create(
        client,
        include=["reasoning.encrypted_content"],
        truncation="auto",
        reasoning={"effort": None, "summary": "auto"},
        prompt_cache_key="a",
        tools=[],
        tool_choice="auto",
        text={"verbosity": "medium"},
        metadata={"k": "v"},
        extra_body={"client_metadata": {"x": "y"}, "prompt": None},
    )
    assert (answer.status, answer.truncation, answer.metadata) == ("completed", "auto", {"k": "v"})
    for asked, param in (
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tools": [WEATHER], "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"input": [{"type": "computer_call"}]}, "input"),
        ({"input": [{"type": "function_call_output", "output": "b"}]}, "input"),
        ({"include": ["everything"]}, "include"),
        ({"truncation": "some"}, "truncation"),
        ({"prompt": {"id": "a"}}, "prompt"),
        ({"extra_body": {"colour": 1}}, "colour"),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            create(client, **asked)
        assert refused.value.param == param


_USER = {"type": "message", "role": "user"}
_SEEN = [{"type": "input_text", "text": "What?"}, {"type": "input_image", "image_url": "data:image/png;base64,AA=="}]
#: The requests of https://www.openresponses.org/compliance, and the type of an item that the response must have.
COMPLIANCE = {
    "basic-response": ({"input": [_USER | {"content": "Say hello."}]}, "message"),
    "streaming-response": ({"input": [_USER | {"content": "Count."}], "stream": True}, "message"),
    "system-prompt": (
        {"input": [_USER | {"role": "system", "content": "Be a pirate."}, _USER | {"content": "Say hello."}]},
        "message",
    ),
    "tool-calling": ({"input": [_USER | {"content": "Weather?"}], "tools": [WEATHER]}, "function_call"),
    "tool-calling-streaming": (
        {"input": [_USER | {"content": "Weather?"}], "tools": [WEATHER], "stream": True},
        "function_call",
    ),
    "image-input": ({"input": [_USER | {"content": _SEEN}]}, "message"),
    "multi-turn": (
        {
            "input": [
                _USER | {"content": "I am Alice."},
                _USER | {"role": "assistant", "content": "Hello Alice."},
                _USER | {"content": "Who am I?"},
            ]
        },
        "message",
    ),
}
_CALL_EVENTS = {f"response.function_call_arguments.{each}" for each in ("delta", "done")}
#: The fields that a response must have there, and their types; None: any, null included.
RESOURCE = {
    **dict.fromkeys(("id", "object", "status", "model", "truncation", "service_tier"), str),
    **dict.fromkeys(("created_at", "completed_at", "top_logprobs"), int),
    **dict.fromkeys(("temperature", "top_p", "presence_penalty", "frequency_penalty"), (int, float)),
    **dict.fromkeys(("parallel_tool_calls", "store", "background"), bool),
    **dict.fromkeys(("output", "tools"), list),
    **dict.fromkeys(("text", "reasoning", "usage", "metadata"), dict),
    **dict.fromkeys(("incomplete_details", "previous_response_id", "instructions", "error", "tool_choice"), object),
    **dict.fromkeys(("max_output_tokens", "max_tool_calls", "safety_identifier", "prompt_cache_key"), object),
}


@pytest.mark.parametrize("case", COMPLIANCE)
def test_compliance(client: openai.OpenAI, case: str) -> None:
    asked, kind = COMPLIANCE[case]
    sent = client.responses.with_raw_response.create(**{"model": "agent"} | asked).http_response  # type: ignore[call-overload]
    if asked.get("stream"):
        events = [json.loads(line[6:]) for line in sent.iter_lines() if line.startswith("data: ")]
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert kind != "function_call" or _CALL_EVENTS.issubset(event["type"] for event in events)
        for each in ("added", "done"):
            (item,) = [event["item"] for event in events if event["type"] == f"response.output_item.{each}"]
            assert item["type"] == kind
        response = events[-1]["response"]
    else:
        response = sent.json()
    assert response["status"] == "completed"
    assert kind in [item["type"] for item in response["output"]]
    wrong = {name: response.get(name) for name, right in RESOURCE.items() if not isinstance(response[name], right)}
    assert not wrong


def test_a_history_is_compacted_and_continued(client: openai.OpenAI) -> None:
    first = create(client, input="remember 7", tools=[WEATHER])
    output = {"type": "function_call_output", "call_id": first.output[0].call_id, "output": "sunny"}
    second = create(client, input=[output], previous_response_id=first.id, tools=[WEATHER])
    made = client.responses.compact(model="agent", previous_response_id=second.id, input="and 8")  # type: ignore[arg-type]
    assert made.object == "response.compaction"
    assert made.usage.output_tokens == 2
    assert [item.type for item in made.output] == ["message", "message", "compaction"]
    summary = json.loads(made.output[-1].encrypted_content.partition("\n")[2])  # type: ignore[union-attr]
    assert [message["role"] for message in summary] == ["user", "assistant", "tool", "assistant", "user", "user"]
    assert summary[-1]["content"].startswith("Summarize our conversation")
    given = [item.model_dump(exclude_none=True) for item in made.output]
    third = create(client, input=[*given, {"role": "user", "content": "go on"}])
    seen = told(third)
    assert [message["content"] for message in seen[:2]] == ["remember 7", "and 8"]
    assert seen[2]["role"] == "assistant"
    assert seen[2]["content"].startswith("Summary of the conversation so far:\n")
    assert seen[3:] == [{"role": "user", "content": "go on"}]
    further = create(client, input="more", previous_response_id=third.id)
    assert told(further)[:3] == seen[:3], "the item is kept with the response"
    again = client.responses.compact(model="agent", input=given)  # type: ignore[arg-type]
    assert [item.type for item in again.output] == ["message", "message", "compaction"], "one takes the other's place"
    alone = client.responses.compact(model="agent", previous_response_id=third.id)  # type: ignore[arg-type]
    assert [item.type for item in alone.output] == [*["message"] * 3, "compaction"]
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)


def test_what_is_not_compacted(client: openai.OpenAI) -> None:
    foreign = {"type": "compaction", "encrypted_content": "gAAAA"}
    for asked, param in (
        ({"input": [foreign]}, "input"),
        ({"input": "a", "extra_body": {"stream": True}}, "stream"),
        ({}, "input"),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            client.responses.compact(**{"model": "agent"} | asked)  # type: ignore[arg-type]
        assert refused.value.param == param
