"""Functions that OpenAI's own client uses: `serve(openai=True)`, on a real server."""

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
import requests
from openai import OpenAI
from tests.e2e.running_server import DEADLINE
from tests.e2e.serve_command import ServeCommand

CHAT = """\
from collections.abc import Iterator

from ts import serve


@serve(openai=True)
def chat(messages: list[dict[str, str]], temperature: float = 1.0) -> Iterator[str]:
    for word in messages[-1]["content"].split():
        yield f"{word.upper()} "
    if temperature == 0:
        yield "cold"
"""
COMPLETE = """\
from ts import serve


@serve(openai=True)
def complete(prompt: str) -> str:
    return f"{prompt}, and so on"
"""
EMBED = """\
from ts import serve


@serve(openai=True)
def embed(input: list[str] | str) -> list[list[float]]:
    texts = [input] if isinstance(input, str) else input
    return [[float(len(text)), 0.5] for text in texts]
"""
EMBED_ALL = """\
from ts import serve


@serve(openai=True)
def embed_all(input: list[str]) -> list[list[float]]:
    return [[float(len(text))] for text in input]
"""
COUNTED = """\
from collections.abc import Iterator

from ts import serve


@serve(openai=True)
def counted(messages: list[dict[str, str]]) -> Iterator[str | dict]:
    words = messages[-1]["content"].split()
    yield from (word.upper() for word in words)
    yield {"usage": {"prompt_tokens": len(words), "completion_tokens": 2 if words else -1}}
"""
ASYNC = """\
import asyncio

from ts import serve


@serve(openai=True)
async def slow(messages: list[dict]):
    for letter in "abc":
        await asyncio.sleep(0)
        yield letter
"""
COUNTING = """\
from ts import serve


@serve(openai=True)
def counting(messages: list[dict[str, str]], state: dict) -> str:
    state["turns"] = state.get("turns", 0) + 1
    return f"turn {state['turns']}"
"""
HELLO = [{"role": "user", "content": "hello you"}]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    folder: Path = tmp_path_factory.mktemp("models")
    sources = {"chat": CHAT, "complete": COMPLETE, "embed": EMBED, "embed_all": EMBED_ALL, "slow": ASYNC}
    sources |= {"counted": COUNTED, "counting": COUNTING}
    for name, source in sources.items():
        (folder / f"{name}.py").write_text(source)
    with ServeCommand(folder, *(f"{name}.py" for name in sources)) as command:
        command.wait_until_serving()
        yield OpenAI(base_url=f"{command.base}/v1", api_key="none", max_retries=0, timeout=180)


def test_a_generator_becomes_chunks(client: OpenAI) -> None:
    chunks = list(client.chat.completions.create(model="chat", messages=HELLO, stream=True))  # type: ignore[call-overload]
    assert [chunk.choices[0].delta.content for chunk in chunks] == ["HELLO ", "YOU ", None]
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None, "stop"]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert len({chunk.id for chunk in chunks}) == 1
    assert {(chunk.object, chunk.model) for chunk in chunks} == {("chat.completion.chunk", "chat")}


def test_a_coroutine_streams_as_well(client: OpenAI) -> None:
    chunks = list(client.chat.completions.create(model="slow", messages=HELLO, stream=True))  # type: ignore[call-overload]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "abc"


def test_without_a_stream_the_parts_are_one_answer(client: OpenAI) -> None:
    whole = client.chat.completions.create(model="chat", messages=HELLO, temperature=0)  # type: ignore[call-overload]
    assert (whole.object, whole.model) == ("chat.completion", "chat")
    assert whole.choices[0].message.content == "HELLO YOU cold"
    assert whole.choices[0].message.role == "assistant"
    assert whole.choices[0].finish_reason == "stop"


def test_tokens_that_a_function_counts_are_told(client: OpenAI) -> None:
    whole = client.chat.completions.create(model="counted", messages=HELLO)  # type: ignore[call-overload]
    assert whole.choices[0].message.content == "HELLOYOU"
    assert whole.usage.model_dump(exclude_unset=True) == {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4}
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = client.chat.completions.create(model="counted", messages=HELLO, **options)  # type: ignore[call-overload]
    assert [chunk.choices[0].delta.content for chunk in chunks] == ["HELLO", "YOU", None]
    assert (last.choices, last.usage.total_tokens) == ([], 4)
    *_, last = client.chat.completions.create(model="counted", messages=HELLO, stream=True)  # type: ignore[call-overload]
    assert last.choices[0].finish_reason == "stop"
    assert last.usage is None


def test_a_function_with_a_state_keeps_no_responses_and_says_so(client: OpenAI) -> None:
    reason = "The model keeps a state of its own for each sequence, so it keeps no responses and conversations"
    with pytest.raises(openai.BadRequestError, match=reason) as refused:
        client.responses.create(model="counting", input="hello")
    assert refused.value.param == "store"
    with pytest.raises(openai.BadRequestError, match=reason):
        client.conversations.create(extra_body={"model": "counting"})
    assert client.responses.create(model="counting", input="hello", store=False).output_text == "turn 1"


