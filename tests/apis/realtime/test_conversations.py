"""Conversations over the realtime API: texts, items, function calls, and what is refused."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from tests.apis.realtime.conftest import Open, open_socket
from tests.apis.realtime.conversing import answer, answered, ask, chat_model, kinds, speaker, writer
from tests.endpoints.conftest import Start
from tests.endpoints.fake_serving import FakeModel, FakeServing, Submitted
from websockets.exceptions import ConnectionClosedError, InvalidStatus

from torchserve_py.base.causes import Cause

QUERY = "?model=chat"


def repeat(asked: dict[str, Any]) -> Sequence[Any]:
    return ["You said ", asked["messages"][-1]["content"], "."]


def messages_of(model: FakeModel) -> list[Any]:
    found: list[Any] = json.loads(model.calls[-1].body)["messages"]
    return found


async def test_a_text_and_its_answer(listen: Open) -> None:
    model = chat_model(repeat)
    client = await listen(model, query=QUERY)
    session = client.created["session"]
    assert (client.created["type"], session["type"], session["model"]) == ("session.created", "realtime", "chat")
    assert (session["output_modalities"], session["audio"]["input"]["turn_detection"]) == (["text"], None)
    await client.send("session.update", session={"type": "realtime", "instructions": "Be brief."})
    assert (await client.receive())["session"]["instructions"] == "Be brief."
    await ask(client, "hello")
    events = await client.events("response.done")
    assert kinds(events) == [
        "conversation.item.added",
        "conversation.item.done",
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        *3 * ["response.output_text.delta"],
        "response.output_text.done",
        "response.content_part.done",
        "conversation.item.done",
        "response.output_item.done",
        "response.done",
    ]
    response = events[-1]["response"]
    assert (response["status"], response["usage"]["total_tokens"]) == ("completed", 10)
    assert response["output"][0]["content"] == [{"type": "output_text", "text": "You said hello."}]
    assert response["conversation_id"] == session["conversation_id"]
    await ask(client, "again")
    await answered(client)
    assert messages_of(model) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "You said hello."},
        {"role": "user", "content": "again"},
    ]
    assert json.loads(model.calls[-1].body)["stream"] is True
    assert model.calls[-1].header_dict["url_path"] == "v1/chat/completions"


def call_tool(asked: dict[str, Any]) -> Sequence[Any]:
    if asked["messages"][-1]["role"] == "tool":
        return ["It is warm."]
    begin = {"tool_calls": [{"index": 0, "id": "call_1", "function": {"name": "weather", "arguments": ""}}]}
    return [begin, *({"tool_calls": [{"index": 0, "function": {"arguments": text}}]} for text in ('{"city":', ' "R"}'))]


async def test_function_calls(listen: Open) -> None:
    model = chat_model(call_tool)
    client = await listen(model, query=QUERY)
    tool = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
    await client.send("session.update", session={"type": "realtime", "tools": [tool], "tool_choice": "required"})
    assert (await client.receive())["session"]["tools"] == [tool]
    await ask(client, "How is Rome?")
    events = await client.events("response.done")
    done = next(event for event in events if event["type"] == "response.function_call_arguments.done")
    assert (done["name"], done["call_id"], done["arguments"]) == ("weather", "call_1", '{"city": "R"}')
    deltas = [event["delta"] for event in events if event["type"] == "response.function_call_arguments.delta"]
    assert "".join(deltas) == done["arguments"]
    asked = json.loads(model.calls[-1].body)
    assert asked["tools"] == [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
    assert asked["tool_choice"] == "required"
    output = {"type": "function_call_output", "call_id": "call_1", "output": "20 degrees"}
    await client.send("conversation.item.create", item=output)
    await client.send("response.create", response={"tool_choice": "none"})
    assert (await answered(client))["output"][0]["content"][0]["text"] == "It is warm."
    function = {"name": "weather", "arguments": '{"city": "R"}'}
    assert messages_of(model)[1:] == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "20 degrees"},
    ]


async def test_items_are_added_where_the_client_wants_retrieved_and_deleted(listen: Open) -> None:
    model = chat_model(repeat)
    client = await listen(model, query=QUERY)
    for name, after in (("b", None), ("a", "root"), ("d", None), ("c", "b")):
        item = {"id": name, "type": "message", "role": "user", "content": [{"type": "input_text", "text": name}]}
        await client.send("conversation.item.create", item=item, previous_item_id=after)
        added = await client.receive()
        assert added["item"]["id"] == name
        await client.receive()
    assert added["previous_item_id"] == "b"
    await client.send("conversation.item.retrieve", item_id="c")
    assert (await client.receive())["item"]["content"] == [{"type": "input_text", "text": "c"}]
    await client.send("conversation.item.delete", item_id="d")
    assert (await client.receive())["item_id"] == "d"
    await client.send("response.create")
    await answered(client)
    assert [message["content"] for message in messages_of(model)] == ["a", "b", "c"]


async def test_a_response_beside_the_conversation(listen: Open) -> None:
    model = chat_model(repeat)
    client = await listen(model, query=QUERY)
    content = [{"type": "input_text", "text": "secret"}]
    request = {
        "conversation": "none",
        "input": [{"type": "message", "role": "user", "content": content}],
        "instructions": "Classify.",
        "metadata": {"topic": "x"},
        "max_output_tokens": 5,
    }
    await client.send("response.create", response=request)
    events = await client.events("response.done")
    assert not [event for event in events if event["type"].startswith("conversation.")]
    response = events[-1]["response"]
    assert (response["conversation_id"], response["metadata"]) == (None, {"topic": "x"})
    assert json.loads(model.calls[-1].body)["max_completion_tokens"] == 5
    await ask(client, "hello")
    await answered(client)
    assert messages_of(model) == [{"role": "user", "content": "hello"}]


async def test_a_response_is_cancelled(listen: Open) -> None:
    model = chat_model(repeat)
    model.behave = lambda call: answer(call, ["Once upon"], finish=None)
    client = await listen(model, query=QUERY)
    await ask(client, "a story")
    await client.events("response.output_text.delta")
    await client.send("response.create", event_id="second")
    error = await client.error()
    assert (error["code"], error["event_id"]) == ("conversation_already_has_active_response", "second")
    await client.send("response.cancel")
    response = await answered(client)
    assert response["status_details"] == {"type": "cancelled", "reason": "client_cancelled"}
    assert response["output"][0]["status"] == "incomplete"
    await asyncio.wait_for(model.cancelled.wait(), 20)
    await client.send("response.cancel", event_id="late")
    assert (await client.error())["code"] == "response_cancel_not_active"
    model.behave = lambda call: answer(call, ["The end."])
    await ask(client, "go on")
    assert (await answered(client))["status"] == "completed"
    assert messages_of(model)[1] == {"role": "assistant", "content": "Once upon"}


async def test_a_response_that_fails_and_one_that_is_cut(listen: Open) -> None:
    model = chat_model(repeat)
    client = await listen(model, query=QUERY)
    model.behave = lambda call: call.fail(Cause.worker_died)
    await ask(client, "hello")
    response = await answered(client)
    assert (response["status"], response["status_details"]["error"]["code"]) == ("failed", "worker_died")
    model.behave = lambda call: call.part(b'{"choices": []}')
    await client.send("response.create")
    assert (await answered(client))["status_details"]["error"]["code"] == "chat_model_answer"
    model.behave = lambda call: answer(call, ["A long"], finish="length")
    await client.send("response.create")
    assert (await answered(client))["status_details"] == {"type": "incomplete", "reason": "max_output_tokens"}


@pytest.mark.parametrize(
    ("event", "code", "param"),
    [
        ({"type": "session.update"}, "missing_required_parameter", "session"),
        ({"type": "session.update", "session": {"type": "transcription"}}, "invalid_value", "session.type"),
        ({"type": "session.update", "session": {"colour": 1}}, "invalid_value", "session"),
        (
            {"type": "session.update", "session": {"output_modalities": ["audio"]}},
            "unsupported_parameter",
            "session.output_modalities",
        ),
        (
            {"type": "session.update", "session": {"audio": {"input": {"turn_detection": {"type": "server_vad"}}}}},
            "unsupported_parameter",
            "session.audio.input.turn_detection",
        ),
        ({"type": "session.update", "session": {"prompt": {"id": "p"}}}, "unsupported_parameter", "session.prompt"),
        (
            {"type": "session.update", "session": {"tools": [{"type": "mcp"}]}},
            "unsupported_parameter",
            "session.tools[0].type",
        ),
        ({"type": "session.update", "session": {"tool_choice": "some"}}, "invalid_value", "session.tool_choice"),
        (
            {"type": "session.update", "session": {"max_output_tokens": 0}},
            "invalid_value",
            "session.max_output_tokens",
        ),
        ({"type": "session.update", "session": {"audio": {"output": {"speed": 2}}}}, "unsupported_parameter", None),
        ({"type": "input_audio_buffer.append", "audio": "AAAA"}, "unsupported_event", "type"),
        ({"type": "input_audio_buffer.commit"}, "input_audio_buffer_commit_empty", None),
        ({"type": "conversation.item.create"}, "missing_required_parameter", "item"),
        ({"type": "conversation.item.create", "item": {"type": "mcp_call"}}, "invalid_value", "item.type"),
        (
            {
                "type": "conversation.item.create",
                "item": {"type": "message", "role": "user", "content": [{"type": "input_file", "file_data": "data:"}]},
            },
            "invalid_value",
            "item.content[0].type",
        ),
        ({"type": "conversation.item.delete", "item_id": "x"}, "item_delete_invalid_item_id", "item_id"),
        ({"type": "conversation.item.truncate", "item_id": "x"}, "item_truncate_invalid_item_id", "item_id"),
        ({"type": "response.create", "response": {"conversation": "other"}}, "invalid_value", "response.conversation"),
        ({"type": "output_audio_buffer.clear"}, "unknown_event", "type"),
    ],
)
async def test_a_wrong_event_is_named_and_the_session_goes_on(
    listen: Open, event: dict[str, Any], code: str, param: str | None
) -> None:
    client = await listen(chat_model(repeat), query=QUERY)
    await client.socket.send(json.dumps({**event, "event_id": "mine"}))
    error = await client.error()
    assert (error["code"], error["event_id"], error["type"]) == (code, "mine", "invalid_request_error")
    assert param in (None, error["param"])
    await ask(client, "hello")
    assert (await answered(client))["status"] == "completed"


async def test_which_session_a_request_means(listen: Open, start: Start) -> None:
    chat, ears = chat_model(repeat, transcriber="ears", synthesizer="voice"), writer()
    models = (chat, ears, speaker())
    for query, kind in (
        ("?model=chat", "realtime"),
        ("?model=gpt-realtime", "realtime"),
        ("?intent=conversation", "realtime"),
        ("?intent=transcription", "transcription"),
        ("?model=ears", "transcription"),
        ("", "transcription"),
    ):
        client = await listen(*models, query=query)
        assert client.created["session"]["type"] == kind, query
    endpoints = await start(FakeServing([chat_model(repeat, synthesizer="voice")]))
    for query, status in ((QUERY, 503), ("?intent=translation", 400)):
        with pytest.raises(InvalidStatus) as refused:
            await open_socket(endpoints, query)
        assert refused.value.response.status_code == status


async def test_a_server_that_shuts_down_finishes_the_response(start: Start) -> None:
    model = chat_model(repeat)
    model.behave = lambda call: answer(call, ["Once"], finish=None)
    endpoints = await start(FakeServing([model]))
    async with await open_socket(endpoints, QUERY) as socket:
        await socket.send(json.dumps({"type": "response.create"}))
        await asyncio.wait_for(model.submitted.wait(), 20)
        closing = asyncio.create_task(endpoints.endpoints.close())
        await asyncio.sleep(0.1)
        answer(model.calls[0], [" more"])
        got: list[Any] = []
        with pytest.raises(ConnectionClosedError):
            while True:
                got.append(json.loads(await asyncio.wait_for(socket.recv(), 20)))
        assert (got[-1]["type"], got[-1]["response"]["status"]) == ("response.done", "completed")
        assert socket.close_code == 1012
        await closing


OWN = {"message": "The conversation is too long.", "param": "messages", "code": "context_length_exceeded"}
VLLM = {"message": "This model's maximum context length is 4 tokens.", "type": "BadRequestError", "code": 400}


def short_of(room: int, error: dict[str, Any] = OWN) -> FakeModel:
    """A chat model that takes so many messages, and refuses more with this error."""
    model = chat_model(repeat)

    def behave(call: Submitted) -> None:
        asked = json.loads(call.body)
        if len(asked["messages"]) <= room:
            answer(call, repeat(asked))
            return
        call.part(json.dumps({"error": error}).encode(), status=400)

    model.behave = behave
    return model


@pytest.mark.parametrize("error", [OWN, VLLM], ids=["own", "vllm"])
async def test_a_conversation_that_is_too_long_loses_its_oldest_items(listen: Open, error: dict[str, Any]) -> None:
    model = short_of(4, error)
    client = await listen(model, query=QUERY)
    assert client.created["session"]["truncation"] == "auto"
    content = [{"type": "input_text", "text": "question"}]
    first = {"type": "message", "id": "first", "role": "user", "content": content}
    await client.send("conversation.item.create", item=first)
    await client.events("conversation.item.done")
    for number in range(4):
        await ask(client, f"question {number}")
        assert (await answered(client))["status"] == "completed"
    asked = len(model.calls)
    assert asked > 4
    assert messages_of(model)[-1]["content"] == "question 3"
    assert len(messages_of(model)) <= 4
    await client.send("conversation.item.retrieve", item_id="first")
    assert (await client.receive())["item"]["id"] == "first", "it is there still"
    last = {"type": "retention_ratio", "retention_ratio": 0}
    await client.send("session.update", session={"type": "realtime", "truncation": last})
    assert (await client.receive())["session"]["truncation"] == last
    lengths = []
    for _ in range(3):
        await ask(client, "question")
        await answered(client)
        lengths.append(len(messages_of(model)))
    assert 1 in lengths


async def test_a_conversation_that_may_not_be_truncated_fails(listen: Open) -> None:
    model = short_of(1)
    client = await listen(model, query=QUERY)
    await client.send("session.update", session={"type": "realtime", "truncation": "disabled"})
    await client.receive()
    await ask(client, "one")
    assert (await answered(client))["status"] == "completed"
    await ask(client, "two")
    response = await answered(client)
    about = {"type": "invalid_request_error", "code": "context_length_exceeded", "param": None}
    assert response["status_details"]["error"] == about | {"message": "The conversation is too long."}
    limits = {"type": "retention_ratio", "retention_ratio": 0.5, "token_limits": {"post_instructions": 100}}
    wrong = ({"truncation": "some"}, {"truncation": {**limits, "token_limits": None, "retention_ratio": 2}})
    for given, param in zip((*wrong, {"truncation": limits}), ("", ".retention_ratio", ".token_limits"), strict=True):
        await client.send("session.update", session={"type": "realtime", **given})
        assert (await client.error())["param"] == f"session.truncation{param}"


async def test_a_picture_goes_to_the_chat_model(listen: Open) -> None:
    model = chat_model(lambda asked: ["A cat."])
    client = await listen(model, query=QUERY)
    picture = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
    content = [{"type": "input_text", "text": "What is this?"}, picture]
    await client.send("conversation.item.create", item={"type": "message", "role": "user", "content": content})
    events = await client.events("conversation.item.done")
    assert events[-1]["item"]["content"][1] == {**picture, "detail": "auto"}
    await client.send("response.create")
    await answered(client)
    shown = {"type": "image_url", "image_url": {"url": picture["image_url"], "detail": "auto"}}
    assert messages_of(model) == [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, shown]}]
    wrong = {"type": "input_image", "image_url": "https://example.invalid/cat.png"}
    await client.send("conversation.item.create", item={"type": "message", "role": "user", "content": [wrong]})
    assert (await client.error())["param"] == "item.content[0].image_url"
