"""Generations in the background while their worker or server is killed: clients miss nothing and get nothing twice.

    python -m tests.chaos.background_generations --kills 200

A client reads the events of each generation, and asks for the rest after each loss of its connection. What it has read
must be what the same request gives without a kill at temperature 0, in events whose numbers have no gap.

The model computes in float64. Batches differ, with or without a kill, and with them the last bits of its numbers; in
float32 about one generation in a hundred comes to two tokens that are equally likely but for these bits, and then to
another text. In float64 that hardly ever happens, so there is one right answer.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
import torch
from tests.contracts.scripted_chat import byte_tokenizer
from tests.e2e.running_server import HANDLERS, RunningServer
from transformers import LlamaConfig, LlamaForCausalLM

#: The answer is as long as it may be, so it is incomplete.
_LAST = ("response.incomplete", "response.completed", "response.failed")
TOKENS = 200
_PROMPTS = 8
#: Seconds within which a generation has to end, whatever is killed once.
_LIMIT = 180.0
_CONFIG = """
    minWorkers: 1
    maxWorkers: 1
    batchSize: 16
    continuousBatching: true
    sequenceBatching: true
    sequenceMaxIdleMSec: 600000
    maxNumSequence: 10000
    openai: true
    handler:
      max_tokens: 400
      kv_bytes: 60000000
      cache: {store: file, path: %s, lease: 2}
"""


@dataclass
class Report:
    """What was killed, and what clients have read that is wrong.

    Attributes:
        struck: Generations that were under way at a kill.
    """

    kills: dict[str, int] = field(default_factory=lambda: {"worker": 0, "server": 0})
    struck: int = 0
    generations: int = 0
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        kills = ", ".join(f"{count} of a {what}" for what, count in self.kills.items())
        return f"kills: {kills}; generations {self.generations}, {self.struck} struck; wrong {len(self.wrong)}"


class Generation:
    """One generation, and the client that reads it."""

    def __init__(self, client: openai.OpenAI, prompt: str) -> None:
        self.prompt = prompt
        self.events: list[Any] = []
        self._client = client
        self._id = client.responses.create(**asked(prompt), background=True).id
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        return bool(self.events) and self.events[-1].type in _LAST

    def _read(self) -> None:
        end = time.monotonic() + _LIMIT
        while not self.is_over and time.monotonic() < end:
            after: Mapping[str, Any] = {}
            if self.events:
                after = {"starting_after": self.events[-1].sequence_number}
            try:
                for event in self._client.responses.retrieve(self._id, stream=True, **after):
                    self.events.append(event)
            except Exception:  # the server is gone, or the worker: that is the point
                time.sleep(0.1)

    def wrong(self, expected: str) -> str | None:
        """Wait for the end, and return what the client has read that is wrong."""
        self._thread.join(_LIMIT)
        if not self.is_over:
            return f"{self._id}: no end after {len(self.events)} events"
        numbers = [event.sequence_number for event in self.events]
        if numbers != list(range(len(numbers))):
            return f"{self._id}: the events have the numbers {numbers}"
        deltas = "".join(event.delta for event in self.events if event.type == "response.output_text.delta")
        for what, text in (("deltas", deltas), ("response", self.events[-1].response.output_text)):
            if text != expected:
                return f"{self._id}: {self.events[-1].type}, {what} {text!r} instead of {expected!r}"
        return None


def asked(prompt: str) -> dict[str, Any]:
    """Return a request whose answer has always the same length."""
    more = {"ignore_eos": True}
    return {"model": "chat", "input": prompt, "temperature": 0, "max_output_tokens": TOKENS, "extra_body": more}


def make_model(folder: Path) -> Path:
    """Write handlers/chat with a model of random weights, and return its folder."""
    chat = folder / "chat"
    shutil.copytree(HANDLERS / "chat", chat, ignore=shutil.ignore_patterns("model", "__pycache__", "model-config.yaml"))
    (chat / "model-config.yaml").write_text(textwrap.dedent(_CONFIG) % (folder / "store.db"))
    words = byte_tokenizer()
    words.save_pretrained(chat / "model")
    torch.manual_seed(0)
    size = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4}
    ends = {"eos_token_id": words.eos_token_id, "bos_token_id": None}
    config = LlamaConfig(vocab_size=len(words), max_position_embeddings=4096, **size, **ends)
    LlamaForCausalLM(config).double().save_pretrained(chat / "model")
    return chat


@contextmanager
def served() -> Iterator[RunningServer]:
    """Serve the model."""
    folder = Path(tempfile.mkdtemp())
    try:
        with RunningServer({"chat": make_model(folder)}) as server:
            server.wait_ready()
            yield server
    finally:
        shutil.rmtree(folder)


def run(kills: int, server_every: int, at_once: int = 1, seed: int = 0) -> Report:
    """Kill as often, every so many times the server and else the worker, with so many generations under way."""
    chance, report = random.Random(seed), Report()
    with served() as server:
        client = openai.OpenAI(base_url=f"{server.inference}/v1", api_key="none", max_retries=8, timeout=_LIMIT)
        began = time.monotonic()
        expected = {f"prompt {number}": "" for number in range(_PROMPTS)}
        for prompt in expected:
            expected[prompt] = client.responses.create(**asked(prompt)).output_text
        seconds = (time.monotonic() - began) / _PROMPTS
        for number in range(1, kills + 1):
            generations = [Generation(client, chance.choice(list(expected))) for _ in range(at_once)]
            time.sleep(chance.uniform(0, seconds * 1.2))
            report.struck += sum(not each.is_over for each in generations)
            kill(server, "server" if number % server_every == 0 else "worker", report)
            wrong = [each.wrong(expected[each.prompt]) for each in generations]
            found = [each for each in wrong if each is not None]
            print(*found, sep="\n", end="\n" if found else "")
            report.wrong += found
            report.generations += at_once
            print(f"{number}: {report}", flush=True)
    return report


def kill(server: RunningServer, what: str, report: Report) -> None:
    """Kill the worker; or the server, and start it again."""
    report.kills[what] += 1
    if what == "worker":
        for worker in server.workers():
            worker.kill()
        return
    server.server.kill()
    server.kill_everything()
    server.start()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--server-every", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--generations", type=int, default=1, help="that are under way at each kill")
    given = parser.parse_args()
    found = run(given.kills, given.server_every, given.generations, given.seed)
    print(found, *found.wrong, sep="\n")
    raise SystemExit(bool(found.wrong))
