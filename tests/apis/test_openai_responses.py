"""OpenAI's Responses and Conversations with OpenAI's own client: workers die, and servers share a store."""

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import ResponseCompletedEvent, ResponseTextDeltaEvent
from tests.e2e.running_server import DEADLINE, RunningServer

# Answers a chat completion with all that it was told, so that an answer shows what the history was.
HANDLER = """
import json

from ts.handler_utils.utils import send_intermediate_predict_response


def handle(data, context):
    return data and [answer(index, row["body"], context) for index, row in enumerate(data)]


def answer(index, asked, context):
    told = "|".join(message["content"] for message in asked["messages"])
    if "short" in asked["messages"][-1]["content"]:
        told = "short"
    if "broken" in told:
        context.set_response_status(400, "Bad Request", index)
        return json.dumps({"error": {"message": "seed is odd", "param": "seed", "code": None}})
    usage = {"prompt_tokens": len(told), "completion_tokens": 1, "total_tokens": len(told) + 1}
    if not asked.get("stream"):
        message = {"role": "assistant", "content": f"[{told}]"}
        reason = "length" if asked.get("max_completion_tokens") == 1 else "stop"
        return {"choices": [{"index": 0, "message": message, "finish_reason": reason}], "usage": usage}
    for text in ("[", told, "]"):
        send([{"index": 0, "delta": {"content": text}}], context)
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": usage}
    return f"data: {json.dumps(last)}\\n\\ndata: [DONE]\\n\\n"


def send(choices, context):
    chunk = json.dumps({"object": "chat.completion.chunk", "choices": choices})
    send_intermediate_predict_response([f"data: {chunk}\\n\\n"], context.request_ids, "", 200, context)
"""
CONFIG = """
minWorkers: 1
maxWorkers: 1
openai: true
sequenceBatching: true
sequenceMaxIdleMSec: 600000
maxNumSequence: 100
handler:
  cache: {store: file, path: %s, lease: 2}
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    for name, config in (("told", CONFIG % (folder / "store.db")), ("plain", "minWorkers: 1\nopenai: true\n")):
        (folder / name).mkdir()
        (folder / name / "handler.py").write_text(HANDLER)
        (folder / name / "model-config.yaml").write_text(config)
    return {name: folder / name for name in ("told", "plain")}


@pytest.fixture(scope="module")
def server(models: dict[str, Path]) -> Iterator[RunningServer]:
    with RunningServer(models) as running:
        running.wait_ready()
        yield running


@pytest.fixture(scope="module")
def client(server: RunningServer) -> openai.OpenAI:
    return client_of(server)


def client_of(server: RunningServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.inference}/v1", api_key="none", max_retries=3, timeout=DEADLINE)


def create(client: openai.OpenAI, **asked: Any) -> Any:
    return client.responses.create(model="told", **asked)


def sequence_of(response_id: str) -> str:
    """Return the sequence that keeps a response."""
    return response_id.removeprefix("resp_")[:32]


def test_a_response_is_continued_and_forked(client: openai.OpenAI) -> None:
    first = client.responses.create(model="told", input="a", instructions="be", metadata={"k": "v"})
    assert (first.output_text, first.status, first.model) == ("[be|a]", "completed", "told")
    assert first.usage is not None
    assert first.usage.total_tokens == 5
    second = client.responses.create(model="told", input="b", previous_response_id=first.id)
    fork = client.responses.create(
        model="told", input=[{"role": "user", "content": "c"}], previous_response_id=first.id
    )
    third = client.responses.create(model="told", input="d", previous_response_id=second.id)
    assert second.output_text == "[a|[be|a]|b]", "instructions are those of one response"
    assert fork.output_text == "[a|[be|a]|c]"
    assert third.output_text == f"[a|[be|a]|b|{second.output_text}|d]"
    kept = client.responses.retrieve(first.id)
    assert kept == first
    assert kept.metadata == {"k": "v"}
    given = client.responses.input_items.list(third.id, order="asc")
    assert [item.content[0].text for item in given] == ["a", "[be|a]", "b", second.output_text, "d"]  # type: ignore[union-attr]
    client.responses.delete(second.id)
    for call in (client.responses.retrieve, client.responses.delete):
        with pytest.raises(openai.NotFoundError, match="not found") as gone:
            call(second.id)
        assert gone.value.response.headers["ts-error-cause"] == "not_found"
    assert client.responses.retrieve(third.id).previous_response_id == second.id


def test_typed_events(client: openai.OpenAI) -> None:
    first = client.responses.create(model="told", input="a")
    with client.responses.stream(model="told", input="b", previous_response_id=first.id) as stream:
        events = list(stream)
        final = stream.get_final_response()
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.delta for event in events if event.type == "response.output_text.delta"] == ["[", "a|[a]|b", "]"]
    assert final.output_text == "[a|[a]|b]"
    plain = list(client.responses.create(model="told", input="c", previous_response_id=final.id, stream=True))
    assert [event.sequence_number for event in plain] == list(range(len(plain)))
    assert any(isinstance(event, ResponseTextDeltaEvent) for event in plain)
    assert isinstance(plain[-1], ResponseCompletedEvent)
    assert client.responses.retrieve(plain[-1].response.id).output_text == "[a|[a]|b|[a|[a]|b]|c]"


def test_a_conversation(client: openai.OpenAI) -> None:
    told = client.conversations.create(
        items=[{"type": "message", "role": "user", "content": "x"}], metadata={"k": "v"}, extra_body={"model": "told"}
    )
    assert told.metadata == {"k": "v"}
    answer = client.responses.create(model="told", input="y", conversation=told.id)
    assert answer.output_text == "[x|y]"
    assert answer.conversation is not None
    assert answer.conversation.id == told.id
    with client.responses.stream(model="told", input="z", conversation={"id": told.id}) as stream:
        assert stream.get_final_response().output_text == "[x|y|[x|y]|z]"
    items = client.conversations.items.list(told.id, order="asc", limit=2)
    assert [item.content[0].text for item in items] == ["x", "y", "[x|y]", "z", "[x|y|[x|y]|z]"]  # type: ignore[union-attr]
    with pytest.raises(openai.BadRequestError, match="limit is '0010000'; a whole number, 1 to 100 is right"):
        client.conversations.items.list(told.id, extra_query={"limit": "0010000"})
    with pytest.raises(openai.BadRequestError, match=r"after is 'x{20}', which is not an item of this list"):
        client.conversations.items.list(told.id, after="x" * 2_000)
    (added,) = client.conversations.items.create(told.id, items=[{"role": "user", "content": "w"}]).data  # type: ignore[list-item]
    assert client.conversations.items.retrieve(added.id or "", conversation_id=told.id) == added
    client.conversations.items.delete(added.id or "", conversation_id=told.id)
    with pytest.raises(openai.NotFoundError):
        client.conversations.items.retrieve(added.id or "", conversation_id=told.id)
    assert client.conversations.update(told.id, metadata={"k": "w"}).metadata == {"k": "w"}
    assert client.conversations.retrieve(told.id).metadata == {"k": "w"}
    assert client.conversations.delete(told.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(told.id)


def test_forks_run_beside_each_other(server: RunningServer, client: openai.OpenAI) -> None:
    first = client.responses.create(model="told", input="a")
    with ThreadPoolExecutor(16) as threads:
        inputs = [f"b{number}" for number in range(16)]
        forks = list(threads.map(lambda text: create(client, input=text, previous_response_id=first.id), inputs))
    assert [fork.output_text for fork in forks] == [f"[a|[a]|{text}]" for text in inputs]
    assert len({sequence_of(fork.id) for fork in forks}) == 16, "one continues the sequence, the others have their own"
    for fork in forks[:3]:
        further = create(client, input="c", previous_response_id=fork.id)
        assert further.output_text == f"[a|[a]|{fork.output_text[7:-1]}|{fork.output_text}|c]"
        assert sequence_of(further.id) == sequence_of(fork.id)
        given = client.responses.input_items.list(further.id, order="asc").data
        assert len(given) == 5
        assert client.responses.retrieve(fork.id) == fork


def test_a_turn_that_is_sent_again_counts_once(client: openai.OpenAI) -> None:
    names = ({"ts_request_id": "r1"}, {"Idempotency-Key": "r2"})
    for name in names:
        begun = [create(client, input="a", extra_headers=name) for _ in range(2)]
        assert begun[0] == begun[1]
        with pytest.raises(openai.ConflictError) as differs:
            create(client, input="other", extra_headers=name)
        assert differs.value.code == "step_differs"
        if "Idempotency-Key" in name:
            assert differs.value.body["message"] == "The Idempotency-Key 'r2' was used with another request."
        assert client.responses.retrieve(begun[0].id) == begun[0]
    first = create(client, input="a")
    for name in ("further", "fork"):
        sent = [
            create(client, input="b", previous_response_id=first.id, extra_headers={"Idempotency-Key": name})
            for _ in range(3)
        ]
        assert sent[0] == sent[1] == sent[2]
    told = client.conversations.create(items=[], extra_body={"model": "told"})
    for _ in range(2):
        with client.responses.stream(
            model="told", input="x", conversation=told.id, extra_headers={"Idempotency-Key": "x"}
        ) as stream:
            assert stream.get_final_response().output_text == "[x]"
    assert len(client.conversations.items.list(told.id).data) == 2


def test_a_turn_writes_what_is_new_and_what_is_deleted_is_gone(server: RunningServer, client: openai.OpenAI) -> None:
    latest = create(client, input="begin secret-1")
    shown = f"{server.management}/sequences/told/openai-{sequence_of(latest.id)}"
    sizes = []
    for turn in range(130):  # further than `checkpointEvery`
        latest = create(client, input=f"{turn:05} short", previous_response_id=latest.id)
        about = httpx.get(shown).json()
        assert about["stateBytes"] == 0
        sizes.append(about["logBytes"])
    grown = [after - before for before, after in itertools.pairwise(sizes)]
    assert max(grown) <= 1.1 * min(grown)
    before = create(client, input="b secret-2", previous_response_id=latest.id)
    after = create(client, input="c", previous_response_id=before.id)
    client.responses.delete(before.id)
    assert b"secret-2" in httpx.get(f"{shown}/export").content, "a later response needs it"
    client.responses.delete(after.id)
    kept = httpx.get(f"{shown}/export").content
    assert b"secret-1" in kept
    assert b"secret-2" not in kept
    assert create(client, input="d", previous_response_id=latest.id).output_text.endswith("|d]")


def test_it_survives_workers_and_servers(models: dict[str, Path], server: RunningServer, client: openai.OpenAI) -> None:
    first = client.responses.create(model="told", input="a")
    for worker in server.workers():
        worker.kill()
    second = client.responses.create(model="told", input="b", previous_response_id=first.id)
    assert second.output_text == "[a|[a]|b]"
    with RunningServer(models) as other:
        other.wait_ready()
        elsewhere = client_of(other)
        third = elsewhere.responses.create(model="told", input="c", previous_response_id=second.id)
        assert third.output_text == "[a|[a]|b|[a|[a]|b]|c]"
        told = elsewhere.conversations.create(extra_body={"model": "told"})
        elsewhere.responses.create(model="told", input="y", conversation=told.id)
        other.kill_everything()
    assert client.responses.create(model="told", input="z", conversation=told.id).output_text == "[y|[y]|z]"


def test_what_is_not_kept(client: openai.OpenAI) -> None:
    once = client.responses.create(model="told", input="a", store=False)
    assert once.store is False  # type: ignore[attr-defined]
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(once.id)
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="told", input="b", previous_response_id=once.id)
    assert (refused.value.param, refused.value.code) == ("previous_response_id", "previous_response_not_found")
    assert client.responses.create(model="plain", input="a").output_text == "[a]"
    cut = client.responses.create(model="told", input="a", max_output_tokens=1)
    assert cut.incomplete_details is not None
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")


def test_what_is_not_supported_is_named(client: openai.OpenAI) -> None:
    for asked, param in (
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"background": True, "store": False}, "background"),
        ({"input": "broken"}, "seed"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            client.responses.create(**{"model": "told", "input": "a"} | asked)  # type: ignore[call-overload]
        assert refused.value.param == param
    told = client.responses.create(model="told", input="a")
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="plain", input="a", previous_response_id=told.id)
    assert refused.value.param == "model"
    with pytest.raises(openai.BadRequestError) as refused:
        client.conversations.create(extra_body={"model": "plain"})
    for key in ("sequenceBatching: true", "sequenceMaxIdleMSec: 600000", "maxNumSequence: 1000"):
        assert key in refused.value.message
    with pytest.raises(openai.NotFoundError, match="names no model"):
        client.conversations.create()
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.input_items.list(told.id, limit=1000)
    assert refused.value.param == "limit"
