"""What handlers/chat gains by remembering, and by answering many conversations at once.

    python -m benchmarks.chat [--rounds 3] [--turns 50] [--device cpu]

Time to the whole answer of turn n, with the keys and values of the turns before, and without, as for a server that gets
the whole history with each turn; and 32 conversations at once next to one after the other. The model is a Llama with
weights that mean nothing; time is what it takes of one core, so other programs hardly matter. Medians of the rounds.
"""

import argparse
import importlib
import random
import statistics
import sys
import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from benchmarks.benchmark_models import ROOT

sys.path.insert(0, str(ROOT / "handlers" / "chat"))
chat_decoder = importlib.import_module("chat_decoder")

WORDS = 1000
PROMPT = 20
ANSWER = 20
CONVERSATIONS = 32


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chat", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="times that each figure is taken (default 3)")
    parser.add_argument("--turns", type=int, default=50, help="turns of the conversation (default 50)")
    parser.add_argument("--device", default="cpu", help="where the model is (default cpu)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    decoder = decoder_on(options.device)
    random_ = random.Random(1)
    told = sorted({1, 2, 5, 10, 20, options.turns})
    print("time of turn n with what was kept, next to reading the whole history again:")
    for turn in told:
        history = [random_.randrange(WORDS) for _ in range((turn - 1) * (PROMPT + ANSWER))]
        kept, whole = [], []
        for _ in range(options.rounds):
            prompt = [random_.randrange(WORDS) for _ in range(PROMPT)]
            remember(decoder, history)
            kept.append(answer(decoder, [[*history, *prompt]]))
            forget(decoder)
            whole.append(answer(decoder, [[*history, *prompt]]))
            forget(decoder)
        one, other = statistics.median(kept), statistics.median(whole)
        print(f"  turn {turn}: {one * 1e3:.0f} ms, {other * 1e3:.0f} ms ({other / one:.1f} times)")
    together, alone = [], []
    for _ in range(options.rounds):
        prompts = [[random_.randrange(WORDS) for _ in range(PROMPT)] for _ in range(CONVERSATIONS)]
        together.append(answer(decoder, prompts))
        forget(decoder)
        alone.append(sum(answer(decoder, [prompt]) for prompt in prompts))
        forget(decoder)
    ratio = statistics.median(alone) / statistics.median(together)
    print(
        f"{CONVERSATIONS} conversations at once give {ratio:.1f} times as many tokens a second as one after the other"
    )


def decoder_on(device: str) -> Any:
    """Return a decoder of a small model with room for the longest conversation here."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=8192,
    )
    model = AutoModelForCausalLM.from_config(config).to(device).eval()
    return chat_decoder.Decoder(model, most_bytes=1 << 28, most_host_bytes=0, most_prompt=512)


def answer(decoder: Any, conversations: list[list[int]]) -> float:
    """Answer each of these conversations; return the seconds of processor time that it takes."""
    readings = {chat_decoder.Reading(list(tokens)): ANSWER for tokens in conversations}
    began = time.process_time()
    while readings:
        for reading, logits in decoder.step(list(readings)).items():
            reading.tokens.append(int(logits.argmax()))
            readings[reading] -= 1
            if not readings[reading]:
                del readings[reading]
                decoder.keep(reading)
    return time.process_time() - began


def remember(decoder: Any, history: list[int]) -> None:
    """Have the decoder read and keep a history."""
    if history:
        reading = chat_decoder.Reading(history)
        while reading.read < len(history):
            decoder.step([reading])
        decoder.keep(reading)


def forget(decoder: Any) -> None:
    """Have the decoder forget all conversations."""
    decoder.prefixes.clear()


if __name__ == "__main__":
    main()
