"""What a request of OpenAI's clients comes to for a function, and what becomes of its result; without a server."""

import json
import math
from typing import Any

import numpy as np
import pytest

from ts.contracts.served_functions.invalid_values import InvalidValue
from ts.contracts.served_functions.openai_functions import OpenAICall

CHAT = "v1/chat/completions"


def call(parameters: dict[str, Any], **more: Any) -> OpenAICall:
    made = OpenAICall.of(CHAT, {"model": "m", "messages": [], **more}, {"messages": list, **parameters})
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("sent", "taken"), [("max_tokens", "max_completion_tokens"), ("max_completion_tokens", "max_tokens")]
)
def test_both_names_of_the_limit_of_tokens_reach_a_function_that_has_one(sent: str, taken: str) -> None:
    assert call({taken: int}, **{sent: 5}).arguments == {"messages": [], taken: 5}
    assert call({sent: int}, **{sent: 5}).arguments == {"messages": [], sent: 5}
    with pytest.raises(InvalidValue, match=f"{sent} has no effect"):
        call({}, **{sent: 5})


def test_values_that_change_nothing_are_no_mistake() -> None:
    harmless = {"stop": None, "seed": None, "logprobs": False, "temperature": 1.0, "top_p": 1, "logit_bias": {}, "n": 1}
    assert call({}, **harmless).arguments == {"messages": []}


def test_what_cannot_change_the_answer_is_ignored_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        for _ in range(2):
            assert call({}, prompt_cache_retention="24h", use_beam_search=False).arguments == {"messages": []}
    assert len(caplog.messages) == 2
    for name, value in (("use_beam_search", True), ("colour", 1), ("n", True), ("tool_choice", "required")):
        with pytest.raises(InvalidValue, match=f"{name} has no effect"):
            call({}, **{name: value})


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        ("hello", "stop"),
        ({"content": "hello", "finish_reason": "length"}, "length"),
        ({"content": "", "tool_calls": [{"id": "1"}]}, "tool_calls"),
    ],
)
def test_a_function_says_why_its_answer_ends(result: Any, reason: str) -> None:
    whole = call({}).whole(result)
    assert whole["choices"][0]["finish_reason"] == reason
    assert "finish_reason" not in whole["choices"][0]["message"]
    events = call({}, stream=True).whole(result)
    reasons = [json.loads(each[6:])["choices"][0]["finish_reason"] for each in events.split("\n\n")[:-2]]
    assert reasons[-1] == reason


def test_the_reason_may_come_last() -> None:
    streamed = call({}, stream=True)
    assert streamed.part("hello") is not None
    assert streamed.part({"finish_reason": "length"}) is None
    assert '"finish_reason": "length"' in streamed.end()


def test_events_have_numbers_of_numpy_and_null_for_nan_as_whole_answers_do() -> None:
    part = {"content": "a", "scores": [np.float32(0.5), math.nan]}
    event = call({}, stream=True).part(part)
    assert event is not None
    delta = json.loads(event.removeprefix("data: "), parse_constant=pytest.fail)["choices"][0]["delta"]
    assert delta == {"role": "assistant", "content": "a", "scores": [0.5, None]}


def test_a_reason_that_is_no_text_fails_the_request() -> None:
    with pytest.raises(ValueError, match="finish_reason is to be a text"):
        call({}).part({"finish_reason": 3})


@pytest.mark.parametrize("body", [b"{", b"[" * 100_000])
def test_a_body_that_is_not_json_or_nested_too_deeply_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidValue, match=r"^the body is not JSON: "):
        OpenAICall.of(CHAT, body, {"messages": list})


def test_nothing_to_embed_is_the_clients_mistake() -> None:
    with pytest.raises(InvalidValue, match=r"^input: the list is empty; send a text, or a list of at least one$"):
        OpenAICall.of("v1/embeddings", {"model": "m", "input": []}, {"input": list[str]})
