"""Streams that fail or pause: before their first chunk that is an error, later never a complete answer."""

import httpx
import openai
import pytest
from tests.conformance.truss.serving import Serving, Truss, is_error

TRUSSES = {
    "streams": Truss("streams:Streams"),
    "as_truss_does": Truss("streams:Streams", options={"truss": {"streamErrors": "end"}}),
    "gaps": Truss("streams:Gaps", {"runtime": {"streaming_read_timeout": 1}}),
    "openai": Truss("requests:OpenAi"),
    "other": Truss("basics:Echo"),
}


def read(serving: Serving, name: str, inputs: str) -> tuple[bytes, bool]:
    """Read a stream as far as it goes; return its bytes and whether it was complete."""
    received = b""
    with serving.stream(name, inputs) as response:
        assert response.status_code == 200
        try:
            for chunk in response.iter_raw():
                received += chunk
        except httpx.RemoteProtocolError:
            return received, False
    return received, True


def test_row_45_as_truss_does_a_stream_that_fails_ends_cleanly(serving: Serving) -> None:
    assert read(serving, "as_truss_does", "late error") == (b"012", True)
    assert read(serving, "as_truss_does", "numbers") == (b"01234", True)


def test_row_46_a_stream_that_fails_midway_is_broken_off(serving: Serving) -> None:
    start = len(serving.log())
    assert read(serving, "streams", "late error") == (b"012", False)
    serving.wait_for_log("a secret detail", start)
    assert read(serving, "streams", "numbers") == (b"01234", True)  # the slot is free


def test_row_46_a_chunk_of_a_wrong_type_breaks_it_off_too(serving: Serving) -> None:
    assert read(serving, "streams", "wrong type") == (b"012", False)


@pytest.mark.parametrize("name", ["streams", "as_truss_does"])
def test_row_46_an_error_before_the_first_chunk_is_an_error(name: str, serving: Serving) -> None:
    told = is_error(serving.predict(name, "early error"), 500, 600)
    assert told == "Internal Server Error (in model/chainlet)."


def test_row_46_the_status_of_an_http_exception_is_kept(serving: Serving) -> None:
    assert is_error(serving.predict("streams", "early http error"), 418, 600) == "a teapot"


def test_rows_47_48_a_stream_that_pauses_for_too_long_is_broken_off_and_its_slot_free(serving: Serving) -> None:
    start = len(serving.log())
    assert read(serving, "gaps", "later") == (b"first", False)
    assert serving.predict("gaps", "plain").json() == "served"
    assert serving.ask("gaps") == 1
    assert "streaming_read_timeout" in serving.wait_for_log("streaming_read_timeout", start)


def test_row_47_so_is_one_that_does_not_begin(serving: Serving) -> None:
    assert read(serving, "gaps", "never") == (b"", False)
    assert serving.predict("gaps", "plain").json() == "served"


# OpenAI's own client.


@pytest.fixture
def client(serving: Serving) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{serving.running.inference}/v1", api_key="none", max_retries=0)


def test_openais_client_names_the_model_and_gets_its_answer(client: openai.OpenAI) -> None:
    message = {"role": "user", "content": "hello you"}
    answer = client.chat.completions.create(model="openai", messages=[message])
    assert answer.choices[0].message.content == "HELLO YOU"


def test_openais_client_streams(serving: Serving) -> None:
    base_url = f"{serving.running.inference}/v1/models/openai/v1"
    client = openai.OpenAI(base_url=base_url, api_key="none", max_retries=0)
    message = {"role": "user", "content": "one two three"}
    stream = client.chat.completions.create(model="whatever", messages=[message], stream=True)
    assert [chunk.choices[0].delta.content for chunk in stream] == ["one", "two", "three"]


def test_openais_client_is_told_of_a_model_that_lacks_the_endpoint(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.embeddings.create(model="other", input="x")
    assert "embeddings" in is_error(caught.value.response, 404, 700)


def test_openais_client_is_told_of_a_model_that_is_not_there(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.embeddings.create(model="gone", input="x")
    assert "There are several models" in is_error(caught.value.response, 404, 700)
