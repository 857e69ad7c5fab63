"""handlers/chat: what the model computes in one batch of many conversations is what it computes for each alone."""

import copy
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.unit.handlers.conftest import HANDLERS, load_module

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

WORDS = 40
SIZES = {"vocab_size": WORDS, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
SHAPE = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
#: Where positions are turned into angles transformers computes in float32, whatever the model's type.
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def config_of(kind: str) -> Any:
    """A small configuration of each way to say where a token is: angles, learned positions, slopes, windows."""
    if kind == "llama":
        return transformers.LlamaConfig(**SIZES, **SHAPE)
    if kind == "mistral":
        return transformers.MistralConfig(**SIZES, **SHAPE, sliding_window=12)
    if kind == "gemma2":
        return transformers.Gemma2Config(**SIZES, **SHAPE, head_dim=4, sliding_window=12)
    if kind == "gpt2":
        return transformers.GPT2Config(**SIZES, n_embd=16, n_layer=2, n_head=4, n_positions=512)
    if kind == "bloom":
        return transformers.BloomConfig(**SIZES, hidden_size=16, n_layer=2, n_head=4)
    return transformers.OPTConfig(
        **(SIZES | {"pad_token_id": 1}), hidden_size=16, ffn_dim=32, num_hidden_layers=2, num_attention_heads=4
    )


def model_of(kind: str) -> Any:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config_of(kind), dtype=torch.float64).eval()
    for parameter in model.parameters():  # as trained ones are: far enough from 0 that every token matters
        torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.fixture(scope="module")
def decoders() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HANDLERS / "chat"))
        yield load_module(HANDLERS / "chat" / "chat_decoder.py")


@pytest.fixture(scope="module")
def llama() -> Any:
    return model_of("llama")


def expected(model: Any, tokens: list[int]) -> Any:
    """Return the logits after each token, [tokens, words], as the model computes them in one go."""
    with torch.inference_mode():
        return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]


UNIT = 16


class Conversations:
    """Plays conversations against a decoder, and compares each of its logits."""

    def __init__(self, decoders: ModuleType, model: Any, units: int, most_prompt: int) -> None:
        self.reading = decoders.Reading
        probe = decoders.Decoder(copy.deepcopy(model), most_bytes=1 << 20, most_host_bytes=0, most_prompt=1)
        size = UNIT * probe.layout.token_bytes
        self.decoder = decoders.Decoder(
            copy.deepcopy(model), most_bytes=units * size, most_host_bytes=3 * size, most_prompt=most_prompt
        )
        self.model = model
        self.live: dict[Any, int] = {}  # how many tokens each answer still gets

    def begin(self, tokens: list[int], answer: int) -> Any:
        reading = self.reading(list(tokens))
        self.live[reading] = answer
        return reading

    def step(self) -> list[Any]:
        """One step of all conversations; return those that have their answer."""
        for reading, logits in self.decoder.step(list(self.live)).items():
            torch.testing.assert_close(logits, expected(self.model, reading.tokens)[-1], **CLOSE)
            assert self.decoder.used_bytes <= self.decoder.most_bytes
            reading.tokens.append(int(logits.argmax()))
            self.live[reading] -= 1
        done = [reading for reading, left in self.live.items() if not left]
        for reading in done:
            del self.live[reading]
            self.decoder.keep(reading)
        return done


TURN = st.tuples(st.lists(st.integers(0, WORDS - 1), min_size=1, max_size=30), st.integers(1, 6))


@settings(max_examples=examples(15))
@given(
    conversations=st.lists(st.lists(TURN, min_size=1, max_size=3), min_size=1, max_size=5),
    order=st.randoms(use_true_random=False),
    units=st.integers(10, 30),
    most_prompt=st.integers(3, 40),
)
def test_every_interleaving_of_conversations_gives_the_logits_of_each_alone(
    decoders: ModuleType, llama: Any, conversations: list[Any], order: Any, units: int, most_prompt: int
) -> None:
    play = Conversations(decoders, llama, units, most_prompt)
    waiting = [(index, []) for index in range(len(conversations))]
    running: dict[Any, int] = {}
    while waiting or running:
        while waiting and (not running or order.random() < 0.5):
            index, history = waiting.pop(order.randrange(len(waiting)))
            prompt, answer = conversations[index].pop(0)
            running[play.begin([*history, *prompt], answer)] = index
        for reading in play.step():
            index = running.pop(reading)
            if conversations[index]:
                waiting.append((index, reading.tokens))
        if running and order.random() < 0.05:  # a client leaves; its conversation continues from before
            reading = order.choice(list(running))
            play.decoder.keep(reading)
            del play.live[reading], running[reading]


@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma2", "gpt2", "bloom", "opt"])
def test_models_that_place_tokens_in_different_ways(decoders: ModuleType, kind: str) -> None:
    play = Conversations(decoders, model_of(kind), 40, 11)
    first = play.begin(list(range(2, 25)), 4)
    play.step()
    play.begin([5, 6, 7], 12)
    while play.live:
        play.step()
    play.begin([*first.tokens, 3, 4], 3)
    play.begin([*first.tokens[:20], 9], 3)  # a fork
    while play.live:
        play.step()


def test_the_tokens_are_those_of_generate(decoders: ModuleType, llama: Any) -> None:
    play = Conversations(decoders, llama, 40, 8)
    prompts = [[3, 1, 4, 1, 5], [9, 2, 6] * 8, [5]]
    readings = [play.begin(prompt, 10) for prompt in prompts]
    while play.live:
        play.step()
    for prompt, reading in zip(prompts, readings, strict=True):
        ids = torch.tensor([prompt])
        whole = llama.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=10, do_sample=False)
        assert reading.tokens == whole[0].tolist()


