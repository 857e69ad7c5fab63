"""Trains a small transformer that remembers what it was told, and writes it as Hugging Face's models are written.

    python handlers/chat/train.py [FOLDER] [--steps N]      FOLDER: default model/ next to this script

It is told facts ("remember cat=red", answered with "ok") and asked for them ("recall cat", answered with "cat=red", or
"i do not know" if nobody has said so). So what it answers shows whether it still knows the conversation. It is a Llama
of two layers with a vocabulary of whole words, "cat=red" among them; training takes half a minute.
"""

from __future__ import annotations

import argparse
import random
from itertools import product
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

THINGS = ["cat", "dog", "car", "house", "boat", "endpoint", "hat", "cup", "ball", "book", "tree", "bird"]
COLOURS = ["red", "blue", "green", "black", "white", "pink"]
FACTS = [f"{thing}={colour}" for thing in THINGS for colour in COLOURS]
END, USER, BOT, UNKNOWN = "<end>", "<user>", "<bot>", "<unknown>"
WORDS = [END, USER, BOT, UNKNOWN, "remember", "recall", "ok", "i", "do", "not", "know", *THINGS, *FACTS]
TEMPLATE = (
    "{% for message in messages %}"
    "{{ ('<bot> ' if message.role == 'assistant' else '<user> ') + message.content + ' <end> ' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<bot> ' }}{% endif %}"
)
#: Words of the conversations of a batch, and of all of them: short ones teach where to look, long ones how far.
LENGTHS = (32, 64, 128)
BATCH = 1280


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of whole words with the template of a conversation."""
    words = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token=UNKNOWN))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        unk_token=UNKNOWN,
        eos_token=END,
        pad_token=END,
        additional_special_tokens=[USER, BOT],
        chat_template=TEMPLATE,
    )


def conversation(random_: random.Random, length: int) -> tuple[list[str], list[bool]]:
    """Return the first words of a conversation, and which of these the model says."""
    said: list[str] = []
    by_model: list[bool] = []
    known: dict[str, str] = {}
    things = random_.sample(THINGS, random_.randint(1, 6))
    while len(said) < length:
        thing = random_.choice(things)
        if random_.random() < 0.5:
            known[thing] = random_.choice(COLOURS)
            question, answer = f"remember {thing}={known[thing]}", "ok"
        else:
            question = f"recall {thing}"
            answer = f"{thing}={known[thing]}" if thing in known else "i do not know"
        for words, is_answer in ([USER, *question.split(), END, BOT], False), ([*answer.split(), END], True):
            said += words
            by_model += [is_answer] * len(words)
    return said[:length], by_model[:length]


def batch(random_: random.Random) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens [conversations, words], and as labels those that the model says; -100 for the others."""
    number = {word: index for index, word in enumerate(WORDS)}
    length = random_.choice(LENGTHS)
    tokens, labels = [], []
    for _ in range(BATCH // length):
        said, by_model = conversation(random_, length)
        row = [number[word] for word in said]
        tokens.append(row)
        labels.append([token if mine else -100 for token, mine in zip(row, by_model, strict=True)])
    return torch.tensor(tokens), torch.tensor(labels)


def train(folder: Path, steps: int, seed: int = 0) -> float:
    """Train a model, write it and its tokenizer to ``folder``, and return the last loss."""
    torch.manual_seed(seed)
    random_ = random.Random(seed)  # noqa: S311 - what it draws is no secret
    words = tokenizer()
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        initializer_range=64**-0.5,  # the usual 0.02 is for wider layers
        bos_token_id=None,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():  # a fact begins as the sum of its thing and a colour, so that it is easily found by its thing
        embedding = model.get_input_embeddings().weight
        colours = torch.randn(len(COLOURS), embedding.shape[1]) * config.initializer_range
        for index, (thing, colour) in enumerate(product(THINGS, colours)):
            embedding[WORDS.index(FACTS[index])] = embedding[WORDS.index(thing)] + colour
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98), weight_decay=0.01)
    # Up, level, and down at the end.
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 50, 1.0, (steps - step) / max(0.3 * steps, 1))
    )
    losses = []
    for step in range(steps):
        tokens, labels = batch(random_)
        loss = model(input_ids=tokens, labels=labels).loss
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 99:
            print(f"step {step + 1}: loss {sum(losses[-100:]) / 100:.3f}", flush=True)
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    return losses[-1] if losses else float("nan")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).with_name("model"))
    parser.add_argument("--steps", type=int, default=600, help="batches to learn from (default 600)")
    options = parser.parse_args()
    torch.set_num_threads(1)  # the tensors are too small to be shared out
    train(options.folder, options.steps)
    print(f"Wrote {options.folder}")


if __name__ == "__main__":
    main()
