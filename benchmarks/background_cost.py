"""What it costs to generate in the background: processor time per token, beside that of a plain stream.

    python -m benchmarks.background_cost --rounds 24

In each round the ways take turns in a new order: a plain stream, another one (as a control: two measurements of the
same), and a response in the background whose events are read. What differs is told by round, since the machine's speed
differs more between rounds than within one. The store is a file.
"""

from __future__ import annotations

import argparse
import random
from statistics import median, quantiles

import openai
from tests.chaos.background_generations import TOKENS, asked, served
from tests.e2e.running_server import RunningServer


def seconds_of(server: RunningServer) -> float:
    """Return the processor time that the server and its workers have used so far."""
    times = [each.cpu_times() for each in (server.server, *server.workers())]
    return sum(each.user + each.system for each in times)


def measure(server: RunningServer, client: openai.OpenAI, number: int, *, background: bool) -> float:
    """Return the processor time per token (milliseconds) of a stream."""
    before = seconds_of(server)
    for _ in client.responses.create(**asked(f"prompt {number}"), stream=True, background=background):
        pass
    return (seconds_of(server) - before) / TOKENS * 1e3


def main() -> None:
    """Print the medians, and by how much the ways differ: the median and the quartiles of the rounds."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=24)
    rounds, chance = parser.parse_args().rounds, random.Random(0)
    found: dict[str, list[float]] = {"plain": [], "control": [], "background": []}
    with served() as server:
        client = openai.OpenAI(base_url=f"{server.inference}/v1", api_key="none", timeout=300)
        measure(server, client, 0, background=True)
        for number in range(rounds):
            for way in chance.sample(list(found), len(found)):
                found[way].append(measure(server, client, number, background=way == "background"))
    for way, taken in found.items():
        more = [one / plain - 1 for one, plain in zip(taken, found["plain"], strict=True)]
        low, middle, high = quantiles(more)
        print(f"{way}: {median(taken):.3f} ms per token, {middle:+.1%} ({low:+.1%} to {high:+.1%})")


if __name__ == "__main__":
    main()
