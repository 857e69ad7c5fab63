"""What `Arena.gather` and `scatter` cost beside stacking and splitting the states of a batch, row by row.

    python -m benchmarks.arena [--rounds 15] [--device cpu]

A GRU cell steps all sequences of a batch. Rounds alternate and processor time counts, so that a busy machine slows all
alike; each figure is the median of its rounds, without what the cell itself takes.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "backend"))

import torch

from ts.context import Context
from ts.sequence.arena import Arena, Field

HIDDEN = 256
INPUT = 4
STEPS = 20
SEQUENCES = (32, 256)

Step = Callable[[], None]


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.arena", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15, help="turns of each way (default 15)")
    parser.add_argument("--device", default="cpu", help="where the states are (default cpu)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    cell = torch.nn.GRUCell(INPUT, HIDDEN).to(options.device)
    for count in SEQUENCES:
        ways = {
            "cell alone": alone(cell, count, options.device),
            "stack and split": stacked(cell, count, options.device),
            "arena": gathered(cell, count, options.device),
        }
        costs = measured(ways, options.rounds)
        base = costs.pop("cell alone")
        text = ", ".join(f"{name} {cost - base:,.0f}" for name, cost in costs.items())
        print(f"{count} sequences, µs per batch: {text} (and the cell {base:,.0f})")


def alone(cell: torch.nn.Module, count: int, device: str) -> Step:
    """Return a step of the cell with nothing around it."""
    inputs, hidden = torch.zeros(count, INPUT, device=device), torch.zeros(count, HIDDEN, device=device)

    def step() -> None:
        with torch.inference_mode():
            cell(inputs, hidden)

    return step


def stacked(cell: torch.nn.Module, count: int, device: str) -> Step:
    """Return a step as handlers write it by hand."""
    inputs = torch.zeros(count, INPUT, device=device)
    states = {row: torch.zeros(HIDDEN, device=device) for row in range(count)}

    def step() -> None:
        with torch.inference_mode():
            hidden = cell(inputs, torch.stack([states[row] for row in range(count)]))
        for row, state in enumerate(hidden):
            states[row] = state.clone()

    return step


def gathered(cell: torch.nn.Module, count: int, device: str) -> Step:
    """Return a step with an arena."""
    config = {"maxNumSequence": count, "batchSize": count}
    context = Context("gru", ".", None, count, None, "", model_yaml_config=config)
    arena = Arena(context, {"hidden": Field((HIDDEN,))}, device=device)
    inputs = torch.zeros(count, INPUT, device=device)
    states = arena.scatter({"hidden": torch.zeros(count, HIDDEN, device=device)})

    def step() -> None:
        nonlocal states
        with torch.inference_mode():
            hidden = cell(inputs, arena.gather(states)["hidden"])
        states = arena.scatter({"hidden": hidden})

    return step


def measured(ways: dict[str, Step], rounds: int) -> dict[str, float]:
    """Return the microseconds that one step of each takes."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, step in ways.items():
            step()
            began = time.process_time()
            for _ in range(STEPS):
                step()
            found[name].append((time.process_time() - began) / STEPS * 1e6)
    return {name: statistics.median(values) for name, values in found.items()}


if __name__ == "__main__":
    main()
