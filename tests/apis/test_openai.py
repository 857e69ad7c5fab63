"""OpenAI's client against a handler of a model that declares OpenAI's interface."""

from collections.abc import Iterator

import openai
import pytest
from tests.e2e.running_server import DEADLINE, RunningServer

HANDLER = """
import json

from ts.handler_utils.utils import send_intermediate_predict_response


def handle(data, context):
    return data and [answer(row["body"], context) for row in data]


def answer(asked, context):
    path = context.get_request_header(0, "url_path")
    if asked["model"] == "broken":
        raise RuntimeError("no such adapter")
    if path == "v1/embeddings":
        return {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}]}
    if path == "v1/completions":
        return {"choices": [{"index": 0, "text": asked["prompt"].upper()}]}
    texts = [message["content"].upper() for message in asked["messages"]]
    if not asked.get("stream"):
        return {"choices": [{"index": 0, "message": {"role": "assistant", "content": " ".join(texts)}}]}
    for text in texts:
        chunk = {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": text}}]}
        send_intermediate_predict_response([f"data: {json.dumps(chunk)}\\n\\n"], context.request_ids, "", 200, context)
    return "data: [DONE]\\n\\n"
"""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    folder = tmp_path_factory.mktemp("models") / "loud"
    folder.mkdir()
    (folder / "handler.py").write_text(HANDLER)
    (folder / "model-config.yaml").write_text("minWorkers: 1\nopenai: true\nopenaiModels: [broken]\n")
    with RunningServer({"loud": str(folder)}) as server:
        server.wait_ready()
        yield openai.OpenAI(base_url=f"{server.inference}/v1", api_key="none", max_retries=0, timeout=DEADLINE)


def test_whole_answers(client: openai.OpenAI) -> None:
    chat = client.chat.completions.create(model="loud", messages=[{"role": "user", "content": "hi"}])
    assert chat.choices[0].message.content == "HI"
    assert client.completions.create(model="loud", prompt="hi").choices[0].text == "HI"
    assert client.embeddings.create(model="loud", input="hi", encoding_format="float").data[0].embedding == [0.5]
    assert [model.id for model in client.models.list().data] == ["loud", "broken"]


def test_streams(client: openai.OpenAI) -> None:
    said = [{"role": "user", "content": text} for text in ("a", "b", "c")]
    with client.chat.completions.create(model="loud", messages=said, stream=True) as stream:
        assert [chunk.choices[0].delta.content for chunk in stream] == ["A", "B", "C"]


def test_a_handler_that_fails(client: openai.OpenAI) -> None:
    with pytest.raises(openai.InternalServerError, match="Prediction failed"):
        client.completions.create(model="broken", prompt="hi")
