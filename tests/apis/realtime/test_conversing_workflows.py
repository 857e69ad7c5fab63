"""Conversations with a workflow: its graph tells which node detects, writes, answers and speaks."""

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.apis.realtime.conftest import Client, open_socket
from tests.apis.realtime.conversing import answered, ask, chat_model, listener, sound, speaker, writer
from tests.endpoints.conftest import OpenEndpoints, Start
from tests.endpoints.fake_serving import FakeModel, FakeServing
from tests.ops.keys.test_given_keys import write
from websockets.exceptions import InvalidStatus

from torchserve_py.apis.workflows.torch_workflow_archiver import PackOptions, pack
from torchserve_py.core.serving.serving import RegisterRequest, RegisterResult, Tell


@dataclass
class NodesServing(FakeServing):
    """Has the nodes of workflows under their names."""

    async def register(self, request: RegisterRequest, tell: Tell | None = None) -> RegisterResult:
        assert request.model_name is not None
        return RegisterResult(request.model_name, "1.0", 1, 1, pending=False)


Serve = Callable[..., Awaitable[OpenEndpoints]]


def chat(name: str = "talk__chat", **pipeline: Any) -> FakeModel:
    return chat_model(lambda asked: ["You said ", asked["messages"][-1]["content"], "."], name, **pipeline)


@pytest.fixture
def serve(start: Start, tmp_path: Path) -> Serve:
    """Serve a workflow ``talk`` with these models as its nodes, one after another, beside other models."""

    async def run(*nodes: FakeModel, others: Sequence[FakeModel] = (), key: str = "", **settings: Any) -> OpenEndpoints:
        names = [node.name.removeprefix("talk__") for node in nodes]
        models = {name: {"url": f"{name}.mar"} for name in names}
        spec = tmp_path / "spec.yaml"
        spec.write_text(
            json.dumps({"models": models, "dag": {name: names[i + 1 : i + 2] for i, name in enumerate(names)}})
        )
        pack(PackOptions("talk", str(spec), None, export_path=str(tmp_path)))
        endpoints = await start(NodesServing([*nodes, *others]), **settings)
        headers = {"Authorization": f"Bearer {key}"}
        registered = await endpoints.request("POST", "/workflows?url=talk.war", endpoint="management", headers=headers)
        assert registered.status == 200, registered.body
        return endpoints

    return run


async def connect(endpoints: OpenEndpoints, query: str = "?model=talk", **more: Any) -> Client:
    client = Client(await open_socket(endpoints, query, **more))
    client.created = await client.receive()
    return client


async def refused(endpoints: OpenEndpoints, query: str = "?model=talk", **more: Any) -> tuple[int, str]:
    with pytest.raises(InvalidStatus) as error:
        await open_socket(endpoints, query, **more)
    response = error.value.response
    return response.status_code, json.loads(response.body or b"")["error"]["message"]


async def test_the_graph_tells_the_roles(serve: Serve) -> None:
    hearing, writing, speaking = listener("talk__hear"), writer("talk__write"), speaker("talk__speak")
    endpoints = await serve(hearing, writing, chat(voices={"marin": "en-us"}), speaking)
    client = await connect(endpoints, "?model=gpt-realtime")  # the only one has any name
    session = client.created["session"]
    assert (session["model"], session["output_modalities"]) == ("talk", ["audio"])
    assert session["audio"]["input"]["turn_detection"]["type"] == "server_vad"
    audio = {"input": {"transcription": {}}, "output": {"voice": "marin"}}
    await client.send("session.update", session={"type": "realtime", "audio": audio})
    await client.append(sound(b"\0", 0.3) + sound(b"a", 1) + sound(b"\0", 1))
    response = await answered(client)
    assert response["output"][0]["content"][0]["transcript"] == "You said a."
    assert json.loads(speaking.calls[0].body) == {"text": "You said a.", "voice": "en-us"}
    assert [call.by_default for call in (*hearing.calls, *writing.calls, *speaking.calls)].count(True) == 0
    await client.socket.close()


@pytest.mark.parametrize("query", ["?model=talk", "?model=talk__chat"])
async def test_a_chat_model_alone_is_a_pipeline(serve: Serve, query: str) -> None:
    endpoints = await serve(chat(), others=[chat("other"), writer("ears")])
    client = await connect(endpoints, query)
    assert (client.created["session"]["model"], client.created["session"]["output_modalities"]) == ("talk", ["text"])
    await ask(client, "hello")
    assert (await answered(client))["output"][0]["content"][0]["text"] == "You said hello."
    await client.socket.close()
    status, message = await refused(endpoints, "?model=none&intent=conversation")
    assert (status, "Models that converse: talk, other" in message) == (404, True)
    transcribing = await connect(endpoints, "?intent=transcription")
    assert transcribing.created["session"]["type"] == "transcription"
    await transcribing.socket.close()


async def test_a_node_that_transcribes_is_no_model_of_its_own(serve: Serve) -> None:
    endpoints = await serve(writer("talk__write"), chat())
    status, message = await refused(endpoints, "?intent=transcription&model=talk__write")
    assert (status, "No model declares realtime: true" in message) == (404, True)


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        ([FakeModel("talk__pre"), chat()], 'the voiceActivity "talk__pre" keeps no sequences'),
        ([listener("talk__a"), writer("talk__b"), writer("talk__c"), chat()], 'the model "talk__a" has no role'),
        ([chat(), speaker("talk__b"), FakeModel("talk__c")], 'the model "talk__c" has no role'),
        ([chat(), listener("talk__b")], 'the synthesizer "talk__b" keeps sequences'),
        ([chat(transcriber="ears")], "names models in its realtimePipeline"),
    ],
)
async def test_a_model_that_fits_no_role_is_named(serve: Serve, nodes: list[FakeModel], told: str) -> None:
    status, message = await refused(await serve(*nodes))
    assert (status, told in message, 'workflow "talk"' in message) == (503, True, True), message


async def test_a_workflow_without_one_chat_model_does_not_converse(serve: Serve) -> None:
    endpoints = await serve(writer("talk__write"), speaker("talk__speak"))
    status, message = await refused(endpoints)
    assert (status, message.endswith("No model declares realtime: true.")) == (404, True), message


async def test_a_key_for_the_workflow_suffices(serve: Serve, tmp_path: Path) -> None:
    entries = [
        {"key": "boss", "name": "boss", "scope": "management"},
        {"key": "talks", "name": "talks", "models": ["talk"]},
        {"key": "nodes", "name": "nodes", "models": ["talk__chat", "talk__speak"]},
    ]
    keys = write(tmp_path / "keys.json", *entries)
    nodes = (chat(), speaker("talk__speak"))
    endpoints = await serve(*nodes, key="boss", disable_token_authorization=False, keys_file=keys)
    status, _ = await refused(endpoints, additional_headers={"Authorization": "Bearer nodes"})
    assert status == 403
    client = await connect(endpoints, additional_headers={"Authorization": "Bearer talks"})
    await ask(client, "hello")
    assert (await answered(client))["status"] == "completed"
    await client.socket.close()