def test_a_count_that_is_none_fails_its_request(client: OpenAI) -> None:
    with pytest.raises(openai.InternalServerError, match="prompt_tokens and completion_tokens, not"):
        client.chat.completions.create(model="counted", messages=[{"role": "user", "content": ""}])  # type: ignore[call-overload]


def test_completions_of_a_function_that_returns(client: OpenAI) -> None:
    assert client.completions.create(model="complete", prompt="one").choices[0].text == "one, and so on"
    stream = client.completions.create(model="complete", prompt="one", stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == "one, and so on"


def test_embeddings_in_both_encodings(client: OpenAI) -> None:
    for encoding in ("float", "base64"):
        found = client.embeddings.create(model="embed", input=["a", "four"], encoding_format=encoding)  # type: ignore[arg-type]
        vectors = [each.embedding for each in found.data]
        if encoding == "float":
            assert vectors == [[1.0, 0.5], [4.0, 0.5]]
        assert [each.index for each in found.data] == [0, 1]
    assert client.embeddings.create(model="embed", input="four").data[0].embedding == [4.0, 0.5]


@pytest.mark.parametrize("given", ["abc", ["abc"]])
def test_a_function_that_takes_a_list_of_texts_embeds_a_single_one(client: OpenAI, given: str | list[str]) -> None:
    answer = client.embeddings.create(model="embed_all", input=given)
    assert [each.embedding for each in answer.data] == [[3.0]]


def test_what_a_function_does_not_answer_is_told(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="does not answer embeddings: it answers chat/completions"):
        client.embeddings.create(model="chat", input="x")
    with pytest.raises(openai.BadRequestError, match=r"messages: Input should be a valid list"):
        client.chat.completions.create(model="chat", messages="hello")  # type: ignore[call-overload]
    with pytest.raises(openai.BadRequestError, match="messages: Field required"):
        client.post("/chat/completions", body={"model": "chat"}, cast_to=object)


def test_parts_of_a_message_are_its_text_and_others_are_refused_where_messages_are_texts(client: OpenAI) -> None:
    text = {"type": "text", "text": "hello you"}
    spoken = client.chat.completions.create(model="chat", messages=[{"role": "user", "content": [text]}])  # type: ignore[list-item,misc]
    assert spoken.choices[0].message.content == "HELLO YOU "
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    sound = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    for part in (image, sound, {"type": "text"}, "words"):
        kind = repr(part.get("type") if isinstance(part, dict) else None)
        told = rf"messages\[0\]\.content\[1\] is of the type {kind}; this model takes parts of the type 'text' only"
        with pytest.raises(openai.BadRequestError, match=told):
            client.chat.completions.create(model="chat", messages=[{"role": "user", "content": [text, part]}])  # type: ignore[list-item,misc]


@pytest.mark.parametrize(
    "more",
    [
        *({"n": 2}, {"tools": [{"type": "function"}]}, {"response_format": {"type": "json_object"}}),
        *({"max_completion_tokens": 5}, {"stop": ["."]}, {"seed": 1}, {"logprobs": True}, {"top_p": 0.5}),
    ],
)
def test_what_would_change_the_answer_is_refused_where_the_function_does_not_take_it(
    client: OpenAI, more: dict[str, object]
) -> None:
    url, headers = f"{client.base_url}chat/completions", {"authorization": f"Bearer {client.api_key}"}
    asked = {"model": "chat", "messages": [{"role": "user", "content": "a"}]}
    refused = requests.post(url, json=asked | more, headers=headers, timeout=DEADLINE)
    assert refused.status_code == 400
    (name,) = more
    assert f"{name} has no effect, since the model's function has no parameter {name}" in refused.text
    usual = asked | {"n": 1, "tools": [], "response_format": {"type": "text"}}
    assert requests.post(url, json=usual, headers=headers, timeout=DEADLINE).status_code == 200


def test_the_models_are_listed(client: OpenAI) -> None:
    listed = [each.id for each in client.models.list()]
    assert listed == ["chat", "complete", "counted", "counting", "embed", "embed_all", "slow"]


@pytest.mark.parametrize("name", ["chat", "slow", "embed_all"])
def test_the_example_of_the_document_is_answered(client: OpenAI, name: str) -> None:
    base = str(client.base_url).removesuffix("/v1/")
    paths = requests.get(f"{base}/openapi.json", timeout=DEADLINE).json()["paths"]
    example = paths[f"/{name}"]["post"]["requestBody"]["content"]["application/json"]["example"]
    answer = requests.post(f"{base}/{name}", json=example, timeout=DEADLINE)
    assert (answer.status_code, bool(answer.content)) == (200, True)


def test_responses_of_a_function(client: OpenAI) -> None:
    whole = client.responses.create(model="chat", input="hello you", temperature=0)
    assert (whole.status, whole.model, whole.output_text) == ("completed", "chat", "HELLO YOU cold")
    events = list(client.responses.create(model="chat", input=[{"role": "user", "content": "hello you"}], stream=True))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert deltas == ["HELLO ", "YOU "]
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == "HELLO YOU "


def test_a_function_without_messages_answers_no_responses(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="does not answer"):
        client.responses.create(model="embed", input="hello you")
