"""What a step of handlers/chat costs, and what it does not depend on.

    python -m benchmarks.chat_steps [--rounds 5] [--resting 5000]

- Tokens per second of 1 and of 16 users whose prompts have 1,500 tokens.
- A step with 15 conversations of 100 tokens and one of 7,000, next to the steps of the two groups by themselves.
- Tokens per second while thousands of conversations rest, next to none.
- Turn 50 of a conversation next to its first one, with and without the time of attention.

The model is a Llama of 3.9 million parameters that mean nothing. Time is what it takes of one core, so other programs
hardly matter. What is compared is measured in turn; each figure is the median of the rounds.
"""

from __future__ import annotations

import argparse
import importlib
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM, LlamaConfig

from benchmarks.benchmark_models import ROOT

WORDS = 2000
#: Steps in which an answer is made.
ANSWER = 20
TURN = 20


class Attention:
    """Counts the processor time of attention, in place of the function that computes it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.seconds = 0.0

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Attend."""
        began = time.process_time()
        try:
            return self._function(*arguments, **options)
        finally:
            self.seconds += time.process_time() - began


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chat_steps", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="times that each figure is taken (default 5)")
    parser.add_argument("--resting", type=int, default=5000, help="conversations that rest (default 5000)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    attention = functional.scaled_dot_product_attention = Attention(functional.scaled_dot_product_attention)
    sys.path.insert(0, str(ROOT / "handlers" / "chat"))
    decoders = importlib.import_module("chat_decoder")
    users(decoders, options.rounds)
    lengths(decoders, options.rounds)
    resting(decoders, options.rounds, options.resting)
    turns(decoders, options.rounds, attention)


def users(decoders: Any, rounds: int) -> None:
    """Print the tokens per second of 1 and of 16 users."""
    decoder, taken = decoder_of(decoders), dict[int, list[float]]()
    for _ in range(rounds):
        for count in (1, 16):
            readings = begin(decoders, decoder, [1500] * count)
            taken.setdefault(count, []).append(seconds_of_answers(decoder, readings))
            end(decoder, readings)
    speed = {count: count * ANSWER / statistics.median(each) for count, each in taken.items()}
    print(
        f"1,500 tokens each: {speed[1]:.0f} tokens/s for 1 user, {speed[16]:.0f} for 16 ({speed[16] / speed[1]:.1f} x)"
    )


def lengths(decoders: Any, rounds: int) -> None:
    """Print the time of a step with lengths that differ."""
    decoder, groups = decoder_of(decoders), ([100] * 15, [7000], [100] * 15 + [7000])
    taken: list[list[float]] = [[] for _ in groups]
    for _ in range(rounds):
        for place, group in enumerate(groups):
            readings = begin(decoders, decoder, group)
            taken[place].append(seconds_of_answers(decoder, readings) / ANSWER)
            end(decoder, readings)
    short, long, both = (statistics.median(each) * 1e3 for each in taken)
    print(
        f"a step: 15 of 100 tokens {short:.1f} ms, one of 7,000 {long:.1f} ms, all {both:.1f} ms"
        f" ({both / (short + long):.2f} x the sum)"
    )


def resting(decoders: Any, rounds: int, count: int) -> None:
    """Print the tokens per second while conversations rest, and while none does."""
    none, many = decoder_of(decoders), decoder_of(decoders)
    for _ in range(count // 50):
        end(many, begin(decoders, many, [100] * 50))
    taken: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for decoder, seconds in zip((none, many), taken, strict=True):
            readings = begin(decoders, decoder, [100] * 8)
            seconds.append(seconds_of_answers(decoder, readings))
            end(decoder, readings)
    empty, full = (8 * ANSWER / statistics.median(each) for each in taken)
    print(
        f"8 users: {empty:.0f} tokens/s, {full:.0f} while {len(many.prefixes)} conversations rest"
        f" ({full / empty - 1:+.1%})"
    )


def turns(decoders: Any, rounds: int, attention: Attention, last: int = 50) -> None:
    """Print what the first and the last turn of a conversation take."""
    decoder, order = decoder_of(decoders), random.Random(1)
    taken: dict[int, list[tuple[float, float]]] = {1: [], last: []}
    for _ in range(rounds):
        tokens: list[int] = []
        for turn in range(1, last + 1):
            reading = decoders.Reading([*tokens, *order.choices(range(WORDS), k=TURN)])
            began, attention.seconds = time.process_time(), 0.0
            answer(decoder, [reading])
            decoder.keep(reading)
            tokens = reading.tokens
            if turn in taken:
                taken[turn].append((time.process_time() - began, attention.seconds))
    whole = [statistics.median(each for each, _ in pairs) * 1e3 for pairs in taken.values()]
    rest = [statistics.median(each - attends for each, attends in pairs) * 1e3 for pairs in taken.values()]
    print(
        f"turn {last} {whole[1]:.0f} ms, turn 1 {whole[0]:.0f} ms ({whole[1] / whole[0]:.2f} x); apart from attention"
        f" {rest[1]:.0f} ms and {rest[0]:.0f} ms ({rest[1] / rest[0]:.2f} x)"
    )


def decoder_of(decoders: Any) -> Any:
    """Return a decoder of the model with 4 GiB for keys and values."""
    torch.manual_seed(0)
    config = LlamaConfig(
        **{"vocab_size": WORDS, "hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4},
        **{"num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 8192},
    )
    model = AutoModelForCausalLM.from_config(config).eval()
    return decoders.Decoder(model, most_bytes=1 << 32, most_host_bytes=0, most_prompt=512)


def begin(decoders: Any, decoder: Any, prompts: Sequence[int]) -> list[Any]:
    """Return conversations whose prompts, of so many tokens, were read, each with the first token of its answer."""
    readings = [decoders.Reading([random.randrange(WORDS) for _ in range(length)]) for length in prompts]
    wanted = dict(zip(readings, prompts, strict=True))
    while unread := [reading for reading in readings if len(reading.tokens) == wanted[reading]]:
        for reading, logits in decoder.step(unread).items():
            reading.tokens.append(int(logits.argmax()))
    return readings


def answer(decoder: Any, readings: list[Any]) -> None:
    """Give each of these conversations the tokens of an answer."""
    lefts = dict.fromkeys(readings, ANSWER)
    while lefts:
        for reading, logits in decoder.step(list(lefts)).items():
            reading.tokens.append(int(logits.argmax()))
            lefts[reading] -= 1
            if not lefts[reading]:
                del lefts[reading]


def seconds_of_answers(decoder: Any, readings: list[Any]) -> float:
    """Return the processor time of answers, after a step that is not counted."""
    for reading, logits in decoder.step(readings).items():
        reading.tokens.append(int(logits.argmax()))
    began = time.process_time()
    answer(decoder, readings)
    return time.process_time() - began


def end(decoder: Any, readings: list[Any]) -> None:
    """Have conversations rest."""
    for reading in readings:
        decoder.keep(reading)


if __name__ == "__main__":
    main()