def test_what_was_read_before_is_not_read_again(decoders: ModuleType, llama: Any) -> None:
    play = Conversations(decoders, llama, 60, 100)
    first = play.begin(list(range(40)), 3)
    while play.live:
        play.step()
    second, fork = play.begin([*first.tokens, 1, 2], 1), play.begin([*range(35), 0, 0], 1)
    stranger = play.begin([7] * 30, 1)
    play.step()
    assert (first.kept, second.kept, fork.kept, stranger.kept) == (0, 42, 35, 0)


def test_conversations_that_rest_make_room_and_come_back(decoders: ModuleType, llama: Any) -> None:
    play = Conversations(decoders, llama, 8, 100)

    def read(tokens: list[int]) -> Any:
        reading = play.begin(tokens, 1)
        while play.live:
            play.step()
        return reading

    for word in range(6):
        read([word] * 40)
    # Two conversations fit next to one that runs, and one into the host's memory; the others are read again.
    assert [read([word] * 41).kept for word in (3, 0)] == [40, 0]


def test_more_conversations_than_there_is_room_for_take_turns(decoders: ModuleType, llama: Any) -> None:
    play = Conversations(decoders, llama, 7, 100)
    readings = [play.begin([word] * 30, 30) for word in range(4)]
    finished = []
    while play.live:
        finished += play.step()
    assert finished[0] is readings[0]
    assert len(finished) == 4


def test_memory_alone_limits_how_many_are_answered_at_a_time(decoders: ModuleType, llama: Any) -> None:
    play = Conversations(decoders, llama, 400, 512)
    readings = [play.begin([word % WORDS, 2, 3], 3) for word in range(64)]
    play.step()
    assert all(len(reading.tokens) == 4 for reading in readings)


def test_a_conversation_that_stays_is_not_copied(decoders: ModuleType, llama: Any) -> None:
    play = Conversations(decoders, llama, 400, 512)
    readings = [play.begin([word] * 40, 8) for word in range(3)]
    play.step()
    before = [tensor.data_ptr() for reading in readings for tensor in reading._place.key_values]
    for _ in range(6):  # up to the capacity of their places
        play.step()
    assert [tensor.data_ptr() for reading in readings for tensor in reading._place.key_values] == before


def test_one_that_fits_nowhere_is_refused(decoders: ModuleType, llama: Any) -> None:
    play = Conversations(decoders, llama, 5, 100)
    assert play.decoder.most_tokens == 48, "it has two places while it moves to the larger one"
    play.begin([1] * 97, 1)
    with pytest.raises(ValueError, match=r"the keys and values of 97 tokens do not fit .* room for 48"):
        play.step()


def test_numbers_that_are_none_stay_with_their_conversation(decoders: ModuleType, llama: Any) -> None:
    model = copy.deepcopy(llama)
    with torch.no_grad():
        model.get_input_embeddings().weight[7] = torch.nan
    play = Conversations(decoders, model, 400, 8)
    bad, good = [7] * 40, [3, 1, 4, 1, 5] * 6
    for _ in range(3):  # in the memory that the others have left, and beside them
        readings = [play.reading(tokens) for tokens in (bad, good, bad[:20], good[:9])]
        waiting = list(readings)
        while waiting:
            for reading, logits in play.decoder.step(waiting).items():
                is_good = 7 not in reading.tokens
                assert bool(logits.isfinite().all()) is is_good
                if is_good:
                    torch.testing.assert_close(logits, expected(model, reading.tokens)[-1], **CLOSE)
                waiting.remove(reading)
        for place, reading in enumerate(readings):
            play.decoder.forget(reading) if place == 0 else play.decoder.keep(reading)


def test_one_long_conversation_is_not_computed_with_the_short_ones(
    decoders: ModuleType, llama: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    attention = sys.modules["chat_attention"]
    attend, scores = attention.scaled_dot_product_attention, []

    def counted(query: Any, key: Any, *arguments: Any, **options: Any) -> Any:
        scores.append(query.shape[0] * key.shape[2])
        return attend(query, key, *arguments, **options)

    play = Conversations(decoders, llama, 2000, 600)
    for length in (20, 20, 20, 500):
        play.begin([1] * length, 2)
    play.step()
    monkeypatch.setattr(attention, "scaled_dot_product_attention", counted)
    play.step()
    assert sum(scores) == 2 * (3 * 21 + 501)


def test_a_model_without_keys_and_values_is_refused(decoders: ModuleType) -> None:
    config = transformers.MambaConfig(vocab_size=WORDS, hidden_size=8, state_size=4, num_hidden_layers=1)
    model = transformers.MambaForCausalLM(config).eval()
    with pytest.raises(ValueError, match="mamba"):
        decoders.Decoder(model, most_bytes=1 << 20, most_host_bytes=0, most_prompt=1)


def test_a_folder_is_all_that_a_worker_needs(tmp_path: Path, llama: Any) -> None:
    llama.save_pretrained(tmp_path)
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".safetensors"}


@pytest.mark.parametrize("kind", ["mistral", "gemma2"])
def test_models_with_their_own_attention_run_by_themselves(decoders: ModuleType, kind: str) -> None:
    decoder = decoders.Decoder(model_of(kind), most_bytes=1 << 20, most_host_bytes=0, most_prompt=1)
    assert decoder.is_packed is (kind == "mistral")  # that of gemma2 has softcap
