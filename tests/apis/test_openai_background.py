"""Responses in the background: they outlive their clients, their worker and their server."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from tests.e2e.running_server import DEADLINE, RunningServer, eventually

# Counts, a word in each step, as far as the last message asks for.
HANDLER = """
import json
import time


class Counter:
    def initialize(self, context):
        self.rows = {}

    def on_cancel(self, names):
        for name in names:
            self.rows.pop(name, None)

    def handle(self, data, context):
        time.sleep(0.01)
        results, criteria = [], []
        for index, row in enumerate(data):
            name = context.get_request_id(index)
            if name not in self.rows:
                self.rows[name] = [0, row["body"]]
            done, asked = self.rows[name]
            text = asked["messages"][-1]["content"]
            if text == "refuse":
                context.set_response_status(400, "Bad Request", index)
                results.append(json.dumps({"error": {"message": "no", "param": "messages", "code": None}}))
                criteria.append(lambda _: None)
                del self.rows[name]
                continue
            if not asked.get("stream"):
                message = {"role": "assistant", "content": "".join(f"{each + 1} " for each in range(int(text)))}
                results.append({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
                criteria.append(lambda _: None)
                del self.rows[name]
                continue
            self.rows[name][0] = done = done + 1
            is_last = done == int(text)
            choices = [{"index": 0, "delta": {"content": f"{done} "}, "finish_reason": "stop" if is_last else None}]
            usage = {"prompt_tokens": 1, "completion_tokens": done, "total_tokens": done + 1}
            chunk = {"choices": choices} | ({"usage": usage} if is_last else {})
            results.append(f"data: {json.dumps(chunk)}\\n\\n")
            criteria.append((lambda _: True) if is_last else (lambda _: False))
            if is_last:
                del self.rows[name]
        context.stopping_criteria = criteria
        return results
"""
# Says random numbers, which are its tokens: only what continues from the tokens says the same again.
DICE = """
import json
import secrets
import time


class Dice:
    def initialize(self, context):
        self.rows = {}

    def on_cancel(self, names):
        for name in names:
            self.rows.pop(name, None)

    def handle(self, data, context):
        time.sleep(0.01)
        results, criteria = [], []
        for index, row in enumerate(data):
            name, new = context.get_request_id(index), []
            if name not in self.rows:
                new = row["committed_tokens"]
                self.rows[name] = [0, int(row["body"]["messages"][-1]["content"])]
            new = [*new, secrets.randbelow(1000)]
            self.rows[name][0] += len(new)
            is_last = self.rows[name][0] >= self.rows[name][1]
            text = "".join(f"{token} " for token in new)
            choice = {"index": 0, "delta": {"content": text}, "finish_reason": "stop" if is_last else None}
            results.append(f"data: {json.dumps({'choices': [choice | {'token_ids': new}]})}\\n\\n")
            criteria.append((lambda _: True) if is_last else (lambda _: False))
            if is_last:
                del self.rows[name]
        context.stopping_criteria = criteria
        return results
"""
CONFIG = """
minWorkers: 1
maxWorkers: 1
openai: true
continuousBatching: true
batchSize: 16
sequenceBatching: true
sequenceMaxIdleMSec: 600000
maxNumSequence: 100
handler:
  cache: {store: file, path: %s, lease: 2}
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    for name, handler in (("counter", HANDLER), ("dice", DICE)):
        (folder / name).mkdir()
        (folder / name / "handler.py").write_text(handler)
        (folder / name / "model-config.yaml").write_text(CONFIG % (folder / "store.db"))
    return {name: folder / name for name in ("counter", "dice")}


@pytest.fixture(scope="module")
def server(models: dict[str, Path]) -> Iterator[RunningServer]:
    with RunningServer(models) as running:
        running.wait_ready()
        yield running


def client_of(server: RunningServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.inference}/v1", api_key="none", max_retries=3, timeout=DEADLINE)


@pytest.fixture(scope="module")
def client(server: RunningServer) -> openai.OpenAI:
    return client_of(server)


def begin(client: openai.OpenAI, count: object, **asked: Any) -> Any:
    return client.responses.create(model="counter", input=str(count), background=True, **asked)


def finished(client: openai.OpenAI, response_id: str) -> Any:
    deadline = time.monotonic() + 60
    while (response := client.responses.retrieve(response_id)).status == "in_progress":
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return response


def counted(count: int) -> str:
    return "".join(f"{number} " for number in range(1, count + 1))


def check(events: list[Any], count: int, first: int = 0) -> None:
    """Check that events have no gap, begin with this number, and tell the whole text."""
    assert [event.sequence_number for event in events] == list(range(first, first + len(events)))
    if not first:
        assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == counted(count)
    assert events[-1].type == "response.completed"
    assert events[-1].response.output_text == counted(count)


def test_a_client_comes_back(client: openai.OpenAI) -> None:
    begun = begin(client, 100)
    assert (begun.status, begun.background, begun.output) == ("in_progress", True, [])
    done = finished(client, begun.id)
    assert (done.status, done.output_text, done.usage.output_tokens) == ("completed", counted(100), 100)
    events = list(client.responses.retrieve(begun.id, stream=True))
    check(events, 100)
    assert len(events) > 8, "it was committed in several groups"
    check(list(client.responses.retrieve(begun.id, stream=True, starting_after=4)), 100, first=5)
    further = client.responses.create(model="counter", input="3", previous_response_id=begun.id)
    assert further.output_text == counted(3)


def test_a_stream_is_left_and_taken_up_again(client: openai.OpenAI) -> None:
    seen = []
    with begin(client, 150, stream=True) as stream:
        for event in stream:
            seen.append(event)
            if event.type == "response.output_text.delta":
                break
    rest = list(client.responses.retrieve(seen[0].response.id, stream=True, starting_after=seen[-1].sequence_number))
    check(seen + rest, 150)


def test_a_browser_takes_a_stream_up_again(server: RunningServer, client: openai.OpenAI) -> None:
    begun = begin(client, 100)
    last = [*client.responses.retrieve(begun.id, stream=True)][-1].sequence_number
    url = f"{server.inference}/v1/responses/{begun.id}?stream=true"

    def lines(after: object, query: str = "", status: int = 200) -> list[str]:
        found = httpx.get(url + query, headers={"Last-Event-ID": str(after)}, timeout=DEADLINE)
        assert found.status_code == status
        return [line for line in found.text.splitlines() if line.startswith(("id:", "event:"))]

    whole = lines("")
    assert whole[::2] == [f"id: {number}" for number in range(last + 1)]
    assert lines(7) == whole[16:]
    assert lines(7, "&starting_after=3") == whole[16:], "the address is that of the first request"
    assert lines("", "&starting_after=3") == whole[8:]
    assert lines(last, status=204) == []
    assert lines("-1x", status=400) == []
    assert (
        "id:"
        not in httpx.post(
            f"{server.inference}/v1/responses", json={"model": "counter", "input": "2", "stream": True}
        ).text
    )


def test_its_events_end_with_the_right_of_the_key(models: dict[str, Path], tmp_path: Path) -> None:
    keys = tmp_path / "keys"

    def allow(model: str) -> None:
        (tmp_path / "new").write_text(json.dumps({"keys": [{"key": "a", "name": "app", "models": [model]}]}))
        (tmp_path / "new").replace(keys)

    allow("counter")
    with RunningServer({"counter": models["counter"]}, {"keys_file": keys}, flags=()) as server:
        server.wait_ready()
        key = openai.OpenAI(base_url=f"{server.inference}/v1", api_key="a", timeout=DEADLINE)
        url = f"{server.inference}/v1/responses/{begin(key, 2_000).id}?stream=true"
        with httpx.stream("GET", url, headers={"Authorization": "Bearer a"}, timeout=DEADLINE) as answer:
            lines = answer.iter_lines()
            assert next(lines) == "id: 0"
            allow("other")
            assert "The key 'app' is not for the model 'counter'." in "".join(list(lines)[-4:])


def test_it_outlives_its_worker(server: RunningServer, client: openai.OpenAI) -> None:
    seen = []
    for event in begin(client, 200, stream=True):
        seen.append(event)
        if event.type == "response.output_text.delta" and event.sequence_number in (5, 7):
            for worker in server.workers():
                worker.kill()
    check(seen, 200)


def test_it_continues_from_its_tokens(server: RunningServer, client: openai.OpenAI) -> None:
    seen = []
    for event in client.responses.create(model="dice", input="200", background=True, stream=True):
        seen.append(event)
        if event.type == "response.output_text.delta" and event.sequence_number in (5, 7):
            for worker in server.workers():
                worker.kill()
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    said = "".join(event.delta for event in seen if event.type == "response.output_text.delta")
    assert (seen[-1].type, seen[-1].response.output_text) == ("response.completed", said)
    assert len(said.split()) == 200


def test_it_outlives_its_server(models: dict[str, Path]) -> None:
    with RunningServer(models) as first:
        first.wait_ready()
        seen = []
        for event in begin(client_of(first), 200, stream=True):
            seen.append(event)
            if event.sequence_number == 5:
                first.kill_everything()
                break
    with RunningServer(models) as second:
        second.wait_ready()
        name, last = seen[0].response.id, seen[-1].sequence_number
        rest = list(client_of(second).responses.retrieve(name, stream=True, starting_after=last))
        check(seen + rest, 200)


@pytest.mark.parametrize("key", ["", "secret"], ids=["without-keys", "with-keys"])
def test_it_goes_on_once_its_server_is_back(models: dict[str, Path], key: str) -> None:
    keys = {"inference_keys": f"team:{key}"} if key else {}
    flags = () if key else ("--disable-token-auth",)
    with RunningServer(models, keys, flags=flags) as server:
        server.wait_ready()
        client = openai.OpenAI(base_url=f"{server.inference}/v1", api_key=key or "none", timeout=DEADLINE)
        left = server.directory / "data" / "background"
        name = ""
        for event in begin(client, 200, stream=True):
            name = name or event.response.id
            if event.sequence_number == 5:
                assert [each.name for each in left.iterdir()] == [name]
                server.server.kill()
                server.kill_everything()
                break
        server.start()
        eventually(lambda: not [*left.iterdir()], "nobody asks for it, and it ends")
        assert client.responses.retrieve(name).output_text == counted(200)


def test_it_is_cancelled_and_refused(client: openai.OpenAI) -> None:
    begun = begin(client, 100_000)
    with pytest.raises(openai.BadRequestError, match="in progress"):
        client.responses.create(model="counter", input="3", previous_response_id=begun.id)
    cancelled = client.responses.cancel(begun.id)
    assert cancelled.status == "cancelled"
    assert client.responses.retrieve(begun.id).status == "cancelled"
    assert client.responses.cancel(begun.id) == cancelled
    whole = client.responses.create(model="counter", input="3")
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(whole.id)
    refused = finished(client, begin(client, "refuse").id)
    assert (refused.status, refused.error.message) == ("failed", "no")


def test_forks_in_the_background(client: openai.OpenAI) -> None:
    first = client.responses.create(model="counter", input="2")
    begun = [begin(client, count, previous_response_id=first.id) for count in (30, 40, 50)]
    assert [finished(client, each.id).output_text for each in begun] == [counted(30), counted(40), counted(50)]
