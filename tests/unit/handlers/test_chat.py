"""handlers/chat: turns of conversations, as its clients see them."""

import json
import random
import re
import sys
from collections.abc import Callable, Iterator
from functools import reduce
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tests.unit.handlers.chat_server import CHAT, Server
from tests.unit.handlers.conftest import HANDLERS, FakeContext, load_module

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def modules() -> Iterator[dict[str, ModuleType]]:
    """The handler's module and the script that trains, imported as a worker does."""
    folder = HANDLERS / "chat"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield {name: load_module(folder / f"{name}.py") for name in ("chat_handler", "train")}
    for name in [name for name in sys.modules if name.startswith("chat_")]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def model(modules: dict[str, ModuleType], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model that the script trains, but with weights that mean nothing, and exact arithmetic."""
    folder = tmp_path_factory.mktemp("chat")
    modules["train"].train(folder / "model", steps=0)
    net = transformers.AutoModelForCausalLM.from_pretrained(folder / "model").double()
    torch.manual_seed(1)
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    with torch.no_grad():  # it hardly ever says a token that is not text
        net.get_input_embeddings().weight[: modules["train"].WORDS.index("remember")] = 0.0
    net.save_pretrained(folder / "model")
    return folder


@pytest.fixture
def start(modules: dict[str, ModuleType], model: Path) -> Callable[..., Server]:
    def begin(**config: Any) -> Server:
        # Else each handler takes a gigabyte, which the collector finds late.
        settings = {"max_tokens": 8, "kv_bytes": 50_000_000} | config
        return Server(modules["chat_handler"].ChatHandler(), model, settings)

    return begin


def said(tokens: Any, text: str) -> dict[str, Any]:
    return {"message": text, "max_tokens": tokens}


FACTS = ("remember cat=red", "recall cat", "remember dog=blue", "recall dog")


def test_conversations_at_once_get_what_each_gets_alone(start: Callable[..., Server]) -> None:
    order = random.Random(5)
    alone = start(temperature=0.9)
    wanted = {}
    for n in range(4):
        bodies = [{"message": FACTS[0], "seed": n}, *FACTS[1:]]
        wanted[f"s{n}"] = [alone.ask(body, f"s{n}") for body in bodies]
    together = start(temperature=0.9, kv_bytes=150_000, prefill_tokens=7)
    turns: dict[str, int] = dict.fromkeys(wanted, 0)
    while together.live or any(turn < len(FACTS) for turn in turns.values()):
        for sequence, turn in turns.items():
            is_free = f"{sequence}/{turn - 1}" not in together.live
            if is_free and turn < len(FACTS) and order.random() < 0.4:
                body = FACTS[turn] if turn else {"message": FACTS[0], "seed": int(sequence[1:])}
                together.send(f"{sequence}/{turn}", body, sequence)
                turns[sequence] += 1
        if together.live:
            together.step()
    texts = {name: [_text(each) for each in answers] for name, answers in wanted.items()}
    assert texts == {
        name: [_text(together.parts[f"{name}/{turn}"][0]) for turn in range(len(FACTS))] for name in wanted
    }
    assert together.logs() == alone.logs()
    assert len({text for answers in texts.values() for text in answers}) > 4


def _text(answer: Any) -> str:
    text: str = answer["text"] if isinstance(answer, dict) else answer
    return text


def test_a_conversation_continues_from_its_log_on_another_worker(start: Callable[..., Server]) -> None:
    first, seeded = start(temperature=1.0), {"message": FACTS[0], "seed": 7}
    answers = [first.ask(body, "a") for body in (seeded, *FACTS[1:])]
    one = start(temperature=1.0)
    one.ask(seeded, "a")
    one.ask(FACTS[1], "a")
    other = start(temperature=1.0)
    # A log comes back from what each turn has appended, and perhaps an earlier state.
    log = one.logs()["a"]
    assert other.handler.rebuild([None, log[:1]], [log, log[1:]]) == [log, log]
    other.context.sequence_cache["a"] = log
    assert [other.ask(text, "a") for text in FACTS[2:]] == answers[2:]


def test_the_log_is_what_the_template_makes_of_the_whole_conversation(start: Callable[..., Server]) -> None:
    server = start()
    messages: list[dict[str, str]] = []
    for text in FACTS:
        messages += [{"role": "user", "content": text}, {"role": "assistant", "content": server.ask(text, "a")}]
    whole = server.ask({"messages": messages[:-1], "max_tokens": 8}, "b")
    assert whole["text"] == messages[-1]["content"]
    assert whole["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_a_turn_waits_for_the_one_before(start: Callable[..., Server]) -> None:
    server = start()
    wanted = [server.ask(text, "a") for text in FACTS[:2]]
    server.send("first", FACTS[0], "b")
    server.step()
    server.send("second", FACTS[1], "b")
    server.run()
    assert [server.parts["first"], server.parts["second"]] == [[wanted[0]], [wanted[1]]]


def test_a_client_that_leaves_takes_its_turn_along(start: Callable[..., Server]) -> None:
    server = start()
    wanted = [server.ask(text, "a") for text in FACTS[:2]]
    server.ask(FACTS[0], "b")
    server.send("gone", "remember cat=white", "b")
    server.step()
    server.step()
    server.leave("gone")
    assert server.ask(FACTS[1], "b") == wanted[1]
    server.send("gone", "remember cat=white", "c")
    server.step()
    server.leave("gone")
    server.handler.on_cancel(["gone"])
    assert not server.handler.replies


def test_streams_say_the_same_in_parts(start: Callable[..., Server]) -> None:
    server = start()
    whole = server.ask(FACTS[0], "a")
    server.send("stream", {"message": FACTS[0], "stream": True}, "b")
    server.run()
    assert "".join(server.parts["stream"]) == whole
    assert len(server.parts["stream"]) > 2
    assert server.heads["stream"]["content-type"].startswith("text/plain")


def test_a_seed_decides_what_is_drawn(start: Callable[..., Server]) -> None:
    server = start(temperature=1.5)

    def answer(name: str, **options: Any) -> str:
        text: str = server.ask({"message": "remember cat=red"} | options, name)["text"]
        return text

    seeded = [answer(f"s{n}", seed=n) for n in range(6)]
    assert [answer(f"t{n}", seed=n) for n in range(6)] == seeded
    assert len(set(seeded)) > 3
    assert len({answer(f"u{n}") for n in range(6)}) > 3
    # The first tokens alone, or nearly so, are the likeliest one.
    greedy = answer("greedy", temperature=0)
    assert {answer("k", top_k=1), answer("p", top_p=1e-9)} == {greedy}


def test_a_repeated_turn_is_drawn_anew_unless_its_conversation_has_a_seed(start: Callable[..., Server]) -> None:
    server = start(temperature=1.5)
    for body, count in ((FACTS[0], 2), ({"message": FACTS[0], "seed": 3}, 1)):
        server.ask(body, "a")
        log = server.logs()["a"]
        server.context.sequence_cache.run({"a", *"bcdef"})
        for fork in "bcdef":
            server.context.sequence_cache[fork] = log
        answers = {server.ask(FACTS[1], fork) for fork in "bcdef"}
        assert len(answers) == 1 if count == 1 else len(answers) >= count
        server.context.sequence_cache.pop("a")


def test_several_answers_are_what_each_is_alone(start: Callable[..., Server]) -> None:
    server = start()
    asked = {"messages": [{"role": "user", "content": " ".join(FACTS * 2)}], "temperature": 1.5, "max_tokens": 6}
    alone = [server.ask(asked | {"seed": seed}, **CHAT)["choices"][0]["message"]["content"] for seed in (7, 8, 9)]
    whole = start().ask(asked | {"seed": 7, "n": 3}, **CHAT)
    assert [choice["message"]["content"] for choice in whole["choices"]] == alone
    assert (whole["usage"]["prompt_tokens"], whole["usage"]["completion_tokens"]) == (19, 18)
    # A client that leaves takes all of them along.
    server.send("gone", asked | {"n": 3, "max_tokens": 50}, **CHAT)
    for _ in range(3):
        server.step()
    server.leave("gone")
    server.handler.on_cancel(["gone"])
    assert not server.handler.replies


def test_sampling_by_min_p_and_penalties(start: Callable[..., Server]) -> None:
    server = start()
    asked = {"message": "remember cat=red", "max_tokens": 6, "seed": 1}
    greedy = server.ask(asked | {"temperature": 0}, "a")["text"]
    assert server.ask(asked | {"temperature": 1.5, "min_p": 1.0}, "b")["text"] == greedy
    words = server.ask(asked | {"temperature": 0, "frequency_penalty": 2, "repetition_penalty": 2}, "c")["text"].split()
    token = server.handler.text.encode("boat=red")[0]
    assert set(server.ask(asked | {"logit_bias": {str(token): 100}}, "d")["text"].split()) == {"boat=red"}
    assert len(set(words)) >= len(set(greedy.split()))


def test_completions_of_several_prompts(start: Callable[..., Server]) -> None:
    server, path = start(), {"url_path": "v1/completions"}
    prompts = ["remember cat=red", server.handler.text.encode("recall cat")]
    alone = [server.ask({"prompt": prompt}, **path)["choices"][0]["text"] for prompt in prompts]
    whole = server.ask({"prompt": prompts}, **path)
    assert [choice["text"] for choice in whole["choices"]] == alone
    for body, message in (
        ({}, "prompt is None"),
        ({"prompt": [[1], "a", 3]}, "prompt is"),
        ({"prompt": [10**6]}, "1000000 is no token of this model"),
        ({"prompt": ["a"] * 65, "n": 2}, "128 answers are the most"),
        ({"prompt": "a", "echo": True}, "echo is not supported"),
    ):
        status, text = server.ask(body, **path)
        assert status == 400
        assert message in text


def test_what_ends_an_answer(start: Callable[..., Server]) -> None:
    server = start()
    drawn = {"message": "remember cat=red", "temperature": 1.5, "seed": 4}
    whole = server.ask(drawn, "a")
    words = whole["text"].split()
    assert (whole["finish_reason"], whole["usage"]["completion_tokens"], len(words)) == ("length", 8, 8)
    assert server.ask(drawn | {"max_tokens": 3}, "b")["text"].split() == words[:3]
    place = next(n for n in range(2, 7) if words[n] not in words[:n])
    # Across two words, and as a token.
    stop = f"{words[place - 1]} {words[place]}"
    stopped = server.ask(drawn | {"stop": ["never", stop]}, "c")
    assert (stopped["text"].split(), stopped["finish_reason"]) == (words[: place - 1], "stop")
    token = server.handler.text.encode(words[place])
    stopped = server.ask(drawn | {"stop_token_ids": token}, "d")
    assert (stopped["text"].split(), stopped["finish_reason"]) == (words[:place], "stop")
    # What the client did not get is not in the conversation.
    server.send("stream", drawn | {"stop": stop, "stream": True}, "e")
    server.run()
    assert "".join(server.parts["stream"]).split() == words[: place - 1]
    prompt = server.handler.text.prompt([{"role": "user", "content": "remember cat=red"}], continues=False)
    said = server.handler.text.encode(" ".join(words[: place - 1]))
    for name in "ce":
        ((tokens, *_),) = server.logs()[name]
        assert list(memoryview(tokens).cast("I")) == [*prompt, *said]
    server.handler.ends = set(token)
    assert server.ask(drawn, "f")["text"].split() == words[:place]


def test_openai_completions(start: Callable[..., Server]) -> None:
    server = start()
    messages = [{"role": "user", "content": [{"type": "text", "text": "remember cat=red"}]}]
    asked = {"model": "chat", "messages": messages, "max_completion_tokens": 8, "temperature": 0, "n": 1}
    whole = server.ask(json.dumps(asked).encode(), **CHAT)
    assert whole["choices"][0]["message"]["content"] == server.ask("remember cat=red", "a")
    assert (whole["object"], whole["model"], whole["usage"]["total_tokens"]) == ("chat.completion", "chat", 5 + 8)
    server.send("stream", asked | {"stream": True, "stream_options": {"include_usage": True}}, **CHAT)
    server.run()
    assert server.heads["stream"]["content-type"] == "text/event-stream"
    events = "".join(server.parts["stream"]).split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    text = "".join(choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"])
    assert text == whole["choices"][0]["message"]["content"]
    assert chunks[-1]["usage"]["completion_tokens"] == 8
    # The sequence that the server had to make up is over.
    assert server.heads["stream"]["ts_request_sequence_end"] == "made-up-stream"
    assert "made-up-stream" not in server.logs()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("", "body is empty"),
        (b"\xff", "not a text in UTF-8"),
        (b"{oops", "not JSON"),
        ([1], "The body is"),
        (None, r"The body is None; a text \(text/plain\) or a JSON object"),
        ({}, "either 'message'"),
        ({"message": 5}, "message is 5"),
        ({"message": "a", "messages": []}, "either 'message'"),
        ({"messages": [{"role": "cat", "content": "a"}]}, r"messages\[0\].role is 'cat'"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "takes text only"),
        ({"message": "a", "max_tokens": 0}, "max_tokens is 0; a whole number, 1 or more is right"),
        ({"message": "a", "max_tokens": True}, "max_tokens is True"),
        ({"message": "a", "temperature": "hot"}, "temperature is 'hot'; a number, 0 to 2"),
        ({"message": "a", "temperature": float("nan")}, "temperature is nan"),
        ({"message": "a", "temperature": 10**400}, "temperature is 1000"),
        ({"messages": reduce(lambda inner, _: [inner], range(3000), [])}, r"messages\[0\] is nested too deeply"),
        ({"message": "a", "top_p": 0}, "top_p is 0"),
        ({"message": "a", "seed": -1}, "seed is -1"),
        ({"message": "a", "stop": [""]}, "stop is"),
        ({"message": "a", "stop_token_ids": "5"}, "stop_token_ids is '5'"),
        ({"message": "a", "stream": "yes"}, "stream is 'yes'"),
        ({"message": "a", "colour": 1}, "colour is not supported"),
        ({"message": "recall cat " * 400}, "has room for"),
        ({"message": "a\ud800"}, "surrogates not allowed"),
    ],
)
def test_a_bad_request_fails_alone(start: Callable[..., Server], body: Any, message: str) -> None:
    server = start(kv_bytes=200_000)
    server.send("good", FACTS[0], "a")
    server.step()
    server.send("bad", body, "b")
    server.run()
    status, text = server.errors["bad"]
    assert status == 400
    assert re.search(message, text)
    assert len(server.parts["good"][0].split()) == 8
    assert "b" not in server.logs()


@pytest.mark.parametrize(
    "wrong", [{"prompt": "a\ud83d"}, {"prompt": "a", "logit_bias": {"1" * 5000: 1}}, {"prompt": "a", "min_p": 10**400}]
)
def test_a_wrong_completion_is_the_clients_mistake(start: Callable[..., Server], wrong: dict[str, Any]) -> None:
    assert start().ask(wrong, url_path="v1/completions")[0] == 400


def test_what_a_request_raises_ends_no_other(start: Callable[..., Server], monkeypatch: pytest.MonkeyPatch) -> None:
    server = start()
    server.send("good", FACTS[0], "a")
    server.step()

    def broken(messages: Any, **_: Any) -> list[int]:
        raise OverflowError("a defect")

    with monkeypatch.context() as patched:
        patched.setattr(server.handler.text, "prompt", broken)
        server.send("bad", "recall dog", "b")
        server.step()
    server.run()
    assert server.errors == {"bad": (500, "The request cannot be answered: OverflowError: a defect")}
    assert len(server.parts["good"][0].split()) == 8
    assert not isinstance(server.ask("recall dog", "b"), tuple), "it can be sent again"


def test_a_conversation_whose_logits_are_no_numbers_fails_alone(start: Callable[..., Server]) -> None:
    server = start()
    wanted = server.ask(FACTS[0], "before")
    step = server.handler.decoder.step

    def bad_step(readings: Any) -> Any:
        bad = server.handler.replies["bad"].turns[0].reading
        return {each: logits * torch.nan if each is bad else logits for each, logits in step(readings).items()}

    server.send("bad", "recall dog", "b")
    server.send("good", FACTS[0], "a")
    server.handler.decoder.step = bad_step
    server.step()
    server.handler.decoder.step = step
    server.run()
    assert server.errors["bad"][0] == 500
    assert "NaN" in server.errors["bad"][1]
    assert server.parts["good"] == [wanted]
    assert "b" not in server.logs()
    assert not isinstance(server.ask("recall dog", "b"), tuple), "it can be sent again"


def test_a_token_that_the_model_does_not_have_fails_its_own_request(start: Callable[..., Server]) -> None:
    server = start()
    server.handler.text.tokenizer.add_tokens(["purple"])
    server.send("good", FACTS[0], "a")
    server.send("bad", "remember purple", "b")
    server.run()
    assert server.errors["bad"][0] == 400
    assert "this model knows the tokens 0 to" in server.errors["bad"][1]
    assert len(server.parts["good"][0].split()) == 8


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("tools", [{"type": "web_search"}]),
        ("tool_choice", "required"),
        ("n", 0),
        ("top_logprobs", 2),
        ("frequency_penalty", 3),
        ("logit_bias", {"cat": 5}),
        ("length_penalty", 0.5),
        ("modalities", ["audio"]),
        ("response_format", {"type": "json_object"}),  # the tokenizer has whole words
        ("colour", 1),
    ],
)
def test_what_openai_has_and_this_has_not_is_named(start: Callable[..., Server], field: str, value: Any) -> None:
    asked = {"messages": [{"role": "user", "content": "a"}], field: value}
    status, text = start().ask(asked, **CHAT)
    assert (status, json.loads(text)["error"]["param"]) == (400, field)


def test_a_conversation_of_openais_is_not_a_log(start: Callable[..., Server]) -> None:
    server = start()
    server.context.sequence_cache.run({"a"})
    server.context.sequence_cache["a"] = {"kind": "openai_responses"}
    status, text = server.ask("recall cat", "a")
    assert status == 400
    assert "not a log of turns" in text


def test_other_paths_are_refused(start: Callable[..., Server]) -> None:
    status, text = start().ask({"input": "a"}, url_path="v1/embeddings")
    assert status == 400
    assert "v1/embeddings" in text


def test_a_system_message_of_the_configuration(start: Callable[..., Server]) -> None:
    plain, told = start(), start(system="remember dog=blue")
    with_message = plain.ask(
        {"messages": [{"role": "system", "content": "remember dog=blue"}, {"role": "user", "content": "recall dog"}]},
        "a",
    )
    answer = told.ask({"message": "recall dog"}, "a")
    assert (answer["text"], answer["usage"]["prompt_tokens"]) == (
        with_message["text"],
        with_message["usage"]["prompt_tokens"],
    )


def test_a_model_without_a_template_continues_the_text(start: Callable[..., Server]) -> None:
    server = start()
    server.handler.text.has_template = False
    first = server.ask(said(4, "remember cat"), "a")["text"]
    second = server.ask(said(4, " recall"), "a")["text"]
    whole = server.ask({"message": f"remember cat {first} recall", "max_tokens": 4}, "b")
    assert whole["text"] == second


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"kv_bytes": "much"}, "handler.kv_bytes in model-config.yaml is 'much'"),
        ({"dtype": "int8"}, "handler.dtype"),
        ({"max_tokens": 0}, "handler.max_tokens"),
        ({"model_path": "elsewhere"}, "holds no model"),
        ({"kv_bytes": 1}, "1 bytes are too few for keys and values"),
    ],
)
def test_a_wrong_configuration_is_an_error_when_the_model_loads(
    start: Callable[..., Server], config: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        start(**config)


@pytest.mark.parametrize(
    ("value", "size"),
    [(None, None), (7, 7), ("800MB", 800_000_000), ("1.5GiB", 3 << 29), ("2Gi", 1 << 31), ("5 k", 5000)],
)
def test_the_memory_of_a_worker_is_written_as_for_the_server(
    modules: dict[str, ModuleType], value: Any, size: int | None
) -> None:
    assert sys.modules["chat_settings"]._bytes_in(value) == size


@pytest.mark.parametrize(
    ("config", "room", "size"),
    [
        ({}, None, 36_000),
        ({}, 30_000, 18_000),
        ({"memory": 20_000}, 30_000, 9_000),
        ({"memory": 60_000}, 30_000, 18_000),
    ],
)
def test_keys_and_values_take_what_the_budget_of_a_gpu_leaves(
    modules: dict[str, ModuleType],
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    config: dict[str, Any],
    room: int | None,
    size: int,
) -> None:
    settings = sys.modules["chat_settings"]
    context = FakeContext({"continuousBatching": True, "batchSize": 1} | config, model)
    context.system_properties["gpu_room"] = room
    weights = SimpleNamespace(weight=torch.empty(100, 0))
    loaded = SimpleNamespace(device=torch.device("cuda"), get_input_embeddings=lambda: weights)
    # Of 100,000 bytes 50,000 are free, and a step takes 5,200, and 48 for each of 100 scores.
    monkeypatch.setattr(settings, "_bytes_of_a_run", lambda *_: 5_200)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (50_000, 100_000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 0)
    assert settings.Settings.of(context).bytes_on(loaded) == size


def test_what_rests_takes_little_of_the_memory_of_the_host(start: Callable[..., Server]) -> None:
    settings = start().handler.settings
    assert settings.host_bytes_beside(torch.device("cpu")) == 0
    assert 0 < settings.host_bytes_beside(torch.device("cuda")) <= 4 << 30
    chosen = start(kv_host_bytes=5).handler.settings
    assert chosen.host_bytes_beside(torch.device("cpu")) == chosen.host_bytes_beside(torch.device("cuda")) == 5


def test_the_model_describes_itself(start: Callable[..., Server]) -> None:
    server = start()
    server.send("running", FACTS[0], "a")
    server.step()
    server.context.next_batch([("describing", {"describe": "True"})])
    (described,) = server.handler.handle([{}], server.context)
    assert (described["model_type"], described["state"]) == ("llama", "log of tokens")
    server.run()
    assert len(server.parts["running"][0].split()) == 8


def test_the_script_makes_a_model_that_learns(modules: dict[str, ModuleType], tmp_path: Path) -> None:
    train = modules["train"]
    torch.manual_seed(0)
    tokens, labels = train.batch(random.Random(1))
    assert tokens.shape == labels.shape
    first, later = train.train(tmp_path / "a", steps=1), train.train(tmp_path / "b", steps=30)
    assert later < first / 2
    said, by_model = train.conversation(random.Random(3), 160)
    assert {"ok", "<bot>"} <= set(said)
    assert next(word for word, mine in zip(said, by_model, strict=True) if mine) != "<bot>"
