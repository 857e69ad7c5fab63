"""A stream of 100,000 steps with `Arena` fields that have a window: the memory and the processor time of its steps.

    python -m benchmarks.arena_window [--steps 100000] [--sequences 4] [--window 256] [--pinned 4]

Each step appends one entry to each sequence, and attends to the pinned entries and to the last ones. A reference keeps
all entries of all steps; every thousandth output is compared with its own.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "backend"))

import torch
from torch.nn.functional import scaled_dot_product_attention

from ts.context import Context
from ts.sequence.arena import Arena, ArenaState, Field

HEADS, SIZE = 2, 32
TURN = 1_000
FIELDS = ("keys", "values")


class Stream(NamedTuple):
    """Steps of several sequences; ``inputs`` has the keys and the values of all steps, each [rows, heads, steps, size].

    The inputs are the memory of the reference, which is there from the beginning.
    """

    arena: Arena
    inputs: dict[str, torch.Tensor]
    window: int
    pinned: int

    def step(self, states: list[ArenaState | None], number: int) -> tuple[torch.Tensor, list[ArenaState | None]]:
        """Return the outputs of attention over the window and the new entry, and the next states."""
        new = {name: tensor[:, :, number : number + 1] for name, tensor in self.inputs.items()}
        before = self.arena.gather(states)
        keys, values = (torch.cat([before[name], new[name]], 2) for name in FIELDS)
        mask = torch.cat([self.arena.positions(states)["keys"] >= 0, torch.ones(len(states), 1, dtype=torch.bool)], 1)
        outputs = scaled_dot_product_attention(new["keys"], keys, values, attn_mask=mask[:, None, None])
        return outputs, list(self.arena.append(states, new))

    def reference(self, number: int) -> torch.Tensor:
        """Return the outputs of a step from all entries."""
        places = [each for each in range(number) if each < self.pinned or each >= number - self.window] + [number]
        keys, values = (self.inputs[name][:, :, places] for name in FIELDS)
        return scaled_dot_product_attention(self.inputs["keys"][:, :, [number]], keys, values)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.arena_window", description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--sequences", type=int, default=4)
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--pinned", type=int, default=4)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    fields = {name: Field((HEADS, SIZE), grows=1, window=options.window, pinned=options.pinned) for name in FIELDS}
    context = Context(
        *("window", ".", None, options.sequences, None, ""), model_yaml_config={"maxNumSequence": 2 * options.sequences}
    )
    inputs = {name: torch.randn(options.sequences, HEADS, options.steps, SIZE) for name in FIELDS}
    run(Stream(Arena(context, fields), inputs, options.window, options.pinned), options.steps)


def run(stream: Stream, steps: int) -> None:
    """Run all steps and print what they take, by thousands, beside those of a stream that begins anew every time."""
    rows = len(stream.inputs["keys"])
    states: list[ArenaState | None] = [None] * rows
    ratios, worst = [], 0.0
    with torch.inference_mode():
        for first in range(0, steps, TURN):
            young: list[ArenaState | None] = [None] * rows
            cost = young_cost = 0.0
            for number in range(first, min(steps, first + TURN)):
                began = time.process_time()
                outputs, states = stream.step(states, number)
                between = time.process_time()
                _, young = stream.step(young, number)
                young_cost += time.process_time() - between
                cost += between - began
            ratios.append(cost / young_cost)
            worst = max(worst, float((outputs - stream.reference(number)).abs().max()))
            if first // TURN in (0, 1, 9, 49, 99):
                took = f"{cost:.3f} s of processor time, {ratios[-1]:.3f} of a new stream"
                memory = f"{stream.arena.used_bytes:,} bytes of the arena, {resident() / 1e6:.1f} MB of the process"
                print(f"steps {first:,} to {number + 1:,}: {took}; {memory}", flush=True)
    print(f"all: {statistics.median(ratios):.3f} of a new stream; largest difference to the reference {worst:.1e}")


def resident() -> int:
    """Return the bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


if __name__ == "__main__":
    main()
