"""Responses over a WebSocket, with OpenAI's client: turns that are kept or not, lanes, errors, and keys."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.apis.openai import scripted_model
from tests.apis.test_openai_agents import CONFIG, WEATHER
from tests.e2e.running_server import DEADLINE, RunningServer

CREATE = {"type": "response.create", "model": "agent", "input": "a"}
TERMINAL = ("response.completed", "response.failed", "response.incomplete", "error")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    folder = tmp_path_factory.mktemp("models")
    for name, config in (("agent", CONFIG), ("plain", "minWorkers: 1\nmaxWorkers: 1\nopenai: true\n")):
        (folder / name).mkdir()
        (folder / name / "handler.py").write_text(Path(scripted_model.__file__).read_text())
        (folder / name / "model-config.yaml").write_text(config)
    with RunningServer({name: folder / name for name in ("agent", "plain")}) as running:
        running.wait_ready()
        yield openai.OpenAI(base_url=f"{running.inference}/v1", api_key="none", max_retries=0, timeout=DEADLINE)


def turn(connection: Any, **asked: Any) -> list[Any]:
    """Send a turn, and return its events."""
    connection.response.create(**{"model": "agent", "input": "a"} | asked)
    return events(connection)


def send(connection: Any, **asked: Any) -> None:
    connection.send(CREATE | asked)


def events(connection: Any) -> list[Any]:
    got = [connection.recv()]
    while got[-1].type not in TERMINAL:
        got.append(connection.recv())
    return got


def told(event: Any) -> Any:
    """Return the messages that the model got, which it has repeated."""
    return json.loads(event.response.output_text)


def message(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_turns_that_are_kept(client: openai.OpenAI) -> None:
    with client.responses.connect() as connection:
        first = turn(connection)
        assert [event.sequence_number for event in first] == list(range(len(first)))
        assert [event.type for event in first][:3] == [
            *("response.created", "response.in_progress", "response.output_item.added")
        ]
        one = first[-1].response
        assert told(first[-1]) == [message("a")]
        second = turn(connection, input="b", previous_response_id=one.id)[-1]
        answered = {"role": "assistant", "content": one.output_text}
        assert told(second) == [message("a"), answered, message("b")]
        assert client.responses.retrieve(second.response.id).previous_response_id == one.id
        fork = turn(connection, input="c", previous_response_id=one.id)[-1]
        assert told(fork) == [message("a"), answered, message("c")]
        by_http = client.responses.create(model="agent", input="d", previous_response_id=fork.response.id)
        assert json.loads(by_http.output_text)[-1] == message("d")


@pytest.mark.parametrize("model", ["agent", "plain"])
def test_turns_that_are_not_kept_continue_each_other_on_their_connection(client: openai.OpenAI, model: str) -> None:
    with client.responses.connect() as connection:
        first = turn(connection, model=model, tools=[WEATHER], store=False)[-1].response
        (call,) = first.output
        output = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
        asked = {"model": model, "tools": [WEATHER], "store": False}
        second = turn(connection, input=[output], previous_response_id=first.id, **asked)[-1].response
        assert (second.output_text, second.previous_response_id) == ("The tool said sunny.", first.id)
        third = turn(connection, model=model, input="b", previous_response_id=second.id, store=False)[-1]
        assert [each["role"] for each in told(third)] == ["user", "assistant", "tool", "assistant", "user"]
        (refused,) = turn(connection, model=model, input="c", previous_response_id=first.id, store=False)
        assert refused.status == 400, "only the latest one is in memory"
        (wrong,) = turn(connection, model=model, input=[{"type": "x"}], previous_response_id=third.response.id)
        assert (wrong.status, wrong.error.param) == (400, "input")
        (gone,) = turn(connection, model=model, input="c", previous_response_id=third.response.id, store=False)
        assert gone.status == 400, "a turn that fails takes what it continues with it"
        if model == "agent":
            assert gone.error.code == "previous_response_not_found"
            with pytest.raises(openai.NotFoundError):
                client.responses.retrieve(third.response.id)
    with client.responses.connect() as connection:
        (other,) = turn(connection, model=model, previous_response_id=second.id)
        assert (other.error.code, other.error.param) == ("previous_response_not_found", "previous_response_id")


def test_a_kept_response_is_continued_without_being_kept_and_kept_again(client: openai.OpenAI) -> None:
    kept = client.responses.create(model="agent", input="a")
    with client.responses.connect() as connection:
        passing = turn(connection, input="b", previous_response_id=kept.id, store=False)[-1]
        assert len(told(passing)) == 3
        last = turn(connection, input="c", previous_response_id=passing.response.id)[-1]
        assert [each["content"] for each in told(last)][::2] == ["a", "b", "c"]
    given = client.responses.input_items.list(last.response.id, order="asc").data
    assert len(given) == 5
    assert client.responses.create(model="agent", input="d", previous_response_id=last.response.id).output_text


def test_nothing_is_generated(client: openai.OpenAI) -> None:
    with client.responses.connect() as connection:
        for store in (False, True):
            warmed = turn(connection, input=[message("a")], generate=False, store=store)
            assert [event.type for event in warmed] == [
                *("response.created", "response.in_progress", "response.completed")
            ]
            assert warmed[-1].response.output == []
            last = turn(connection, input="b", previous_response_id=warmed[-1].response.id, store=store)[-1]
            assert told(last) == [message("a"), message("b")]


def test_lanes_are_answered_beside_each_other(client: openai.OpenAI) -> None:
    with client.responses.connect() as connection:
        for number in range(12):
            asked = {"model": "agent", "input": str(number), "store": False, "stream_id": f"lane{number % 3}"}
            send(connection, **asked)
        done: dict[str, list[Any]] = {}
        while sum(map(len, done.values())) < 12:
            event = connection.recv()
            assert event.stream_id in ("lane0", "lane1", "lane2")
            if event.type == "response.completed":
                done.setdefault(event.stream_id, []).append(told(event)[0]["content"])
        assert done == {f"lane{lane}": [str(number) for number in range(lane, 12, 3)] for lane in range(3)}
        for number in range(3, 33):
            send(connection, stream_id=f"lane{number}")
        failed = [event for number in range(30) for event in events(connection)[-1:]]
        assert [event.error.code for event in failed if event.type == "error"] == ["websocket_stream_limit_reached"]


def test_what_is_refused(client: openai.OpenAI) -> None:
    with client.responses.connect() as connection:
        for sent, param, code in (
            ({"type": "response.steer", "input": "a"}, "type", "unsupported_event"),
            ({"type": "response.create", "model": "agent", "background": True}, "background", "unsupported_parameter"),
            ({"type": "response.create", "model": "agent"}, "input", "missing_required_parameter"),
            (
                {"type": "response.create", "model": "agent", "input": "a", "colour": 1},
                "colour",
                "unsupported_parameter",
            ),
            ({"type": "response.create", "model": "none", "input": "a"}, None, "model_not_found"),
            (CREATE | {"store": 1}, "store", None),
            ({"model": "agent"}, None, "invalid_event"),
        ):
            connection.send_raw(json.dumps(sent))
            (event,) = events(connection)
            assert (event.error.param, event.error.code) == (param, code)
            assert event.error.type == "invalid_request_error"
        connection.send_raw("{")
        assert events(connection)[0].error.code == "invalid_json"
        assert turn(connection)[-1].type == "response.completed", "the connection stays"
    with pytest.raises(openai.BadRequestError, match="WebSocket"):
        client.get("/responses", cast_to=object)
