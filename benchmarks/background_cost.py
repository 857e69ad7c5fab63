"""What it costs to generate in the background: processor time per token, beside that of a plain stream.

    python -m benchmarks.background_cost --rounds 6

The ways take turns: a plain stream, another one (as a control: two measurements of the same), and a response in the
background whose events are read. The store is a file.
"""

from __future__ import annotations

import argparse
from statistics import median

import openai
from tests.chaos.background_generations import TOKENS, asked, served
from tests.e2e.running_server import RunningServer

_PER_ROUND = 4


def seconds_of(server: RunningServer) -> float:
    """Return the processor time that the server and its workers have used so far."""
    times = [each.cpu_times() for each in (server.server, *server.workers())]
    return sum(each.user + each.system for each in times)


def measure(server: RunningServer, client: openai.OpenAI, *, background: bool) -> float:
    """Return the processor time per token (milliseconds) of some streams, one after another."""
    before = seconds_of(server)
    for number in range(_PER_ROUND):
        for _ in client.responses.create(**asked(f"prompt {number}"), stream=True, background=background):
            pass
    return (seconds_of(server) - before) / (_PER_ROUND * TOKENS) * 1e3


def main() -> None:
    """Print the medians, how far the rounds differ, and by how much the ways do."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=6)
    rounds = parser.parse_args().rounds
    found: dict[str, list[float]] = {"plain": [], "control": [], "background": []}
    with served() as server:
        client = openai.OpenAI(base_url=f"{server.inference}/v1", api_key="none", timeout=300)
        measure(server, client, background=True)
        for _ in range(rounds):
            for way, taken in found.items():
                taken.append(measure(server, client, background=way == "background"))
    base = median(found["plain"])
    for way, taken in found.items():
        spread = f"{min(taken):.3f} to {max(taken):.3f}"
        print(f"{way}: {median(taken):.3f} ms per token ({spread}), {median(taken) / base - 1:+.1%}")


if __name__ == "__main__":
    main()
