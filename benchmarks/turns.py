"""What turn n of a conversation costs in processor time: with a memory, without one, and on TorchServe.

    scripts/install-torchserve; .torchserve-venv/bin/pip install transformers
    python -m benchmarks.turns [--rounds 3] [--turns 50] [--torchserve-venv FOLDER]

Each turn has 20 words of a question and 20 of an answer. handlers/chat gets the question, and keeps the conversation in
a file; the others get the whole conversation each time, with the same model and Transformers' own `generate`. All
servers are up and warm, with one worker and one thread for the model; while one is measured the others are suspended.
Medians of the rounds. The processor time is that of all processes of a server, so other programs hardly matter.
TorchServe is left out if it is not installed.
"""

from __future__ import annotations

import argparse
import http.client
import random
import shutil
import statistics
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
import yaml
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from benchmarks import launchers
from benchmarks.benchmark_models import ROOT, SOURCES, HandlerModel, Probe
from benchmarks.servers import Server

WORDS: Final = 20
_MARKS: Final = ("<end>", "<user>", "<bot>")
VOCABULARY: Final = [*_MARKS, *(f"w{number}" for number in range(1_000))]
TEMPLATE: Final = (
    "{% for message in messages %}"
    "{{ ('<bot> ' if message.role == 'assistant' else '<user> ') + message.content + ' <end> ' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<bot> ' }}{% endif %}"
)
TOLD: Final = (1, 2, 5, 10, 20, 50, 100)


@dataclass(frozen=True)
class Chat:
    """handlers/chat with a model, as a folder of the model store."""

    model: Path
    name: str = "chat"

    @property
    def probe(self) -> Probe:
        """A turn."""
        return Probe("/predictions/chat", b"w1", bool, {"content-type": "text/plain"})

    def put_into(self, store: Path) -> str:
        """Copy the handler's folder, with a configuration for this model."""
        source, target = ROOT / "handlers" / "chat", store / self.name
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "model"))
        config = yaml.safe_load((target / "model-config.yaml").read_text())
        config["handler"] |= {"model_path": str(self.model), "max_tokens": WORDS}
        (target / "model-config.yaml").write_text(yaml.safe_dump(config))
        return self.name


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.turns", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="conversations with each server (default 3)")
    parser.add_argument("--turns", type=int, default=50, help="turns of each (default 50)")
    parser.add_argument("--torchserve-venv", type=Path, default=ROOT / ".torchserve-venv", metavar="FOLDER")
    options = parser.parse_args()
    with ExitStack() as stack:
        model = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="turns-"))) / "model"
        write_model(model)
        stateless = HandlerModel(
            "history",
            SOURCES / "history_handler.py",
            {"batchSize": 1, "responseTimeout": 120, "handler": {"model_path": str(model), "max_tokens": WORDS}},
            Probe("/predictions/history", b"w1", bool, {"content-type": "text/plain"}),
        )
        ours = launchers.this_server(sys.executable)
        servers = {"with a memory": Server(ours, Chat(model)), "without": Server(ours, stateless)}
        if options.torchserve_venv.is_dir():
            servers["TorchServe"] = Server(launchers.torchserve(options.torchserve_venv), stateless)
        for server in servers.values():
            server.launcher.environment["OMP_NUM_THREADS"] = "1"
            stack.enter_context(server)
            server.suspend()
        taken: dict[str, list[list[float]]] = {name: [] for name in servers}
        for number in range(options.rounds):
            for name, server in servers.items():
                server.resume()
                taken[name].append(conversation(server, options.turns, seed=number))
                server.suspend()
        report(taken, options.turns)


def write_model(folder: Path) -> None:
    """Write a Llama of four layers, whose weights mean nothing, and which never ends an answer by itself."""
    torch.manual_seed(0)
    config = LlamaConfig(
        **{"vocab_size": len(VOCABULARY), "hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4},
        **{"num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 8192},
        **{"bos_token_id": None, "eos_token_id": 0, "pad_token_id": 0, "tie_word_embeddings": False},
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight[: len(_MARKS)] = 0.0  # some other word has a greater score
    model.save_pretrained(folder)
    words = Tokenizer(models.WordLevel({word: index for index, word in enumerate(VOCABULARY)}, unk_token="<end>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=words,
        unk_token="<end>",
        eos_token="<end>",
        additional_special_tokens=list(_MARKS[1:]),
        chat_template=TEMPLATE,
    ).save_pretrained(folder)


def conversation(server: Server, turns: int, seed: int) -> list[float]:
    """Return the processor time (seconds) of each turn of a new conversation."""
    words, history, seconds = random.Random(seed), list[str](), []
    remembers = isinstance(server.model, Chat)
    headers = {**server.model.probe.headers, **server.authorization}
    if remembers:
        headers["ts_request_sequence_id"] = f"conversation-{seed}"
    client = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=120)
    for turn in range(-1 if seed == 0 else 0, turns):
        question = words.choices(VOCABULARY[len(_MARKS) :], k=WORDS)
        sent = " ".join(question if remembers else [*history, "<user>", *question, "<end>", "<bot>"])
        before = server.processor_seconds()
        client.request("POST", server.model.probe.path, sent, headers)
        response = client.getresponse()
        answer = response.read().decode().split()
        taken = server.processor_seconds() - before
        if response.status != 200 or len(answer) != WORDS:
            raise SystemExit(
                f"{server.launcher.name}: {response.status}, {len(answer)} words: {' '.join(answer)[:200]}"
            )
        if turn >= 0:  # the first request of all is not counted
            seconds.append(taken)
        history += ["<user>", *question, "<end>", "<bot>", *answer, "<end>"]
    client.close()
    return seconds


def report(taken: dict[str, list[list[float]]], turns: int) -> None:
    """Print the medians of some turns, in milliseconds, and how much longer than with a memory each takes."""
    names = list(taken)
    print("| turn |", " | ".join(names), "|")
    print("|---" * (len(names) + 1) + "|")
    for turn in [each for each in TOLD if each <= turns]:
        medians: list[Any] = [statistics.median(each[turn - 1] for each in taken[name]) for name in names]
        cells = [f"{each * 1e3:.0f} ms ({each / medians[0]:.1f})" for each in medians]
        print(f"| {turn} |", " | ".join(cells), "|")


if __name__ == "__main__":
    main()
